"""Two pipeline schedules on one time axis, with their bubbles, what they hold and what they send."""

from utils.widgets.frame import Frame


def explore_schedules(schedule: str = "1f1b", other: str = "gpipe", pipeline: int = 4, micro_batches: int = 8,
                      chunks: int = 2, forward: float = 1, backward_input: float = 1, backward_weight: float = 1,
                      transfer: float = 0, limit: float = 0, time: float | None = None) -> Frame:
    """A widget that draws one or two schedules on one time axis.

    schedule         a name in utils.theory.pipeline.SCHEDULES
    other            a second one, drawn below; "nothing" for none
    pipeline         p ranks, 2 to 8
    micro_batches    m, 1 to 32
    chunks           v, model chunks on each rank; only for interleaved 1F1B and looped BFS
    forward, backward_input, backward_weight   T_F, T_B, T_W of a whole rank and one micro-batch, in any unit of time
    transfer         time from the end of an action until its result is on the next rank, in the same unit
    limit            micro-batches whose activations a rank has room for, in whole ranks' layers; 0: no limit
    time             t, the moment that is looked at; None: the end of the step

    The button runs the schedules on real ranks whose stages sleep as long as the costs say, and lays the recording
    over the simulation. Bidirectional schedules are drawn but do not run: a sentence says why.
    """
    raise NotImplementedError


def schedules_sentence(schedule="1f1b", other="gpipe", pipeline=4, micro_batches=8, chunks=2, forward=1,
                       backward_input=1, backward_weight=1, transfer=0, limit=0, time=None, runs=()) -> str:
    """The step's time, the bubble by both ways of counting, what is held and sent, and what real ranks measured."""
    raise NotImplementedError


def draw_schedules(schedule="1f1b", other="gpipe", pipeline=4, micro_batches=8, chunks=2, forward=1,
                   backward_input=1, backward_weight=1, transfer=0, limit=0, time=None, runs=(), figure=None):
    """Draw the schedules, and beside each lane what its rank holds at most and sends. Returns the matplotlib Figure."""
    raise NotImplementedError
