"""A pipeline schedule as data: for each rank, an ordered list of actions.

An action is one piece of work on one micro-batch, in the notation of Zero Bubble (arXiv 2401.10241):

F   forward
B   backward with respect to the input, whose result the previous stage waits for
W   backward with respect to the weights, which nobody waits for
BW  both in one piece, as autograd's ordinary backward does
"""

from dataclasses import dataclass
from typing import NamedTuple

from .arguments import one_of

FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD = "F", "B", "W", "BW"
KINDS = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD)

PLACEMENTS = ("loop", "v", "bidirectional")
"""Which stages a rank holds, p ranks of v chunks:

loop           chunk c of rank r is stage c·p + r: a micro-batch goes round and round
v              chunk 0 of rank r is stage r, chunk 1 is stage 2p − 1 − r: down and back up
bidirectional  two copies of p stages; chunk 0 is stage r, for the first half of the micro-batches; chunk 1
               is stage p − 1 − r, for the second half, which enter at the last rank
"""


class Action(NamedTuple):
    """One action of a rank: its kind, the micro-batch and the rank's chunk that it works on.

    paired: a forward that runs as one with the backward listed after it (DualPipe's F&B); both start
        when both can, and both results are there when the pair ends.
    """

    kind: str
    micro_batch: int
    chunk: int = 0
    paired: bool = False

    def __str__(self):
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind}{self.micro_batch}{chunk}" + ("&" if self.paired else "")


@dataclass(frozen=True)
class Schedule:
    """An order of actions for every rank.

    name: for titles and messages.
    ranks: for each rank a tuple of Actions, executed one after another.
    micro_batches: m.
    chunks: model chunks on each rank, v.
    placement: which stage a rank's chunk is, one of PLACEMENTS.
    """

    name: str
    ranks: tuple
    micro_batches: int
    chunks: int = 1
    placement: str = "loop"

    def __post_init__(self):
        one_of("placement", self.placement, PLACEMENTS)
        if self.placement != "loop" and self.chunks != 2:
            raise ValueError(
                f"chunks must be 2 for placement {self.placement!r}, but {self.chunks!r} was given."
            )

    @property
    def pipeline(self):
        """p, the number of ranks."""
        return len(self.ranks)

    @property
    def stages(self):
        """Stages that one micro-batch passes through."""
        return self.pipeline * (1 if self.placement == "bidirectional" else self.chunks)

    @property
    def visits(self):
        """How often one micro-batch visits each rank; a chunk is this fraction of a rank's layers."""
        return self.stages // self.pipeline

    def stage(self, rank, chunk):
        """The stage that `chunk` of `rank` is."""
        if self.placement == "loop" or chunk == 0:
            return chunk * self.pipeline + rank
        return self.stages - 1 - rank

    def rank_of(self, stage, micro_batch=0):
        """The rank that runs `stage` for `micro_batch`."""
        p = self.pipeline
        if self.placement == "loop":
            return stage % p
        if self.placement == "v":
            return min(stage, 2 * p - 1 - stage)
        return stage if micro_batch < self.micro_batches / 2 else p - 1 - stage

    def __str__(self):
        return "\n".join(f"rank {rank}: {' '.join(map(str, row))}" for rank, row in enumerate(self.ranks))


def check_complete(schedule):
    """Raise ValueError unless every micro-batch passes each stage once: one F, and one B and W or one BW.

    The order is not looked at; `simulate` does that.
    """
    m = schedule.micro_batches
    parts = FORWARD + BACKWARD
    times = {part: [[0] * m for _ in range(schedule.stages)] for part in parts}
    for rank, row in enumerate(schedule.ranks):
        stages = [schedule.stage(rank, chunk) for chunk in range(schedule.chunks)]
        for action in row:
            kind, micro_batch, chunk, _ = action
            if kind not in KINDS or not (0 <= chunk < schedule.chunks and 0 <= micro_batch < m):
                raise ValueError(
                    f"An action's kind must be one of {', '.join(KINDS)}, its micro_batch from 0 to "
                    f"{m - 1} and its chunk from 0 to {schedule.chunks - 1}, but rank {rank} has {action!r}."
                )
            if schedule.placement == "bidirectional" and schedule.rank_of(stages[chunk], micro_batch) != rank:
                raise ValueError(f"Micro-batch {micro_batch} does not pass chunk {chunk} of rank {rank}.")
            for part in kind:
                times[part][stages[chunk]][micro_batch] += 1
    for part in parts:
        for stage, counts in enumerate(times[part]):
            for micro_batch, count in enumerate(counts):
                if count != 1:
                    rank = schedule.rank_of(stage, micro_batch)
                    raise ValueError(
                        f"Every micro-batch needs exactly one {part} on every stage, but rank {rank} has "
                        f"{count} times {part}{micro_batch} for stage {stage}."
                    )
