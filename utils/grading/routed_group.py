"""A process group whose messages all go through the checker: ``dist.send`` and ``dist.recv``, and nothing else.

It runs in the student's process, so it decides nothing: the checker matches the messages, counts them, and keeps the
bytes.  A student's code that tampers with this module can only send other messages, and those are seen.
"""

from __future__ import annotations

import base64
import socket
import sys

import torch
import torch.distributed as dist

FORBIDDEN = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
             "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter",
             "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced",
             "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "gather", "scatter",
             "recv_anysource", "barrier")

plain_data = sys.modules["course_plain_data"]


class RoutedWork(dist.Work):
    """A message under way; ``wait`` returns when the checker has matched it with its counterpart."""

    def __init__(self, group: RoutedGroup, number: int, target: torch.Tensor | None):
        super().__init__()
        self._group, self._number, self._target = group, number, target

    def wait(self, timeout=None) -> bool:
        reply = self._group.wait_for(self._number)
        if self._target is not None and reply is not None:
            data = bytearray(base64.b64decode(reply))
            received = torch.frombuffer(data, dtype=self._target.dtype) if data else self._target.new_empty(0)
            with torch.no_grad():
                self._target.copy_(received.view(self._target.shape))
            self._target = None
        return True

    def is_completed(self) -> bool:
        return self._group.has(self._number)


class RoutedGroup(dist.ProcessGroup):
    """The group of one rank, at the end of a socket."""

    def __init__(self, channel: socket.socket, rank: int, world_size: int):
        super().__init__(rank, world_size)
        self._channel, self._rank, self._world_size = channel, rank, world_size
        self._count, self._done = 0, {}

    def size(self) -> int:
        return self._world_size

    def getBackendName(self) -> str:
        return "routed"

    def send(self, tensors, dst: int, tag: int = 0) -> RoutedWork:
        tensor = tensors[0].detach().contiguous()
        data = base64.b64encode(tensor.flatten().view(torch.uint8).numpy().tobytes()).decode() if tensor.numel() else ""
        return self._post("send", dst, tag, tensor, data, None)

    def recv(self, tensors, src: int, tag: int = 0) -> RoutedWork:
        return self._post("recv", src, tag, tensors[0], "", tensors[0])

    def _post(self, op, peer, tag, tensor, data, target) -> RoutedWork:
        self._count += 1
        plain_data.send(self._channel, {"op": op, "number": self._count, "peer": peer, "tag": tag, "data": data,
                                        "dtype": str(tensor.dtype).removeprefix("torch."), "elements": tensor.numel()})
        return RoutedWork(self, self._count, target)

    def wait_for(self, number: int) -> str | None:
        if number not in self._done:
            plain_data.send(self._channel, {"op": "wait", "number": number})
        while number not in self._done:
            reply = plain_data.receive(self._channel)
            if "error" in reply:
                raise RuntimeError(reply["error"])
            self._done[reply["number"]] = reply.get("data")
        return self._done[number]

    def has(self, number: int) -> bool:
        return number in self._done


def _refuse(name: str):
    def refused(self, *args, **options):
        raise RuntimeError(f"'{name}' is not part of this exercise: build it from dist.send and dist.recv "
                           "(or isend, irecv, batch_isend_irecv).")
    return refused


for _name in FORBIDDEN:
    setattr(RoutedGroup, _name, _refuse(_name))


def join(channel: socket.socket, rank: int, world_size: int, allowed: tuple[str, ...] = ()) -> None:
    """Make the default process group of this process one whose messages go over ``channel``."""
    dist.Backend.register_backend("routed", lambda store, rank, size, timeout: RoutedGroup(channel, rank, size), devices=["cpu"])
    dist.init_process_group("routed", rank=rank, world_size=world_size, store=dist.HashStore())
