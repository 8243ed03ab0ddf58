"""A process group whose messages all go through the checker.

It runs in the student's process, so it decides nothing: the checker matches the calls, counts them, and keeps the
bytes.  A student's code that tampers with this module can only send other messages, and those are seen.
"""

from __future__ import annotations

import base64
import itertools
import socket
import sys

import torch
import torch.distributed as dist

COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
_REDUCE = (
    ("sum", dist.ReduceOp.SUM),
    ("avg", dist.ReduceOp.AVG),
    ("product", dist.ReduceOp.PRODUCT),
    ("min", dist.ReduceOp.MIN),
    ("max", dist.ReduceOp.MAX),
)

plain_data = sys.modules["course_plain_data"]


class RoutedWork(dist.Work):
    """A call under way; ``wait`` returns when the checker has matched it with its counterparts."""

    def __init__(self, group: RoutedGroup, number: int, targets: list[torch.Tensor]):
        super().__init__()
        self._group, self._number, self._targets, self._source = group, number, targets, -1

    def wait(self, timeout=None) -> bool:
        reply = self._group.wait_for(self._number)
        self._source = reply["source"]
        data, start = bytearray(base64.b64decode(reply["data"])), 0
        for target in self._targets if data else ():
            piece = torch.frombuffer(data, dtype=target.dtype, count=target.numel(), offset=start)
            with torch.no_grad():
                target.copy_(piece.view(target.shape))
            start += target.nbytes
        self._targets = []
        return True

    def is_completed(self) -> bool:
        return self._group.has(self._number)

    def _source_rank(self) -> int:
        return self._source


class RoutedGroup(dist.ProcessGroup):
    """The group of one rank, at the end of a socket."""

    def __init__(self, channel: socket.socket, rank: int, world_size: int, allowed: tuple[str, ...]):
        super().__init__(rank, world_size)
        self._channel, self._rank, self._world_size, self._allowed = channel, rank, world_size, allowed
        self._numbers, self._done = itertools.count(1), {}

    def size(self) -> int:
        return self._world_size

    def getBackendName(self) -> str:
        return "routed"

    def send(self, tensors, dst: int, tag: int = 0) -> RoutedWork:
        return self._post("send", tensors, [], peer=dst, tag=tag)

    def recv(self, tensors, src: int, tag: int = 0) -> RoutedWork:
        return self._post("recv", tensors, tensors, peer=src, tag=tag)

    def recv_anysource(self, tensors, tag: int = 0) -> RoutedWork:
        return self._post("recv", tensors, tensors, peer=-1, tag=tag)

    def allreduce(self, tensors, opts=None) -> RoutedWork:
        return self._post("all_reduce", tensors, tensors, opts=opts or dist.AllreduceOptions())

    def broadcast(self, tensors, opts) -> RoutedWork:
        return self._post("broadcast", tensors, tensors, opts=opts)

    def reduce(self, tensors, opts) -> RoutedWork:
        return self._post("reduce", tensors, tensors if opts.rootRank == self._rank else [], opts=opts)

    def allgather(self, outputs, inputs, opts=None) -> RoutedWork:
        return self._post("all_gather", inputs, outputs[0], factor=self._world_size)

    def _allgather_base(self, output, input_, opts=None) -> RoutedWork:
        return self._post("all_gather", [input_], [output], factor=self._world_size)

    def reduce_scatter(self, outputs, inputs, opts) -> RoutedWork:
        return self._post("reduce_scatter", inputs[0], outputs, opts=opts)

    def _reduce_scatter_base(self, output, input_, opts) -> RoutedWork:
        return self._post("reduce_scatter", [input_], [output], opts=opts)

    def alltoall(self, outputs, inputs, opts=None) -> RoutedWork:
        return self._post("all_to_all", inputs, outputs)

    def alltoall_base(self, output, input_, output_sizes=(), input_sizes=(), opts=None) -> RoutedWork:
        if len(set(output_sizes)) > 1 or len(set(input_sizes)) > 1:
            raise ValueError("all_to_all with uneven parts cannot be used here: use send and recv.")
        return self._post("all_to_all", [input_], [output])

    def gather(self, outputs, inputs, opts) -> RoutedWork:
        return self._post("gather", inputs, outputs[0] if outputs else [], opts=opts, factor=self._world_size)

    def scatter(self, outputs, inputs, opts) -> RoutedWork:
        given = inputs[0] if inputs else []
        return self._post(
            "scatter", given, outputs, opts=opts, factor=1 if inputs else self._world_size, like=outputs
        )

    def barrier(self, opts=None) -> RoutedWork:
        return self._post("barrier", [], [])

    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def _post(self, op, given, targets, *, peer=-1, tag=0, opts=None, factor=1, like=()) -> RoutedWork:
        if op in COLLECTIVES and op not in self._allowed:
            raise RuntimeError(
                f"'{op}' is not part of this exercise: build it from dist.send and dist.recv (or isend, "
                "irecv, batch_isend_irecv)."
            )
        for tensor in (*given, *targets):
            if not tensor.is_contiguous():
                raise ValueError(
                    f"{op} was given a tensor that is not contiguous (shape {tuple(tensor.shape)}, strides "
                    f"{tensor.stride()}). Pass tensor.contiguous() and copy the result back."
                )
        shown = given or like
        data = b"" if op == "recv" else b"".join(_bytes(tensor) for tensor in given)
        number = next(self._numbers)
        plain_data.send(
            self._channel,
            {
                "op": op,
                "number": number,
                "peer": peer,
                "tag": tag,
                "data": base64.b64encode(data).decode(),
                "dtype": str(shown[0].dtype).removeprefix("torch.") if shown else "uint8",
                "elements": factor * sum(tensor.numel() for tensor in shown),
                "root": getattr(opts, "rootRank", 0),
                "reduce": _reduce_name(opts),
            },
        )
        return RoutedWork(self, number, list(targets))

    def wait_for(self, number: int) -> dict:
        """Return the checker's reply to call ``number``."""
        if number not in self._done:
            plain_data.send(self._channel, {"op": "wait", "number": number})
        while number not in self._done:
            reply = plain_data.receive(self._channel)
            self._done[reply["number"]] = reply
        return self._done[number]

    def has(self, number: int) -> bool:
        """Return whether call ``number`` was waited for."""
        return number in self._done


def _reduce_name(opts) -> str:
    """Return the name of a call's reduction; ``"sum"`` for calls without one."""
    wanted = getattr(opts, "reduceOp", None)
    for name, operation in _REDUCE if wanted is not None else ():
        if wanted == operation:  # these objects are equal without having equal hashes
            return name
    if wanted is not None:
        raise ValueError(f"the reduction {wanted} cannot be used here; use SUM, AVG, PRODUCT, MIN or MAX.")
    return "sum"


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


class Marks:
    """Tells the checker when spans begin and end; it takes the place of the engine's recorder."""

    def __init__(self, channel: socket.socket):
        self._channel, self._numbers = channel, itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def event(self, kind: str, n: int, name: str = "", tags: dict | None = None) -> None:
        plain_data.send(
            self._channel,
            {"op": "mark", "kind": kind, "number": n, "name": name, "tags": plain_data.encode(tags or {})},
        )


def join(channel: socket.socket, rank: int, world_size: int, allowed: tuple[str, ...] = ()) -> None:
    """Make the default process group of this process one whose calls go over ``channel``.

    Arguments:
        channel: the socket to the checker.
        rank: this process's rank.
        world_size: how many there are.
        allowed: the collectives that exist besides ``send`` and ``recv``.
    """
    dist.Backend.register_backend(
        "routed",
        lambda _store, rank, size, _timeout: RoutedGroup(channel, rank, size, allowed),
        devices=["cpu"],
    )
    dist.init_process_group("routed", rank=rank, world_size=world_size, store=dist.HashStore())
