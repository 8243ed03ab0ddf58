"""Measure an all-reduce on real ranks, in the terms of `utils.theory.collectives`: elements, bytes, steps."""
from dataclasses import dataclass
from functools import cache

from utils import launch
from utils.ranks.compare import paired_calls
from utils.theory.units import BYTES_PER_ELEMENT
from utils.widgets import on_ranks

ELEMENT_BYTES = BYTES_PER_ELEMENT["fp32"]
MOST_RANKS, MOST_BYTES = 8, 64 * 10**6


@dataclass(frozen=True)
class AllReduceRun:
    """What one all-reduce of `elements` fp32 elements did on real ranks; the tuples are indexed by rank.

    sent_bytes   bytes that the rank handed to send, by definition: without headers
    wire_bytes   bytes that the kernel counted on the rank's sockets; None where it does not tell
    sends        elements of each message that the rank sent, in order
    steps        messages that had to follow one another, see `messages_in_a_row`
    seconds      from the first call to the end of the last one, over all ranks
    exact        every rank ended with the exact sum
    """

    algorithm: str
    world_size: int
    elements: int
    sent_bytes: tuple[int, ...]
    wire_bytes: tuple[int, ...] | None
    sends: tuple[tuple[int, ...], ...]
    steps: int
    seconds: float
    exact: bool


def measure_all_reduce(algorithm: str, elements: int, world_size: int) -> AllReduceRun:
    """Run `algorithm` of utils.parallel.collectives on `world_size` real ranks and count what they did.

    Raises ValueError where a laptop would suffer, RankError when a rank fails.
    """
    if world_size > MOST_RANKS:
        raise ValueError(f"Real ranks are processes on this machine, so the widget starts at most {MOST_RANKS} of them; "
                         f"{world_size} were asked for. Choose N = {MOST_RANKS} or fewer, then run again.")
    if elements * ELEMENT_BYTES > MOST_BYTES:
        raise ValueError(f"The widget runs messages of at most {MOST_BYTES // 10**6} MB on real ranks; "
                         f"{elements * ELEMENT_BYTES / 10**6:,.0f} MB were asked for. Choose a smaller message, then run again.")
    run = launch(on_ranks.all_reduce, algorithm, elements, world_size=world_size, timeout=60, echo=False)
    wire = run.wire().sum(axis=1, skipna=False)
    calls = [call for record in run.records for call in record.calls]
    return AllReduceRun(
        algorithm, world_size, elements,
        sent_bytes=tuple(round(sent) for sent in run.sent_bytes()),
        wire_bytes=None if wire.isna().any() else tuple(int(sent) for sent in wire),
        sends=tuple(tuple(call.elements for call in record.calls if call.op == "send") for record in run.records),
        steps=messages_in_a_row(run.records),
        seconds=max(call.end for call in calls) - min(call.start for call in calls) if calls else 0.0,
        exact=all(run.results))


def messages_in_a_row(records) -> int:
    """How many messages of a run had to follow one another: the measured number of steps.

    A message follows another if its sender or its receiver had finished with the other one when it turned to this one.
    """
    messages = [message for sends, recvs in paired_calls(records).values() for message in zip(sends, recvs, strict=False)]
    at_rank = {}
    for number, message in enumerate(messages):
        for call in message:
            at_rank.setdefault(call.rank, []).append((call, number))

    @cache
    def place_in_row(number):
        earlier = {other for call in messages[number] for before, other in at_rank[call.rank]
                   if before.end is not None and before.end <= call.start}
        return 1 + max(map(place_in_row, earlier), default=0)

    return max(map(place_in_row, range(len(messages))), default=0)
