"""The picture of a pipeline schedule: a lane per rank, a box per action."""

from utils.theory.pipeline import Simulation


def draw_schedule(simulation: Simulation, axes=None, title: str | None = None, measured: bool = False,
                  recording: Simulation | None = None, now: float | None = None, end: float | None = None,
                  unit: str = "units of the costs", legend: bool = True):
    """Draw a Simulation: a lane per rank, a box per action, idle time hatched.

    Colours tell F, B, W and BW apart, shades the chunks of a rank; a box has its micro-batch's number where it fits.

    simulation  from `utils.theory.pipeline.simulate`, or a recorded run in the same form
    axes        matplotlib Axes to draw on; None: on a new figure, as high as the ranks need
    title       None: the schedule with p, m and v, and its bubble by both ways of counting
    measured    `simulation` is a recorded run: solid colours and black edges
    recording   a recorded run of the same schedule, in the same unit, drawn in the lower part of each lane
    now         a moment; what lies after it is greyed. None: nothing is
    end         where the time axis ends, for pictures to be compared; None: with the schedule
    unit        what the label of the time axis says, such as "T_F" or "seconds"
    legend      whether to explain colours and shades above the lanes

    Returns the matplotlib Figure. Raises ValueError when `recording` has another number of ranks.
    """
    raise NotImplementedError
