"""Run a pipeline schedule on real ranks whose stages sleep, in the terms of `utils.theory.pipeline`."""
from dataclasses import dataclass

from utils import launch
from utils.parallel.pipeline_limits import refuse_what_does_not_run
from utils.theory.pipeline import Costs, Schedule, Simulation, simulate

MOST_SECONDS, UNIT_SECONDS = 8.0, 0.06
"""A step on real ranks takes at most so long; a unit of the costs is 0.06 seconds where that allows it."""
_SHORTEST = 0.004
"""Seconds of an action below which the executor's own time would be most of what is measured."""


@dataclass(frozen=True)
class ScheduleRun:
    """What a schedule did on real ranks.

    state       what was chosen; a run belongs to the same state of the widget
    unit        seconds that stood for one unit of the costs
    recording   the recorded step as a Simulation, in units of the costs
    """

    state: tuple
    unit: float
    recording: Simulation


@dataclass(frozen=True)
class EqualLinks:
    """What `launch` takes as a cluster: every message comes `transfer` seconds late, whatever its size."""

    gpus: int
    transfer: float

    def seconds(self, op, ranks, n_bytes):
        """See `utils.ranks.emulation.SlowLinks`."""
        return self.transfer if op in ("send", "recv") else 0.0


def measure_schedule(schedule: Schedule, costs: Costs, state: tuple = ()) -> ScheduleRun:
    """Run `schedule` once on p real ranks; their stages sleep as `costs` says, and messages come late as it says.

    A message is late from the moment on when it has come and its rank asks for it: the executor asks for each only when
    it needs it. Raises ValueError for a schedule that the executor does not run, RankError when a rank fails.
    """
    refuse_what_does_not_run(schedule)
    expected = simulate(schedule, costs)
    unit = min(UNIT_SECONDS, MOST_SECONDS / expected.total_time) if expected.total_time else UNIT_SECONDS
    durations = [action.end - action.start for row in expected.timeline for action in row if action.end > action.start]
    if durations and unit * min(durations) < _SHORTEST:
        raise ValueError(f"A step of {expected.total_time:g} units would have to be squeezed into {MOST_SECONDS:g} seconds, "
                         f"and its shortest action into {1e3 * unit * min(durations):.2g} ms, which is too short to measure. "
                         "Choose fewer micro-batches or chunks, or costs that differ less, then run again.")
    from utils.parallel.pipeline_record import recorded, sleep_through  # they bring torch
    cluster = EqualLinks(schedule.pipeline, unit * costs.communication) if costs.communication else None
    run = launch(sleep_through, schedule, unit, costs, world_size=schedule.pipeline, timeout=60 + 4 * MOST_SECONDS,
                 echo=False, cluster=cluster)
    return ScheduleRun(state, unit, recorded(run, schedule, unit))


def last_run(runs, state: tuple) -> ScheduleRun | None:
    """The latest run of this state; the button's results are tuples of ScheduleRuns, one for each schedule shown."""
    return next((run for pressed in reversed(runs) for run in pressed if run.state == state), None)
