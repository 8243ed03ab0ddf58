"""Train a small GPT under a ZeRO stage on real ranks, and predict what that takes, in the same terms."""
from dataclasses import dataclass

from utils import launch
from utils.theory.memory import TrainingState, build_recipe, training_state
from utils.theory.models import Transformer
from utils.theory.zero import zero_bytes_per_step, zero_peak_bytes
from utils.widgets import zero_on_ranks

MOST_RANKS = 8
SMALL_GPT = Transformer(layers=3, hidden=64, heads=4, vocab=256, sequence=32, tied=False)
RUNNABLE = ("fp32", "mixed")
"""The precisions that utils.parallel.zero has: gradients are as wide as the weights."""


@dataclass(frozen=True)
class Footprint:
    """What one rank holds and sends in training SMALL_GPT, predicted or measured.

    state       bytes that rest between two steps, by kind
    peak_bytes  the most of all kinds together at a moment of a step
    sent_bytes  sent in one step
    """

    state: TrainingState
    peak_bytes: float
    sent_bytes: float


@dataclass(frozen=True)
class ZeroRun:
    """What training under `stage` took on real ranks: the Footprint of the fullest rank, and the mean loss of each step."""

    precision: str
    optimizer: str
    world_size: int
    stage: int
    measured: Footprint
    losses: tuple[float, ...]


def ranks_for(world_size: int) -> int:
    """How many real ranks stand for N: at most as many as this machine can take."""
    return min(world_size, MOST_RANKS)


def predict_zero(precision: str, optimizer: str, world_size: int, stage: int) -> Footprint:
    """What `measure_zero` should find, by utils.theory; of a rank with 1/N of everything that is sharded."""
    recipe, psi = build_recipe(precision, optimizer), SMALL_GPT.parameters
    largest_parameter = SMALL_GPT.ffn * SMALL_GPT.hidden
    return Footprint(
        training_state(psi, recipe, stage, world_size),
        zero_peak_bytes(psi, SMALL_GPT.layer_parameters, largest_parameter, recipe, stage, world_size),
        zero_bytes_per_step(psi, recipe, stage, world_size))


def measure_zero(precision: str, optimizer: str, world_size: int, stage: int) -> ZeroRun:
    """Train SMALL_GPT for a few steps under `stage` on min(N, 8) real ranks and count bytes.

    Raises ValueError for a precision that the stages do not have, RankError when a rank fails.
    """
    if precision not in RUNNABLE:
        raise ValueError(f"The stages of utils.parallel.zero keep gradients as wide as the weights, so {precision!r} does not "
                         f"run here. Choose {' or '.join(map(repr, RUNNABLE))}, then run again.")
    n = ranks_for(world_size)
    run = launch(zero_on_ranks.train, SMALL_GPT, stage, precision, optimizer, world_size=n, timeout=120, echo=False)
    counted = run.results
    state = TrainingState(*(max(getattr(rank, kind) for rank in counted) for kind in ("parameters", "gradients", "optimizer")))
    losses = tuple(sum(step) / n for step in zip(*(rank.losses for rank in counted)))
    sent = max(_sent_between_barriers(record) for record in run.records)
    peak = max(rank.peak_bytes for rank in counted)
    return ZeroRun(precision, optimizer, n, stage, Footprint(state, peak, sent), losses)


def _sent_between_barriers(record):
    barriers = [number for number, call in enumerate(record.calls) if call.op == "barrier"]
    first, second = barriers[-2:]
    return sum(call.sent for call in record.calls[first:second])


def last_run(runs, precision: str, optimizer: str, world_size: int, stage: int) -> ZeroRun | None:
    """The latest of `runs` that belongs to this state of the widget."""
    wanted = (precision, optimizer, ranks_for(world_size), stage)
    return next((run for run in reversed(runs) if (run.precision, run.optimizer, run.world_size, run.stage) == wanted), None)
