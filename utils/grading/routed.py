"""Carry the messages between ranks that run a student's code, and keep the account that nobody can forge.

Each rank is a process with one socket to this router.  A send is a rendezvous: it ends when the receiver has asked for
it, as for large tensors under gloo and NCCL; so a ring in which everybody sends first is found to be stuck at once.
"""

from __future__ import annotations

import base64
import selectors
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from utils.grading import plain_data
from utils.grading.plain_data import BadData, Closed

MOST_MESSAGES = 100_000


class StudentError(AssertionError):
    """The student's code did not do what was asked; the message is for the student."""


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


@dataclass(frozen=True)
class RoutedRun:
    """What came of a call on every rank: the return values and all messages, in the order in which they were matched."""

    values: list[Any]
    messages: tuple[Message, ...]

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


@dataclass
class _Post:
    rank: int
    number: int
    kind: str
    peer: int
    tag: int
    dtype: str
    elements: int
    data: bytes
    clock: int
    step: int | None = None
    answer: str = ""


@dataclass
class _Rank:
    clock: int = 0
    posts: dict[int, _Post] = field(default_factory=dict)
    waits_for: int | None = None
    finished: bool = False
    value: Any = None


class Router:
    """The state of one run; :meth:`run` is all there is to call."""

    def __init__(self, channels: list, call_ids: list[str], deadline: float):
        self._channels, self._ids, self._deadline = channels, call_ids, deadline
        self._ranks = [_Rank() for _ in channels]
        self._queues: dict[tuple, deque[_Post]] = defaultdict(deque)
        self._messages: list[Message] = []

    def run(self) -> RoutedRun:
        """Carry messages until every rank has returned.

        Raises ``StudentError`` if a rank raises, ends, is stuck, is too slow, or sends what makes no sense.
        """
        with selectors.DefaultSelector() as selector:
            for rank, channel in enumerate(self._channels):
                selector.register(channel, selectors.EVENT_READ, rank)
            while not all(rank.finished for rank in self._ranks):
                ready = selector.select(max(0.0, self._deadline - time.monotonic()))
                if not ready:
                    raise StudentError(f"not finished in time; {self._who_waits() or 'all ranks were computing'}")
                for key, _ in ready:
                    self._read(key.data)
                    if self._ranks[key.data].finished:
                        selector.unregister(key.fileobj)
                self._look_for_deadlock()
        for queue in self._queues.values():
            for post in queue:
                raise StudentError(f"rank {post.rank} started a {post.kind} {_direction(post)} that nobody answered")
        return RoutedRun([rank.value for rank in self._ranks], tuple(self._messages))

    def _read(self, rank: int) -> None:
        try:
            frame = plain_data.receive(self._channels[rank], self._deadline)
            if frame.get("op") in ("send", "recv"):
                self._post(rank, frame)
            elif frame.get("op") == "wait":
                self._wait(rank, frame)
            elif frame.get("op") == "result" and frame.get("id") == self._ids[rank]:
                if "error" in frame:
                    raise StudentError(f"rank {rank}: {str(frame['error'])[:600]}")
                self._ranks[rank].value = plain_data.decode(frame.get("value"))
                self._ranks[rank].finished = True
            else:
                raise BadData("a message out of turn")
        except Closed:
            raise StudentError(f"rank {rank}: its process ended") from None
        except TimeoutError:
            raise StudentError(f"rank {rank}: no complete message in time") from None
        except BadData as error:
            raise StudentError(f"rank {rank}: sent {error}") from None

    def _post(self, rank: int, frame: dict) -> None:
        number, peer, tag = frame.get("number"), frame.get("peer"), frame.get("tag")
        dtype, elements, data = frame.get("dtype"), frame.get("elements"), frame.get("data")
        if not (type(number) is int and type(peer) is int and type(tag) is int and type(elements) is int
                and type(data) is str and dtype in plain_data.DTYPES and number not in self._ranks[rank].posts):
            raise BadData("a message that is not in order")
        if not 0 <= peer < len(self._ranks) or peer == rank:
            raise StudentError(f"rank {rank}: {frame['op']} with rank {peer}; the others are 0 to {len(self._ranks) - 1}")
        if len(self._messages) > MOST_MESSAGES:
            raise StudentError(f"more than {MOST_MESSAGES} messages")
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            raise BadData("a message whose data is damaged") from None
        if frame["op"] == "send" and len(raw) != elements * np.dtype(dtype).itemsize:
            raise BadData("a message whose data does not fit its size")
        post = _Post(rank, number, frame["op"], peer, tag, dtype, elements, raw, self._ranks[rank].clock)
        self._ranks[rank].posts[number] = post
        source, target = (rank, peer) if post.kind == "send" else (peer, rank)
        other = self._queues[("recv" if post.kind == "send" else "send", source, target, tag)]
        if other:
            self._match(*((post, other.popleft()) if post.kind == "send" else (other.popleft(), post)))
        else:
            self._queues[(post.kind, source, target, tag)].append(post)

    def _match(self, sent: _Post, wanted: _Post) -> None:
        if (sent.elements, sent.dtype) != (wanted.elements, wanted.dtype):
            raise StudentError(f"rank {sent.rank} sent {sent.elements} elements of {sent.dtype} to rank {wanted.rank}, which "
                               f"had made room for {wanted.elements} of {wanted.dtype}")
        step = max(sent.clock, wanted.clock) + 1
        sent.step = wanted.step = step
        wanted.answer = base64.b64encode(sent.data).decode()
        values = np.frombuffer(sent.data, dtype=sent.dtype)
        self._messages.append(Message(sent.rank, wanted.rank, sent.tag, values, step))
        for post in (sent, wanted):
            if self._ranks[post.rank].waits_for == post.number:
                self._answer(post)

    def _wait(self, rank: int, frame: dict) -> None:
        post = self._ranks[rank].posts.get(frame.get("number")) if type(frame.get("number")) is int else None
        if post is None:
            raise BadData("a wait for a message that it never started")
        self._ranks[rank].waits_for = post.number
        if post.step is not None:
            self._answer(post)

    def _answer(self, post: _Post) -> None:
        state = self._ranks[post.rank]
        state.clock, state.waits_for = max(state.clock, post.step), None
        try:
            self._channels[post.rank].settimeout(max(1e-3, self._deadline - time.monotonic()))
            plain_data.send(self._channels[post.rank], {"number": post.number, "data": post.answer})
        except OSError:
            raise StudentError(f"rank {post.rank}: its process ended") from None
        post.data, post.answer = b"", ""

    def _look_for_deadlock(self) -> None:
        unfinished = [rank for rank in self._ranks if not rank.finished]
        if unfinished and all(rank.waits_for is not None for rank in unfinished):
            raise StudentError(f"stuck: {self._who_waits()}")

    def _who_waits(self) -> str:
        waiting = [f"rank {number} waits in {state.posts[state.waits_for].kind} {_direction(state.posts[state.waits_for])}"
                   for number, state in enumerate(self._ranks) if state.waits_for is not None]
        done = [str(number) for number, state in enumerate(self._ranks) if state.finished]
        return ", ".join(waiting + ([f"rank {', '.join(done)} has returned"] if done and waiting else []))


def _direction(post: _Post) -> str:
    return f"{'to' if post.kind == 'send' else 'from'} rank {post.peer}"
