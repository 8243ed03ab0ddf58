"""Lab 04, q1 and q2: orders of actions, judged by what they do: what is in flight, who waits, how large the bubble is."""

from collections import Counter

import numpy as np

from utils.checks.numbers import answers, in_words
from utils.checks.verdict import SubCheck, wrong
from utils.theory.pipeline import (
    BACKWARD,
    FORWARD,
    Action,
    Costs,
    Schedule,
    bubble_fraction,
    in_flight_micro_batches,
    simulate,
)

_SIZES = ((4, 8), (3, 7), (4, 2), (2, 5), (1, 3), (9, 12))
_COSTS = Costs(forward=1.0, backward_input=1.3, backward_weight=0.9)
_SLACK = 1e-9


def sizes(seed, number):
    """Ranks and micro-batches to ask for: m a multiple of p and not, fewer than p, and one pair that nobody knows."""
    rng = np.random.default_rng([seed, number])
    return [*map(list, _SIZES), [int(rng.integers(3, 7)), int(rng.integers(5, 12))]]


def orders(call, seed, number, which, name, kinds):
    """The student's order for each size as (ranks, micro-batches, what was given in words, Schedule), all complete."""
    questions = sizes(seed, number)
    came = answers(call, which, questions, name)
    return [
        (*question, in_words(name, question), _schedule(rows, *question, kinds, in_words(name, question)))
        for question, rows in zip(questions, came, strict=True)
    ]


def _schedule(rows, ranks, micro_batches, kinds, given):
    """The student's lists as a Schedule; CheckFailed unless every rank does every kind once for every micro-batch."""
    if not isinstance(rows, (list, tuple)) or len(rows) != ranks:
        number = len(rows) if isinstance(rows, (list, tuple)) else str(rows)
        raise wrong("An order has one list of actions for each rank.", given, number, f"{ranks} lists")
    possible = {(kind, micro_batch) for kind in kinds for micro_batch in range(micro_batches)}
    for rank, row in enumerate(rows):
        done = Counter(_action(action, rank, given) for action in row)
        for action in done:
            if action not in possible:
                raise wrong(
                    f"Rank {rank} has the action {action!r}, which does not exist here.", given,
                    look_at=f"kinds are {', '.join(kinds)}; micro-batches count from 0 to m − 1",
                )  # fmt: skip
        for kind, micro_batch in sorted(possible):
            if done[kind, micro_batch] != 1:
                raise wrong(
                    f"Rank {rank} does {kind}{micro_batch} {done[kind, micro_batch]} times; "
                    "every micro-batch passes every rank once, forward and backward.", given,
                )  # fmt: skip
    actions = tuple(tuple(Action(*action[:2]) for action in row) for row in rows)
    return Schedule("yours", actions, micro_batches)


def _action(action, rank, given):
    if isinstance(action, (list, tuple)) and len(action) >= 2 and isinstance(action[0], str) and type(action[1]) is int:
        return action[0], action[1]
    raise wrong(f"Rank {rank} has an action that is not (kind, micro-batch).", given, str(action))


def timed(schedule, costs, given):
    """`schedule` simulated; CheckFailed with the blocked actions if its ranks would wait for ever."""
    try:
        return simulate(schedule, costs)
    except ValueError as error:
        raise wrong("The ranks would wait for each other for ever.", given, str(error)) from None


def most_at_once(row, ends):
    """The most micro-batches between their F and their action of kind `ends`, and the action at which it happens."""
    now, peak, where = 0, 0, None
    for action in row:
        now += (action.kind == FORWARD) - (action.kind == ends)
        if now > peak:
            peak, where = now, action
    return peak, where


def check_in_flight(schedule, limit_of_rank, ends, given, sentence, look_at):
    """CheckFailed with `sentence` about the first rank on which more than its limit are between F and `ends`."""
    for rank, row in enumerate(schedule.ranks):
        peak, where = most_at_once(row, ends)
        limit = limit_of_rank(rank)
        if peak > limit:
            raise wrong(sentence.format(rank=rank, peak=peak, where=where), given, peak, f"at most {limit}", look_at)


def check_bubble(simulation, share, given, look_at):
    """CheckFailed if the bubble takes more than `share` of the total time."""
    if simulation.bubble_rate > share + _SLACK:
        raise wrong(
            "The bubble is larger than it need be.", given, f"{simulation.bubble_rate:.1%} of the total time",
            f"{share:.1%}", look_at,
        )  # fmt: skip


# q1 and q2

_BOTH = (FORWARD, BACKWARD)


def _gpipe(call, seed):
    return orders(call, seed, 10, 0, "gpipe_order", _BOTH)


def _one_f_one_b(call, seed):
    return orders(call, seed, 20, 0, "one_f_one_b_order", _BOTH)


def _complete(asked):
    def check(call, seed):
        asked(call, seed)

    return check


def _runs(asked):
    def check(call, seed):
        for _, _, given, schedule in asked(call, seed):
            timed(schedule, _COSTS, given)

    return check


def _smallest_bubble(asked, look_at):
    def check(call, seed):
        for ranks, micro_batches, given, schedule in asked(call, seed):
            simulation = timed(schedule, _COSTS, given)
            check_bubble(simulation, bubble_fraction(ranks, micro_batches), given, look_at)

    return check


def _forwards_first(call, seed):
    for _, micro_batches, given, schedule in _gpipe(call, seed):
        for rank, row in enumerate(schedule.ranks):
            early = [str(action) for action in row[:micro_batches] if action.kind == BACKWARD]
            if early:
                raise wrong(
                    f"Rank {rank} does {early[0]} before its last forward.", given,
                    look_at="GPipe: all forwards of a rank, then all of its backwards",
                )  # fmt: skip


def _few_in_flight(call, seed):
    for ranks, micro_batches, given, schedule in _one_f_one_b(call, seed):
        check_in_flight(
            schedule,
            lambda rank, p=ranks, m=micro_batches: in_flight_micro_batches("1f1b", p, m, rank),
            BACKWARD, given, "At {where} rank {rank} has {peak} micro-batches in flight.",
            "rank r runs p − 1 − r forwards ahead, then one forward and one backward in turn",
        )  # fmt: skip


QUESTIONS = {
    "q1": (
        SubCheck("every micro-batch, every rank, once", _complete(_gpipe)),
        SubCheck("all forwards first", _forwards_first),
        SubCheck("no rank waits for ever", _runs(_gpipe)),
        SubCheck(
            "the bubble of GPipe",
            _smallest_bubble(_gpipe, "all ranks take the micro-batches in one order, forward; and in one order, backward"),
        ),
    ),
    "q2": (
        SubCheck("every micro-batch, every rank, once", _complete(_one_f_one_b)),
        SubCheck("at most p − r in flight on rank r", _few_in_flight),
        SubCheck("no rank waits for ever", _runs(_one_f_one_b)),
        SubCheck(
            "the bubble of GPipe, no more",
            _smallest_bubble(_one_f_one_b, "a rank with too few forwards ahead waits for every single backward"),
        ),
    ),
}
