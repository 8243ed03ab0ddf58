"""Time a schedule: when each action starts and ends, the bubble, what is in flight, what is sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, KINDS, Schedule, check_complete
from .arguments import non_negative

COST_NAMES = ("forward", "backward_input", "backward_weight")


@dataclass(frozen=True)
class Costs:
    """Seconds (or any other unit of time) that a rank spends on one micro-batch.

    forward, backward_input, backward_weight: T_F, T_B, T_W. A number is for all chunks of a rank
        together and is divided among them; a sequence gives each stage its own.
    forward_and_backward: a DualPipe pair, F&B; None is T_F + T_B + T_W, no gain from running them together.
    communication: from the end of an action until its result is on the next rank; a number, or a
        function of (from_stage, to_stage, micro_batch). Sending takes no time from the sender.
    """

    forward: float | Sequence = 1.0
    backward_input: float | Sequence = 1.0
    backward_weight: float | Sequence = 1.0
    forward_and_backward: float | None = None
    communication: float | Callable = 0.0

    def __post_init__(self):
        for name in COST_NAMES:
            for value in np.atleast_1d(getattr(self, name)).tolist():
                non_negative(name, value)
        if self.forward_and_backward is not None:
            non_negative("forward_and_backward", self.forward_and_backward)
        if not callable(self.communication):
            non_negative("communication", self.communication)


UNIT_COSTS = Costs()
"""T_F = T_B = T_W = 1 and no communication."""


class TimedAction(NamedTuple):
    """An action with its start and end."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """What `simulate` found; times in the unit of the costs.

    timeline: for each rank, its TimedActions in order.
    """

    schedule: Schedule
    timeline: tuple
    messages_sent: np.ndarray

    @property
    def total_time(self):
        """From the first start to the last end, over all ranks."""
        return max(row[-1].end for row in self.timeline)

    @property
    def span_time(self):
        """The longest time that any rank needs from its own first start to its own last end.

        Equal to `total_time` when the first rank also ends last, as under 1F1B. Under ZB-H2 and ZB-V all
        ranks are as long busy and merely shifted, and steps follow one another without a gap.
        """
        return max(row[-1].end - row[0].start for row in self.timeline)

    @property
    def busy_time(self):
        """Time at work, for each rank."""
        return np.array([sum(action.end - action.start for action in row) for row in self.timeline])

    @property
    def bubble_time(self):
        """`span_time` less the work of the busiest rank."""
        return float(self.span_time - self.busy_time.max())

    @property
    def bubble_rate(self):
        """The bubble as a share of the time that the step takes, as GPipe and Zero Bubble count it."""
        return self.bubble_time / self.span_time

    @property
    def bubble_over_ideal(self):
        """The bubble against the time of the work alone, as Narayanan et al. 2021 count it: (p − 1)/m."""
        return float(self.bubble_time / self.busy_time.max())

    @property
    def peak_in_flight(self):
        """For each rank the most micro-batches that wait for their B, in whole ranks' layers."""
        return self.peak_memory(before_backward=1.0, before_weight=0.0)

    def peak_memory(self, before_backward, before_weight=0.0):
        """Peak of activations on each rank, in the unit of the arguments, which are per micro-batch and rank.

        before_backward: what F leaves and B frees, M_B. before_weight: what B leaves for W, M_W. While B
        runs, M_B is still there.
        """
        change = {FORWARD: before_backward, BACKWARD: -before_backward, BACKWARD_WEIGHT: -before_weight}
        change[BACKWARD_INPUT] = before_weight - before_backward
        rows = ([change[action.kind] for action in row] for row in self.timeline)
        return np.array([np.cumsum(row).max() for row in rows]) / self.schedule.visits


def simulate(schedule, costs=UNIT_COSTS):
    """Run a Schedule under Costs: every rank does its actions in order, each as early as it can.

    F waits for the F of the stage before; B waits for the B of the stage after, and for its own F; W waits
    for its own B. Returns a Simulation. Raises ValueError for a schedule that is not complete, and for an
    order in which the ranks would wait for each other forever: the sentence names the blocked actions.
    """
    check_complete(schedule)
    steps = _steps(schedule, costs)
    delay = costs.communication if callable(costs.communication) else None
    p, m = schedule.pipeline, schedule.micro_batches
    ended = [None] * (len(KINDS) * schedule.stages * m)
    clock, position, timeline = [0.0] * p, [0] * p, [[] for _ in range(p)]
    sent = [0] * p
    waiting = {}
    chunks = range(schedule.chunks)
    steps_by_rank = [[steps[schedule.stage(rank, chunk)] for chunk in chunks] for rank in range(p)]

    def arrival(actions, steps_of_chunk, now):
        """When all that the actions need has arrived, and the first result that is missing."""
        for kind, micro_batch, chunk, _ in actions:
            for need, transfer, edge in steps_of_chunk[chunk][kind].needs:
                end = ended[need + micro_batch]
                if end is None:
                    return now, need + micro_batch
                if edge and delay:
                    transfer = delay(*edge, micro_batch)
                now = max(now, end + transfer)
        return now, None

    runnable = list(range(p))
    while runnable:
        rank = runnable.pop()
        row, mine, now, at = schedule.ranks[rank], timeline[rank], clock[rank], position[rank]
        steps_of_chunk = steps_by_rank[rank]
        while at < len(row):
            paired = row[at].paired
            together = row[at : at + 1 + paired]
            start, missing = arrival(together, steps_of_chunk, now)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            now = start
            for kind, micro_batch, chunk, _ in together:
                step = steps_of_chunk[chunk][kind]
                start, now = now, now + (step.paired_duration if paired else step.duration)
                mine.append(TimedAction(kind, micro_batch, chunk, start, now))
                sent[rank] += step.sends
            for kind, micro_batch, chunk, _ in together:
                result = steps_of_chunk[chunk][kind].result + micro_batch
                ended[result] = now
                if result in waiting:
                    runnable.extend(waiting.pop(result))
            at += len(together)
        clock[rank], position[rank] = now, at
    blocked = [rank for rank in range(p) if position[rank] < len(schedule.ranks[rank])]
    if blocked:
        raise ValueError(_deadlock_sentence(schedule, steps, blocked, position, ended))
    return Simulation(schedule, tuple(map(tuple, timeline)), np.array(sent))


def lower_bound_time(schedule, costs=UNIT_COSTS):
    """No order of the same work on the same ranks is faster: the busiest rank's work, nothing sent."""
    stage_times = sum(np.array(cost_of_stages(name, costs, schedule)) for name in COST_NAMES)
    work = np.zeros(schedule.pipeline)
    for micro_batch in (0, schedule.micro_batches - 1):
        for stage in range(schedule.stages):
            work[schedule.rank_of(stage, micro_batch)] += stage_times[stage] / 2
    return schedule.micro_batches * work.max()


def cost_of_stages(name, costs, schedule):
    """One of COST_NAMES for each stage: a rank's cost is divided among its chunks. ValueError for another count of stages."""
    value = getattr(costs, name)
    if np.ndim(value) == 0:
        return [value / schedule.visits] * schedule.stages
    if len(value) != schedule.stages:
        raise ValueError(
            f"{name} must be one number, or one for each of the {schedule.stages} stages, "
            f"but {len(value)} numbers were given."
        )
    return list(value)


class _Step(NamedTuple):
    """What an action of one kind on one stage needs, takes and gives, the same for every micro-batch.

    Results are numbered by (kind, stage, micro-batch); `result` and the needs are those of micro-batch 0.
    needs: (result, seconds of transfer, (from_stage, to_stage) or None when it stays on the rank).
    sends: 1 when the result goes to another rank.
    """

    duration: float
    paired_duration: float
    result: int
    needs: tuple
    sends: int


def _steps(schedule, costs):
    """For each stage a dict of _Steps by kind."""
    m, last = schedule.micro_batches, schedule.stages - 1
    forward, backward_input, backward_weight = (
        cost_of_stages(name, costs, schedule) for name in COST_NAMES
    )
    backward = [b + w for b, w in zip(backward_input, backward_weight)]
    gain = 1.0
    if costs.forward_and_backward is not None:
        whole_pair = sum(forward + backward) / len(forward)
        gain = costs.forward_and_backward / schedule.visits / whole_pair

    def number(kind, stage):
        return (KINDS.index(kind) * schedule.stages + stage) * m

    def need(kind, stage, to_stage):
        crosses = _crosses(schedule, stage, to_stage)
        transfer = costs.communication if crosses and not callable(costs.communication) else 0.0
        return number(kind, stage), transfer, (stage, to_stage) if crosses else None

    steps = []
    for stage in range(schedule.stages):
        own_forward = need(FORWARD, stage, stage)
        for_backward = (
            (own_forward, need(BACKWARD_INPUT, stage + 1, stage)) if stage < last else (own_forward,)
        )
        sends_back = int(_crosses(schedule, stage, stage - 1))

        def step(duration, result, needs, sends, stage=stage):
            return _Step(duration[stage], duration[stage] * gain, number(result, stage), needs, sends)

        steps.append(
            {
                FORWARD: step(
                    forward,
                    FORWARD,
                    (need(FORWARD, stage - 1, stage),) if stage else (),
                    int(_crosses(schedule, stage, stage + 1)),
                ),
                BACKWARD_INPUT: step(backward_input, BACKWARD_INPUT, for_backward, sends_back),
                BACKWARD: step(backward, BACKWARD_INPUT, for_backward, sends_back),
                BACKWARD_WEIGHT: step(
                    backward_weight, BACKWARD_WEIGHT, (need(BACKWARD_INPUT, stage, stage),), 0
                ),
            }
        )
    return steps


def _crosses(schedule, stage, to_stage):
    """Whether a result leaves its rank; stages share one only where a V turns, or when p = 1."""
    inside = 0 <= to_stage < schedule.stages
    return inside and schedule.rank_of(stage) != schedule.rank_of(to_stage)


def _deadlock_sentence(schedule, steps, blocked, position, ended):
    m = schedule.micro_batches
    clauses = []
    for rank in blocked[:3]:
        at = position[rank]
        row = schedule.ranks[rank]
        for action in row[at : at + 1 + row[at].paired]:
            step = steps[schedule.stage(rank, action.chunk)][action.kind]
            missing = [
                need + action.micro_batch
                for need, _, _ in step.needs
                if ended[need + action.micro_batch] is None
            ]
            if missing:
                break
        kind, stage = divmod(missing[0] // m, schedule.stages)
        owner = schedule.rank_of(stage, action.micro_batch)
        where = "which comes later on the same rank" if owner == rank else f"which rank {owner} has not done"
        clauses.append(
            f"rank {rank} is blocked at {action}: it waits for {KINDS[kind]}{action.micro_batch} of stage "
            f"{stage}, {where}"
        )
    more = f" {len(blocked) - 3} more ranks are blocked." if len(blocked) > 3 else ""
    return f"The schedule {schedule.name!r} cannot run: {'; '.join(clauses)}.{more}"
