"""What each rank of a pipeline would hold, for a model of any size, without the memory and without the ranks.

The executor of :mod:`utils.parallel.pipeline` runs in this process as one rank after the other: fake tensors have shapes and
no numbers, and a fake process group delivers every message at once. What autograd keeps is counted as on real ranks.
"""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from utils.parallel.activations import recompute as make_recompute
from utils.parallel.model import LanguageModel
from utils.parallel.pipeline import Pipeline
from utils.parallel.pipeline_memory import LiveActivations
from utils.parallel.stages import language_chunks
from utils.theory.models import Transformer
from utils.theory.pipeline import Schedule


@dataclass(frozen=True)
class RankOnPaper:
    """What one rank holds. Bytes; `parameters` is a number of parameters.

    parameters        of the rank's stages
    activation_bytes  the peak of what autograd keeps during the step
    """

    parameters: int
    activation_bytes: int


def memory_on_paper(
    schedule: Schedule,
    shape: Transformer,
    micro_batch: int = 1,
    recompute: str = "none",
    dtype: torch.dtype = torch.bfloat16,
    ranks=None,
    fused: bool = True,
    dropout: float = 0.0,
) -> dict[int, RankOnPaper]:
    """Run one step of `schedule` over `shape` with fake tensors; {rank: RankOnPaper}.

    shape        a `utils.theory.models.Transformer` with at least one layer per stage
    micro_batch  sequences in a micro-batch
    recompute    "none", "selective" or "full"; see `utils.parallel.activations.recompute`
    dtype        of weights and activations
    ranks        which ranks to look at; None for all
    fused, dropout  as for `utils.parallel.model.LanguageModel`

    With full recomputation the block that is being computed again is not counted. Raises RuntimeError where a process group
    exists already: the fake one must be the only one.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "A process group exists already, and the fake one must be the only one. Call this outside of launch()."
        )
    looked_at = range(schedule.pipeline) if ranks is None else ranks
    options = dict(recompute=recompute, dtype=dtype, fused=fused, dropout=dropout)
    return {rank: _one_rank(schedule, shape, micro_batch, rank, **options) for rank in looked_at}


class _OnPaper(Pipeline):
    """The same executor; only the loss stays out of the report, since a fake tensor has no number in it."""

    def _loss(self):
        return None


def _one_rank(schedule, shape, micro_batch, rank, recompute, dtype, fused, dropout):
    with _fake_rank(rank, schedule.pipeline), FakeTensorMode():
        model = make_recompute(LanguageModel(shape, dropout, fused, dtype=dtype), recompute)
        chunks = language_chunks(model, schedule, rank)
        boundary = torch.empty(micro_batch, shape.sequence, shape.hidden, dtype=dtype)
        tokens = torch.zeros(schedule.micro_batches, micro_batch, shape.sequence, dtype=torch.long)
        pipeline = _OnPaper(schedule, chunks, _cross_entropy, boundary)
        with LiveActivations(exclude=[*chunks, tokens]) as live:
            pipeline.step(tokens, tokens)
        return RankOnPaper(sum(p.numel() for chunk in chunks for p in chunk.parameters()), live.peak_bytes)


def _cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@contextlib.contextmanager
def _fake_rank(rank, world_size):
    """This process is `rank` of a group that is not there; gone afterwards."""
    import torch.distributed._tools.fake_collectives  # noqa: F401  in torch 2.10 fake tensors know no send without it
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
