"""Lab 04, q3: a student's simulator, held to the rules action by action, so that a wrong time names the rule."""

import math

import numpy as np

from utils.checks.numbers import answers
from utils.checks.verdict import SubCheck, outputs_of, wrong
from utils.theory.pipeline import BACKWARD, FORWARD, Action, Costs, Schedule, build, simulate

_SECONDS = {FORWARD: 1.0, BACKWARD: 2.0}


def _rows(schedule):
    return [[[action.kind, action.micro_batch] for action in row] for row in schedule.ranks]


def _schedule(rows):
    micro_batches = sum(kind == FORWARD for kind, _ in rows[0])
    return Schedule("given", tuple(tuple(Action(*action) for action in row) for row in rows), micro_batches)


def _costs(seconds, transfer):
    """BW in one piece: how it is shared out between B and W does not matter here."""
    half = seconds[BACKWARD] / 2
    return Costs(seconds[FORWARD], half, half, communication=transfer)


def _shuffled(rng, ranks, micro_batches):
    """GPipe with the micro-batches in an order of their own on each rank: long waits, and no deadlock."""
    rows = []
    for _ in range(ranks):
        numbers = [rng.permutation(micro_batches).tolist() for _ in range(2)]
        rows.append([[kind, i] for kind, order in zip((FORWARD, BACKWARD), numbers) for i in order])
    return rows


def _questions(seed, with_transfer):
    rng = np.random.default_rng([seed, 30, int(with_transfer)])
    seconds = {FORWARD: float(rng.uniform(0.5, 1.5)), BACKWARD: float(rng.uniform(1.6, 3))}
    transfer = float(rng.uniform(0.1, 0.4)) if with_transfer else 0.0
    rows = [_rows(build(name, p, m)) for name, p, m in (("naive", 3, 2), ("gpipe", 3, 4), ("1f1b", 4, 7), ("1f1b", 4, 2))]
    questions = [[order, _SECONDS, 0.5 * with_transfer] for order in rows]
    questions += [[_shuffled(rng, 4, 5), seconds, transfer], [rows[2], seconds, transfer]]
    slow = 9.0 * with_transfer  # messages that take longer than the work, and a rank that gets none
    return questions + [[rows[1], _SECONDS, slow], [_rows(build("gpipe", 1, 2)), _SECONDS, slow]]


def _asked(call, questions):
    given = f"{len(questions)} orders, one after the other"
    outputs = outputs_of(call, "arithmetic.each", 1, given, which=0, questions=questions)
    return zip(questions, outputs["results"][0], strict=True)


def _in_words(order, seconds, transfer):
    rows = "; ".join(f"rank {rank}: {_names(row[:6])}{' …' if len(row) > 6 else ''}" for rank, row in enumerate(order))
    times = ", ".join(f"{kind} {number:.3g} s" for kind, number in seconds.items())
    return f"{rows}; {times}, transfer {transfer:.3g} s"


def _names(row):
    return " ".join(f"{kind}{i}" for kind, i in row)


def _every_action(with_transfer):
    """Each action begins when its rank is free and what it needs has arrived, and lasts as long as its kind takes."""

    def check(call, seed):
        for (order, seconds, transfer), came in _asked(call, _questions(seed, with_transfer)):
            given = _in_words(order, seconds, transfer)
            if came is None:
                raise wrong("simulate finds a deadlock in an order that runs.", given, "None",
                            look_at="go round the ranks again until nobody gets any further")  # fmt: skip
            times = _times(came, order, given)
            for rank, row in enumerate(order):
                for at, action in enumerate(row):
                    _check_action(rank, at, action, times, order, seconds, transfer, given)

    return check


def _times(came, order, given):
    """{(rank, kind, micro-batch): (start, end)} from the student's lists."""
    shape = [len(row) for row in came]
    if shape != [len(row) for row in order]:
        raise wrong("simulate must return (start, end) for each action of each rank.", given, f"{shape} pairs")
    return {
        (rank, kind, i): (float(start), float(end))
        for rank, (row, pairs) in enumerate(zip(order, came))
        for (kind, i), (start, end) in zip(row, pairs)
    }


def _check_action(rank, at, action, times, order, seconds, transfer, given):
    kind, i = action
    start, end = times[rank, kind, i]
    name = f"{kind}{i} on rank {rank}"
    if not math.isclose(end - start, seconds[kind]):
        raise wrong(f"{name} does not last as long as its kind takes.", given, end - start, seconds[kind])
    free = times[(rank, *order[rank][at - 1])][1] if at else 0.0
    neighbour = rank - 1 if kind == FORWARD else rank + 1
    arrived, sent = 0.0, None
    if 0 <= neighbour < len(order):
        sent = times[neighbour, kind, i][1]
        arrived = sent + transfer
    if start < free - 1e-9:
        raise wrong(f"{name} starts before the rank's action before it has ended.", given, start, free)
    if sent is not None and start < sent - 1e-9:
        raise wrong(
            f"{name} starts before rank {neighbour} has done its {kind}{i}.", given, start, arrived,
            "a forward needs the activation of the rank before, a backward the gradient of the rank after",
        )  # fmt: skip
    if start < arrived - 1e-9:
        raise wrong(
            f"{name} starts before the message from rank {neighbour} has arrived.", given, start, arrived,
            f"the transfer takes {transfer:.3g} s",
        )  # fmt: skip
    if start > max(free, arrived) + 1e-9:
        look_at = "an action starts as early as it can: rank free, message there"
        if neighbour == len(order):
            look_at = "the last rank's backward needs its own forward only: nothing is transferred"
        raise wrong(f"{name} starts later than it could.", given, start, max(free, arrived), look_at)


def _deadlocks(call, seed):
    """Orders in which the ranks wait for ever, and one that only looks like it."""
    micro_batches = int(np.random.default_rng([seed, 32]).integers(3, 7))
    rows = _rows(build("1f1b", 3, micro_batches))
    at_once = [row[1:] + row[:1] for row in _rows(build("gpipe", 1, 2))]  # F1 BW0 BW1 F0
    crossed = [rows[0], rows[1], [*rows[2][2:4], *rows[2][:2], *rows[2][4:]]]  # F1 BW1 F0 BW0; rank 0 can give F1
    blocked = [[["F", 0], ["BW", 0], ["F", 1], ["BW", 1]], [["F", 1], ["BW", 1], ["F", 0], ["BW", 0]]]
    last_only = [*_rows(build("gpipe", 2, 2)), [["F", 0], ["BW", 1], ["F", 1], ["BW", 0]]]
    questions = [[order, _SECONDS, 0.0] for order in (blocked, last_only, at_once, crossed)]
    for (order, seconds, transfer), came in _asked(call, questions):
        if _runs(order) == (came is None):
            sentence = "simulate finds a deadlock in an order that runs." if came is None else (
                "simulate does not see that the ranks wait for ever."
            )  # fmt: skip
            look_at = "when nobody gets any further and actions are left, return None"
            if order in (last_only, at_once):
                look_at = "the last rank's BW needs the F of the same micro-batch on the same rank"
            given = _in_words(order, seconds, transfer)
            raise wrong(sentence, given, "None" if came is None else "times", look_at=look_at)


def _runs(rows):
    try:
        simulate(_schedule(rows))
    except ValueError:
        return False
    return True


def _bubbles(call, seed):
    """Idle time against the total, from times that are given."""
    rng = np.random.default_rng([seed, 33])
    seconds = {FORWARD: float(rng.uniform(0.5, 1.5)), BACKWARD: float(rng.uniform(1.6, 3))}
    sizes = (("1f1b", 4, 8), ("gpipe", 3, 7), ("naive", 3, 2), ("1f1b", 1, 3))
    cases = [simulate(build(*size), _costs(seconds, 0.3 * (number % 2))) for number, size in enumerate(sizes)]
    questions = [[[[[action.start, action.end] for action in row] for row in case.timeline]] for case in cases]
    came = answers(call, 1, [*questions, [_UNEVEN]], "bubble")
    of_uneven = came.pop()
    for value, case, (name, ranks, micro_batches) in zip(came, cases, sizes, strict=True):
        given = f"the times of {name}, {ranks} ranks, {micro_batches} micro-batches"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong("bubble must return a number.", given, str(value), case.bubble_rate)
        if math.isclose(value, case.bubble_rate, rel_tol=1e-9, abs_tol=1e-9):
            continue
        look_at = "idle time of a rank: the total time less its time at work; divide it by the total time"
        if math.isclose(value, case.bubble_over_ideal):
            look_at = "this is idle time against the work alone; asked for is its share of the total time"
        raise wrong("bubble returns a wrong number.", given, value, case.bubble_rate, look_at)
    _judge_uneven(of_uneven)


_UNEVEN = [[[1.0, 2.0], [3.0, 4.5]], [[2.0, 8.0]], [[0.5, 1.5], [1.5, 3.0], [6.0, 6.5]]]
"""Times of ranks with different work; nobody starts at 0, and neither the first rank nor the last ends last."""


def _judge_uneven(value):
    total = max(end for row in _UNEVEN for _, end in row)
    idle = [total - sum(end - start for start, end in row) for row in _UNEVEN]
    right = sum(idle) / len(idle) / total
    if not isinstance(value, float) or not math.isclose(value, right):
        look_at = "the total is from 0 to the last end of all ranks; the idle time is an average over the ranks"
        raise wrong("bubble returns a wrong number for ranks with different work.", f"times {_UNEVEN}", value, right, look_at)


QUESTIONS = {
    "q3": (
        SubCheck("start and end of every action", _every_action(with_transfer=False)),
        SubCheck("messages that take time", _every_action(with_transfer=True)),
        SubCheck("deadlocks", _deadlocks),
        SubCheck("the bubble", _bubbles),
    ),
}
