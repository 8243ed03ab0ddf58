"""One rank's line to the checker, and the calls that are under way on it; see :mod:`utils.grading.routed_group`."""

from __future__ import annotations

import base64
import itertools
import socket
import sys

import torch
import torch.distributed as dist

plain_data = sys.modules["course_plain_data"]


class RoutedWork(dist.Work):
    """A call under way; ``wait`` returns when the checker has matched it with its counterparts."""

    def __init__(self, line: Line, number: int, targets: list[torch.Tensor]):
        super().__init__()
        self._line, self._number, self._targets, self._source = line, number, targets, -1

    def wait(self, timeout=None) -> bool:
        reply = self._line.wait_for(self._number)
        self._source = reply["source"]
        data, start = bytearray(base64.b64decode(reply["data"])), 0
        targets, self._targets = self._targets, []
        if targets and sum(target.nbytes for target in targets) != len(data):
            room = sum(target.nbytes for target in targets)
            raise ValueError(f"{len(data)} bytes came; the tensors for them have room for {room}.")
        for target in targets if data else ():
            piece = torch.frombuffer(data, dtype=target.dtype, count=target.numel(), offset=start)
            with torch.no_grad():
                target.copy_(piece.view(target.shape))
            start += target.nbytes
        return True

    def is_completed(self) -> bool:
        return self._line.is_matched(self._number)

    def get_future(self) -> torch.futures.Future:
        future, targets = torch.futures.Future(), list(self._targets)
        self.wait()
        future.set_result(targets)
        return future

    def _source_rank(self) -> int:
        return self._source


class RoutedWorks(dist.Work):
    """Several calls that were made as one."""

    def __init__(self, works: list[RoutedWork]):
        super().__init__()
        self._works = works

    def wait(self, timeout=None) -> bool:
        return all([work.wait() for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result([tensor for work in self._works for tensor in work.get_future().value()])
        return future


class Line:
    """One rank's socket to the checker, shared by all its groups."""

    def __init__(self, channel: socket.socket, allowed: tuple[str, ...]):
        self.allowed = allowed
        self._channel, self._numbers, self._done, self._matched = channel, itertools.count(1), {}, set()

    def post(self, fields: dict) -> int:
        """Send a call and return its number."""
        number = next(self._numbers)
        plain_data.send(self._channel, fields | {"number": number})
        return number

    def wait_for(self, number: int) -> dict:
        """Return the checker's reply to call ``number``."""
        if number not in self._done:
            plain_data.send(self._channel, {"op": "wait", "number": number})
        while number not in self._done:
            self._receive()
        return self._done[number]

    def is_matched(self, number: int) -> bool:
        """Return whether call ``number`` has met its counterparts."""
        if number not in self._done and number not in self._matched:
            plain_data.send(self._channel, {"op": "poll", "number": number})
            if self._receive()["matched"]:
                self._matched.add(number)
        return number in self._done or number in self._matched

    def _receive(self) -> dict:
        reply = plain_data.receive(self._channel)
        if "matched" not in reply:
            self._done[reply["number"]] = reply
        return reply
