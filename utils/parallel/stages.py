"""Cut a model into pipeline stages: the course's language model, or layers that only sleep."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function

from utils.parallel.model import LanguageModel
from utils.theory.pipeline import COST_NAMES, Costs, Schedule, cost_of_stages


class LanguageStage(nn.Module):
    """One stage of a LanguageModel: some of its blocks, with the embedding on the first stage and the head on the last.

    Blocks are shared out evenly; where that is not possible, earlier stages have one more. The parameters keep the
    names that they have in the whole model. With tied embeddings the last stage has its own copy of the table, as
    `output.weight`; `add_tied_gradients` keeps the two alike.

    model    the whole model, a LanguageModel or, cut by tensor parallelism, a ParallelLanguageModel; the stage takes
             its modules, it does not copy them
    stage    0 … stages − 1
    Raises ValueError when there are more stages than blocks.
    """

    def __init__(self, model: LanguageModel, stage: int, stages: int):
        super().__init__()
        first, last = stage == 0, stage == stages - 1
        # the model's own embed and head run on this object, which has all of the modules that they use
        self.config, self._embed, self._head = model.config, type(model).embed, type(model).head
        self.group, self.sequence_parallel = getattr(model, "group", None), getattr(model, "sequence_parallel", False)
        self.tok_embeddings = model.tok_embeddings if first else None
        self.pos_embeddings = model.pos_embeddings if first else None
        self.dropout = model.dropout if first else None
        self.layers = nn.ModuleDict({str(i): model.layers[i] for i in layers_of_stage(len(model.layers), stage, stages)})
        self.norm = model.norm if last else None
        self.output = model.output if last else None
        if last and not first and self.config.tied:
            self.output.weight = nn.Parameter(self.output.weight.detach().clone())

    def forward(self, x):
        """Tokens (b, s) on the first stage, (b, s, h) on the others; gives (b, s, h), or logits on the last."""
        if self.tok_embeddings is not None:
            x = self._embed(self, x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.output is None else self._head(self, x)


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """The blocks that a stage holds. Raises ValueError when there are more stages than blocks.

    >>> [list(layers_of_stage(5, stage, 2)) for stage in range(2)]
    [[0, 1, 2], [3, 4]]
    """
    if stages > layers:
        raise ValueError(f"{layers} layers cannot be shared out among {stages} stages: some would have none.")
    each, more = divmod(layers, stages)
    start = stage * each + min(stage, more)
    return range(start, start + each + (stage < more))


def language_chunks(model: LanguageModel, schedule: Schedule, rank: int) -> list[LanguageStage]:
    """The stages of `model` that `rank` holds under `schedule`, in the order of its chunks."""
    stages = [schedule.stage(rank, chunk) for chunk in range(schedule.chunks)]
    return [LanguageStage(model, stage, schedule.stages) for stage in stages]


def add_tied_gradients(chunks: Sequence[LanguageStage], schedule: Schedule, group: dist.ProcessGroup | None = None) -> None:
    """After a step, give both copies of a tied table the sum of their gradients: Ψ_table elements each way.

    Only the ranks of the first and the last stage send; equal updates then keep the copies equal.
    """
    first, last = schedule.rank_of(0), schedule.rank_of(schedule.stages - 1)
    mine = [chunk.tok_embeddings.weight for chunk in chunks if chunk.tok_embeddings is not None]
    mine += [chunk.output.weight for chunk in chunks if chunk.output is not None]
    if not chunks[0].config.tied or not mine or (len(mine) == 2 and mine[0] is mine[1]):
        return
    if first == last:
        total = mine[0].grad + mine[1].grad
    else:
        other = last if dist.get_rank(group) == first else first
        theirs = torch.empty_like(mine[0].grad)
        sends = dist.isend(mine[0].grad, group=group, group_dst=other)
        dist.recv(theirs, group=group, group_src=other)
        sends.wait()
        total = mine[0].grad + theirs
    for table in mine:
        table.grad.copy_(total)


class SleepingStage(nn.Module):
    """A stage that computes nothing and takes time: its forward and the two parts of its backward only sleep.

    On a laptop several ranks share a core, so real work on one slows the others and hides the bubble. Sleeping ranks
    do not disturb each other. It gives its input times one weight, so that gradients flow and can be checked.

    seconds  (forward, backward_input, backward_weight) of one micro-batch
    """

    def __init__(self, seconds: tuple[float, float, float]):
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.put_off = lambda work: work()  # `WeightGradients` sets its own

    def forward(self, x):
        time.sleep(self.seconds[0])
        return _Sleep.apply(x, self.weight, self)


class _Sleep(Function):
    @staticmethod
    def forward(ctx, x, weight, stage):
        ctx.save_for_backward(x)
        ctx.stage = stage
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        (x,), stage = ctx.saved_tensors, ctx.stage
        time.sleep(stage.seconds[1])

        def weights_part():
            time.sleep(stage.seconds[2])
            part = (gradient * x).sum()
            stage.weight.grad = part if stage.weight.grad is None else stage.weight.grad + part

        stage.put_off(weights_part)
        return gradient * stage.weight.detach(), None, None


def sleeping_chunks(costs: Costs, schedule: Schedule, rank: int, unit: float = 0.06) -> list[SleepingStage]:
    """The stages that `rank` holds under `schedule`, sleeping as `costs` says, in units of `unit` seconds."""
    per_stage = [cost_of_stages(name, costs, schedule) for name in COST_NAMES]
    stages = [schedule.stage(rank, chunk) for chunk in range(schedule.chunks)]
    return [SleepingStage(tuple(unit * part[stage] for part in per_stage)) for stage in stages]
