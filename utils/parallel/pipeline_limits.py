"""Which schedules the course's executor runs; without torch, so that a widget can ask before ranks start."""

from utils.theory.actions import Schedule


def refuse_what_does_not_run(schedule: Schedule) -> None:
    """Raise ValueError with a sentence for schedules that `utils.parallel.pipeline` does not run."""
    if schedule.placement == "bidirectional":
        raise ValueError("DualPipe feeds micro-batches in at both ends, so every rank holds two different stages, each a copy of "
                         "one that another rank holds too, and the copies' gradients must be added up. The executor of this "
                         "course holds one copy of each stage: DualPipe is drawn, but does not run. ZB-V does.")
    if any(action.paired for row in schedule.ranks for action in row):
        raise ValueError("DualPipeV runs a forward and a backward at the same time, so that the sending of one hides behind the "
                         "computing of the other. The executor of this course does one action after the other: DualPipeV is "
                         "drawn, but does not run. ZB-V does.")
