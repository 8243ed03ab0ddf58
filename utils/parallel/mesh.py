"""3D parallelism: tensor, pipeline and data parallelism together, composed of the earlier lessons' pieces.

>>> layout = Layout(tensor=2, pipeline=2, data=2, micro_batch=1)
>>> training = Training3D(config, layout, micro_batches=4)                      # doctest: +SKIP
>>> training.step(tokens, targets)                                              # doctest: +SKIP

Which rank is where is the theory's `grid`: the first dimension of `layout.order` is innermost, so its ranks are
neighbours. The DeviceMesh has the same dimensions, written outermost first as PyTorch does.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from utils.parallel.data import average_gradients
from utils.parallel.model import LanguageModel
from utils.parallel.pipeline import Pipeline
from utils.parallel.stages import add_tied_gradients, language_chunks
from utils.parallel.tensor import ParallelLanguageModel
from utils.parallel.tensor_plans import sequence_parallel_plan
from utils.parallel.tensor_vocabulary import vocab_parallel_cross_entropy
from utils.parallel.zero import Zero1
from utils.ranks.rank import device
from utils.theory.layout import Layout
from utils.theory.models import Transformer
from utils.theory.pipeline import build


def make_mesh(layout: Layout) -> DeviceMesh:
    """A DeviceMesh whose dimensions have the layout's names and sizes, outermost first.

    Raises ValueError when there are not exactly t·c·p·d ranks.
    """
    if layout.world_size != dist.get_world_size():
        sizes = " × ".join(f"{name} {size}" for name, size in layout.sizes.items())
        raise ValueError(f"The layout {sizes} is for {layout.world_size} ranks, but there are {dist.get_world_size()}.")
    sizes = dict(reversed(layout.sizes.items()))
    return init_device_mesh(device().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


class Training3D:
    """A language model on t·p·d ranks, and its training step.

    config      a Transformer
    layout      tensor, pipeline and data; its schedule, chunks, micro_batch, sequence_parallel and zero_stage (0 or 1)
    batch       sequences of one step, over all data-parallel ranks
    optimizer   called with a list of tensors: the parameters of this rank, or its shards under ZeRO-1
    seed        the same model for every layout

    mesh        the DeviceMesh; `mesh["tensor"]` and so on are its groups
    chunks      this rank's stages, cut by tensor parallelism
    """

    def __init__(
        self,
        config: Transformer,
        layout: Layout,
        batch: int,
        optimizer=torch.optim.AdamW,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ):
        _check(layout, batch)
        self.layout, self.mesh = layout, make_mesh(layout)
        self.tensor, self.pipeline, self.data = (self.mesh[name].get_group() for name in ("tensor", "pipeline", "data"))
        model = LanguageModel(config, seed=seed, dtype=dtype).to(device())
        model = ParallelLanguageModel(model, self.tensor, layout.sequence_parallel)
        self.micro_batches = batch // (layout.micro_batch * layout.data)
        schedule = build(layout.schedule, layout.pipeline, self.micro_batches, layout.chunks)
        self.chunks = torch.nn.ModuleList(language_chunks(model, schedule, dist.get_rank(self.pipeline)))
        tokens = config.sequence // (layout.tensor if layout.sequence_parallel else 1)
        boundary = torch.empty(layout.micro_batch, tokens, config.hidden, dtype=dtype, device=device())
        self.schedule, self.vocab = schedule, config.vocab
        self.run = Pipeline(schedule, self.chunks, self._loss, boundary, self.pipeline)
        if layout.zero_stage == 1:
            self.zero = Zero1(self.chunks, optimizer, self.data)
        else:
            self.zero, self.optimizer = None, optimizer(list(self.chunks.parameters()))

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """One step on the whole batch, tokens and targets (B, s), given to every rank; returns the mean loss.

        A data-parallel rank takes its B/d sequences, in micro-batches; the loss is the same on all ranks.
        """
        report = self.run.step(*(self._micro_batches(part) for part in (tokens, targets)))
        add_tied_gradients(self.chunks, self.schedule, self.pipeline)
        loss = torch.tensor(report.loss or 0.0, dtype=torch.float64, device=device())
        dist.all_reduce(loss)  # only one rank of each pipeline adds its part, and t of them know the same
        if self.zero is not None:
            for flat in self.zero.flats:
                flat.gradients /= self.layout.data
            self.zero.step()
        else:
            average_gradients(self.chunks, self.data)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item() / (self.layout.tensor * self.layout.data)

    def _micro_batches(self, batch):
        mine = batch.chunk(self.layout.data)[dist.get_rank(self.data)]
        return mine.to(device()).split(self.layout.micro_batch)

    def _loss(self, logits, targets):
        return vocab_parallel_cross_entropy(logits, targets, self.vocab, self.tensor)


def shard_with_tensor_parallel(model: LanguageModel, mesh: DeviceMesh) -> LanguageModel:
    """The production form of tensor × data: DTensor by the tutorial's plan, then FSDP2 over "data"; returns the model.

    mesh  has the dimensions "data" and "tensor"; the loss and its backward pass belong inside `loss_parallel()`
    """
    parallelize_module(model, mesh["tensor"], sequence_parallel_plan(model.config, mesh["tensor"].size()))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def _check(layout, batch):
    for name, size in (("context", layout.context), ("expert", layout.expert)):
        if size > 1:
            raise ValueError(f"This training step splits over tensor, pipeline and data, but {name} is {size}.")
    if layout.zero_stage > 1:
        raise ValueError(f"zero_stage must be 0 or 1 under a pipeline, but {layout.zero_stage} was given: later stages would "
                         "reduce or gather again for every micro-batch.")
    if batch % (layout.micro_batch * layout.data):
        raise ValueError(f"The batch of {batch} is not {layout.data} data-parallel ranks times whole micro-batches of "
                         f"{layout.micro_batch}.")
