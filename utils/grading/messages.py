"""What passes between ranks that run a student's code, as the grader saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WORLD = "world"
BFLOAT16 = "bfloat16"
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
    bytes: int


@dataclass
class Call:
    """A communication call of a rank, as the router saw it; ``peer``, ``root`` and ``ranks`` are global ranks.

    ``ranks`` are the members of the call's group, in the group's order, and ``group`` is its name.  ``parts`` and
    ``room`` are the elements that all_to_all sends to each member and has room for from each.
    """

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
    group: str
    ranks: tuple[int, ...]
    parts: tuple[int, ...] = ()
    room: tuple[int, ...] = ()
    waited: float | None = None
    step: int | None = None
    source: int = -1
    answer: bytes = b""

    def __str__(self) -> str:
        if self.op in ("send", "recv"):
            other = f"rank {self.peer}" if self.peer >= 0 else "any rank"
            return f"{self.op} {'to' if self.op == 'send' else 'from'} {other}"
        what = f"{self.op} of {self.elements} elements of {self.dtype}" if self.elements else self.op
        return what if self.group == WORLD else f"{what} in the group of ranks {list(self.ranks)}"

    @property
    def element_bytes(self) -> int:
        """The size of one element."""
        return element_bytes(self.dtype)

    @property
    def part_bytes(self) -> tuple[float, float] | None:
        """What all_to_all sends and receives without the rank's own part; ``None`` for other calls."""
        if self.op != "all_to_all":
            return None
        own = self.ranks.index(self.rank)
        sent, received = (sum(sizes) - sizes[own] for sizes in (self.parts, self.room))
        return float(sent * self.element_bytes), float(received * self.element_bytes)


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
    """Put what each rank gets from a collective into its call's ``answer``; ``calls`` are in the group's order.

    Raises ``StudentError`` if the parts of an all_to_all do not fit the room that was made for them.
    """
    op, world_size = calls[0].op, len(calls)
    root = calls[0].ranks.index(calls[0].root)
    data = [call.data for call in calls]
    if op == "barrier":
        return
    if op == "broadcast":
        answers = [data[root]] * world_size
    elif op in ("all_gather", "gather"):
        answers = [b"".join(data)] * world_size
    elif op == "scatter":
        answers = _cut(data[root], _equal(data[root], world_size))
    elif op == "all_to_all":
        answers = _exchanged(calls)
    else:
        stacked = np.stack([numbers_of(piece, calls[0].dtype) for piece in data])
        total = bytes_of(REDUCE[calls[0].reduce](stacked, axis=0).astype(stacked.dtype), calls[0].dtype)
        scattered = op == "reduce_scatter"
        answers = _cut(total, _equal(total, world_size)) if scattered else [total] * world_size
    for call, answer in zip(calls, answers):
        call.answer = answer if op not in ("reduce", "gather") or call.rank == call.root else b""


def _exchanged(calls: list[Call]) -> list[bytes]:
    for source, giver in enumerate(calls):
        for target, taker in enumerate(calls):
            if giver.parts[target] != taker.room[source]:
                raise StudentError(
                    f"all_to_all: rank {giver.rank} gave {giver.parts[target]} elements to rank {taker.rank}, which had "
                    f"made room for {taker.room[source]}",
                    "difference",
                    giver.rank,
                )
    pieces = [_cut(call.data, [size * call.element_bytes for size in call.parts]) for call in calls]
    return [b"".join(piece[target] for piece in pieces) for target in range(len(calls))]


def _equal(data: bytes, parts: int) -> list[int]:
    return [len(data) // parts] * parts


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    ends = np.cumsum(sizes).tolist()
    return [data[end - size : end] for end, size in zip(ends, sizes)]


def element_bytes(dtype: str) -> int:
    """Return the size of an element; numpy has no bfloat16.

    >>> element_bytes("bfloat16"), element_bytes("float64")
    (2, 8)
    """
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize


def numbers_of(data: bytes, dtype: str) -> np.ndarray:
    """Return the numbers in ``data``; bfloat16 comes as float32, of which it is the upper half."""
    if dtype != BFLOAT16:
        return np.frombuffer(data, dtype=dtype)
    return (np.frombuffer(data, dtype="uint16").astype("uint32") << 16).view("float32")


def bytes_of(numbers: np.ndarray, dtype: str) -> bytes:
    """Return ``numbers`` as bytes, for bfloat16 rounded to the nearest (to even when two are as near)."""
    if dtype != BFLOAT16:
        return numbers.tobytes()
    bits = numbers.astype("float32").view("uint32")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype("uint16").tobytes()
