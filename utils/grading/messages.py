"""What passes between ranks that run a student's code, as the grader saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
REDUCE = {
    "sum": np.sum,
    "product": np.prod,
    "min": np.min,
    "max": np.max,
    "avg": lambda stacked, axis: (np.sum(stacked, axis) / len(stacked)).astype(stacked.dtype),
}


class StudentError(AssertionError):
    """The student's code did not do what was asked; the message is for the student, ``kind`` is one word."""

    def __init__(self, message: str, kind: str = "raised", rank: int | None = None):
        super().__init__(message)
        self.kind, self.rank = kind, rank


@dataclass(frozen=True)
class Message:
    """What rank ``source`` sent to ``target``; ``step`` counts the messages that had to come one after the other."""

    source: int
    target: int
    tag: int
    values: np.ndarray
    step: int

    @property
    def bytes(self) -> int:
        """The size of what was sent."""
        return self.values.nbytes


@dataclass
class Call:
    """A communication call of a rank, as the router saw it."""

    rank: int
    number: int
    op: str
    peer: int
    tag: int
    dtype: str
    elements: int
    root: int
    reduce: str
    data: bytes
    clock: int
    start: float
    waited: float | None = None
    step: int | None = None
    source: int = -1
    answer: bytes = b""

    def __str__(self) -> str:
        if self.op in ("send", "recv"):
            other = f"rank {self.peer}" if self.peer >= 0 else "any rank"
            return f"{self.op} {'to' if self.op == 'send' else 'from'} {other}"
        return f"{self.op} of {self.elements} elements of {self.dtype}" if self.elements else self.op


@dataclass(frozen=True)
class Mark:
    """The begin (``kind`` is ``"span"``) or end (``"done"``) of a span of a rank."""

    kind: str
    number: int
    name: str
    tags: dict
    time: float


@dataclass(frozen=True)
class RoutedRun:
    """What came of a call on every rank: return values, messages in the order in which they were matched, calls, marks."""

    values: list[Any]
    messages: tuple[Message, ...] = ()
    calls: tuple[tuple[Call, ...], ...] = ()
    marks: tuple[tuple[Mark, ...], ...] = ()

    @property
    def steps(self) -> int:
        """The longest chain of messages that had to wait for each other."""
        return max((message.step for message in self.messages), default=0)

    def sent_bytes(self, rank: int) -> int:
        """Return how many bytes a rank sent."""
        return sum(message.bytes for message in self.messages if message.source == rank)

    def peers(self, rank: int) -> set[int]:
        """Return to whom a rank sent."""
        return {message.target for message in self.messages if message.source == rank}


def combine(calls: list[Call]) -> None:
    """Put what each rank gets from a collective into its call's ``answer``; ``calls`` has one for each rank, in order."""
    op, root, world_size = calls[0].op, calls[0].root, len(calls)
    data = [call.data for call in calls]
    if op == "barrier":
        return
    if op == "broadcast":
        answers = [data[root]] * world_size
    elif op in ("all_gather", "gather"):
        answers = [b"".join(data)] * world_size
    elif op == "scatter":
        answers = _cut(data[root], world_size)
    elif op == "all_to_all":
        pieces = [_cut(piece, world_size) for piece in data]
        answers = [
            b"".join(pieces[source][target] for source in range(world_size)) for target in range(world_size)
        ]
    else:
        stacked = np.stack([np.frombuffer(piece, dtype=calls[0].dtype) for piece in data])
        total = REDUCE[calls[0].reduce](stacked, axis=0).astype(stacked.dtype).tobytes()
        answers = _cut(total, world_size) if op == "reduce_scatter" else [total] * world_size
    for call, answer in zip(calls, answers):
        call.answer = answer if op not in ("reduce", "gather") or call.rank == root else b""


def _cut(data: bytes, parts: int) -> list[bytes]:
    size = len(data) // parts
    return [data[number * size : (number + 1) * size] for number in range(parts)]
