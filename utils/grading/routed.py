"""Carry the messages between ranks that run a student's code, and keep the account that nobody can forge.

Each rank is a process with one socket to this router.  A send is a rendezvous: it ends when the receiver has asked for
it, as for large tensors under gloo and NCCL; so a ring in which everybody sends first is found to be stuck at once.
All times are this process's own.
"""

from __future__ import annotations

import base64
import selectors
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from utils.grading import plain_data
from utils.grading.may_call import COLLECTIVES, EVERYTHING
from utils.grading.messages import Call, Mark, Message, RoutedRun, StudentError, combine, numbers_of
from utils.grading.plain_data import BadData, Closed
from utils.grading.routed_calls import call_from

MOST_CALLS = 100_000
MOST_BYTES = 256_000_000
"""What the ranks of one run may send in all: the router keeps it, in the grader's memory."""


@dataclass
class _Rank:
    clock: int = 0
    calls: dict[int, Call] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    collectives: dict[tuple, int] = field(default_factory=lambda: defaultdict(int))
    waits_for: Call | None = None
    finished: bool = False
    value: Any = None


class Router:
    """The state of one run; :meth:`run` is all there is to call.

    Arguments:
        channels: a socket for each rank.
        call_ids: what each rank's result must carry.
        deadline: when the run is over (``time.monotonic``).
        allowed: what the ranks may call; see :mod:`utils.grading.may_call`.
    """

    def __init__(
        self, channels: list, call_ids: list[str], deadline: float, allowed: tuple[str, ...] = EVERYTHING
    ):
        self._channels, self._ids, self._deadline, self._allowed = channels, call_ids, deadline, allowed
        self._ranks = [_Rank() for _ in channels]
        self._waiting: dict[tuple, deque[Call]] = defaultdict(deque)
        self._together: dict[tuple, dict[int, Call]] = defaultdict(dict)
        self._messages: list[Message] = []
        self._bytes = 0

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
                    raise StudentError(
                        f"not finished in time; {self._who_waits() or 'all ranks were computing'}", "timeout"
                    )
                for key, _ in ready:
                    self._read(key.data)
                    if self._ranks[key.data].finished:
                        selector.unregister(key.fileobj)
                self._look_for_deadlock()
        for call in (call for rank in self._ranks for call in rank.calls.values() if call.step is None):
            raise StudentError(
                f"rank {call.rank} started a {call} that nobody answered", "difference", call.rank
            )
        return RoutedRun(
            [rank.value for rank in self._ranks],
            tuple(self._messages),
            tuple(tuple(rank.calls.values()) for rank in self._ranks),
            tuple(tuple(r.marks) for r in self._ranks),
        )

    def _read(self, rank: int) -> None:
        try:
            frame = plain_data.receive(self._channels[rank], self._deadline)
            if frame.get("op") in ("send", "recv", *COLLECTIVES):
                self._call(rank, frame)
            elif frame.get("op") == "wait":
                self._wait(rank, frame)
            elif frame.get("op") == "poll":
                self._poll(rank, frame)
            elif frame.get("op") == "mark":
                self._mark(rank, frame)
            elif frame.get("op") == "result" and frame.get("id") == self._ids[rank]:
                if "error" in frame:
                    raise StudentError(f"rank {rank}: {str(frame['error'])[:600]}", "raised", rank)
                self._ranks[rank].value = plain_data.decode(frame.get("value"))
                self._ranks[rank].finished = True
            else:
                raise BadData("a message out of turn")
        except Closed:
            raise StudentError(f"rank {rank}: its process ended", "killed", rank) from None
        except TimeoutError:
            raise StudentError(f"rank {rank}: no complete message in time", "timeout", rank) from None
        except BadData as error:
            raise StudentError(f"rank {rank}: sent {error}", "unpicklable", rank) from None

    def _call(self, rank: int, frame: dict) -> None:
        state = self._ranks[rank]
        if frame.get("number") in state.calls or len(state.calls) >= MOST_CALLS:
            raise BadData("a message that is not in order")
        call = call_from(frame, rank, len(self._ranks), self._allowed, state.clock)
        self._bytes += len(call.data)
        if self._bytes > MOST_BYTES:
            raise StudentError(f"the ranks sent more than {MOST_BYTES / 1e6:g} MB", "raised", rank)
        state.calls[call.number] = call
        if call.op == "send":
            self._send(call)
        elif call.op == "recv":
            self._recv(call)
        else:
            self._collective(call)

    def _send(self, call: Call) -> None:
        where = (call.group, call.ranks, call.tag)
        for wanted in (("recv", call.rank, call.peer, where), ("recv", -1, call.peer, where)):
            if self._waiting[wanted]:
                self._match(call, self._waiting[wanted].popleft())
                return
        self._waiting[("send", call.rank, call.peer, where)].append(call)

    def _recv(self, call: Call) -> None:
        where = (call.group, call.ranks, call.tag)
        for source in [call.peer] if call.peer >= 0 else call.ranks:
            if self._waiting[("send", source, call.rank, where)]:
                self._match(self._waiting[("send", source, call.rank, where)].popleft(), call)
                return
        self._waiting[("recv", call.peer, call.rank, where)].append(call)

    def _match(self, sent: Call, wanted: Call) -> None:
        if (sent.elements, sent.dtype) != (wanted.elements, wanted.dtype):
            raise StudentError(
                f"rank {sent.rank} sent {sent.elements} elements of {sent.dtype} to rank {wanted.rank}, which "
                f"had made room for {wanted.elements} of {wanted.dtype}",
                "difference",
                sent.rank,
            )
        step = max(sent.clock, wanted.clock) + 1
        values = numbers_of(sent.data, sent.dtype)
        self._messages.append(Message(sent.rank, wanted.rank, sent.tag, values, step, len(sent.data)))
        wanted.answer, wanted.source = sent.data, sent.ranks.index(sent.rank)
        self._completed([sent, wanted], step)

    def _collective(self, call: Call) -> None:
        group = (call.group, call.ranks)
        counted = self._ranks[call.rank].collectives
        calls = self._together[(*group, counted[group])]
        counted[group] += 1
        calls[call.rank] = call
        first = next(iter(calls.values()))
        same = ("op", "dtype", "root", "reduce") + (() if call.op == "all_to_all" else ("elements",))
        if any(getattr(call, name) != getattr(first, name) for name in same):
            raise StudentError(
                f"the ranks did not call what belongs together: rank {first.rank} {first}, rank {call.rank} "
                f"{call}",
                "difference",
                call.rank,
            )
        if len(calls) == len(call.ranks):
            combine([calls[rank] for rank in call.ranks])
            self._completed(list(calls.values()), max(one.clock for one in calls.values()) + 1)

    def _completed(self, calls: list[Call], step: int) -> None:
        for call in calls:
            call.step, call.data = step, b""
            if self._ranks[call.rank].waits_for is call:
                self._answer(call)

    def _wait(self, rank: int, frame: dict) -> None:
        call = self._ranks[rank].calls.get(frame.get("number")) if type(frame.get("number")) is int else None
        if call is None or call.waited is not None:
            raise BadData("a wait for a call that it did not make")
        call.waited = time.monotonic()
        self._ranks[rank].waits_for = call
        if call.step is not None:
            self._answer(call)

    def _poll(self, rank: int, frame: dict) -> None:
        call = self._ranks[rank].calls.get(frame.get("number")) if type(frame.get("number")) is int else None
        if call is None:
            raise BadData("a question about a call that it did not make")
        self._tell(rank, {"number": call.number, "matched": call.step is not None})

    def _answer(self, call: Call) -> None:
        state = self._ranks[call.rank]
        state.clock, state.waits_for = max(state.clock, call.step), None
        data = base64.b64encode(call.answer).decode()
        self._tell(call.rank, {"number": call.number, "source": call.source, "data": data})
        call.answer = b""

    def _tell(self, rank: int, fields: dict) -> None:
        try:
            self._channels[rank].settimeout(max(1e-3, self._deadline - time.monotonic()))
            plain_data.send(self._channels[rank], fields)
        except OSError:
            raise StudentError(f"rank {rank}: its process ended", "killed", rank) from None

    def _mark(self, rank: int, frame: dict) -> None:
        kind, number, name, tags = (frame.get(key) for key in ("kind", "number", "name", "tags"))
        tags = plain_data.decode(tags)
        if (
            kind not in ("span", "done")
            or type(number) is not int
            or type(name) is not str
            or type(tags) is not dict
        ):
            raise BadData("a mark that is not in order")
        if len(self._ranks[rank].marks) >= MOST_CALLS:
            raise BadData(f"more than {MOST_CALLS} marks")
        self._ranks[rank].marks.append(Mark(kind, number, name, tags, time.monotonic()))

    def _look_for_deadlock(self) -> None:
        unfinished = [rank for rank in self._ranks if not rank.finished]
        if unfinished and all(rank.waits_for is not None for rank in unfinished):
            raise StudentError(f"stuck: {self._who_waits()}", "deadlock")

    def _who_waits(self) -> str:
        waiting = [
            f"rank {number} waits in {state.waits_for}"
            for number, state in enumerate(self._ranks)
            if state.waits_for
        ]
        done = [str(number) for number, state in enumerate(self._ranks) if state.finished]
        return ", ".join(waiting + ([f"rank {', '.join(done)} has returned"] if done and waiting else []))
