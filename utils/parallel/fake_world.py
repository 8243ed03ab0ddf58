"""A model on any number of ranks without the ranks: PyTorch's own sharding code on tensors that have no memory.

`fully_shard` and AdamW run one training step of rank 0 as they would among N ranks, but with fake tensors (shapes
and no numbers) in a fake process group (N ranks, of which nobody else is there). PyTorch's own `FSDPMemTracker` counts
what is alive, and what the step's collectives carry is counted here.

>>> from utils.theory.presets import MODELS
>>> paper = shard_on_paper(MODELS["narayanan-7.5b"], world_size=64, stage=3)    # doctest: +SKIP
>>> round(paper.state_bytes / 1e9, 2), round(paper.moved_per_parameter, 3)      # doctest: +SKIP
(1.87, 3.0)

How the 16 bytes per parameter are split differs from the ZeRO paper (arXiv 1910.02054), which keeps fp16 weights and
gradients (2 + 2) and 12 bytes of optimizer state. `fully_shard` keeps the fp32 master copy as *the* parameter, fp32
gradients and Adam's two tensors: 4 + 4 + 8. The bf16 weights exist only while they are gathered.
"""

import contextlib
import dataclasses
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from utils.parallel.activations import recompute as make_recompute
from utils.parallel.model import LanguageModel
from utils.ranks.definitions import bytes_by_definition


@dataclass(frozen=True)
class OnPaper:
    """One training step of one rank, in bytes on this rank.

    parameters        Ψ of the whole model
    parameter_bytes   the rank's shard, kept all the time
    gathered_bytes    whole parameters at the end of forward: none at stage 3, all at stages 2 and 0
    gradient_bytes    the rank's shard of the gradients at the end of backward
    optimizer_bytes   momentum and variance
    activation_bytes  what autograd keeps at the end of the forward pass
    peak_bytes        the most that was alive at one moment; `peak` splits it into PyTorch's own kinds
    calls             how often each collective was called
    moved_elements    elements of the collectives' full tensors, an all-reduce counted twice: what the ZeRO paper calls 2Ψ, 3Ψ
    sent_bytes        bytes sent by the definition of the collectives, with (N − 1)/N and each tensor's own dtype
    measured_layers   how many layers were run: one number, all of them; two, slices, and the rest by the line through them
    """

    parameters: int
    world_size: int
    stage: int
    parameter_bytes: float
    gathered_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    peak_bytes: float
    peak: dict
    calls: dict
    moved_elements: float
    sent_bytes: float
    measured_layers: tuple = ()

    @property
    def state_bytes(self):
        """Parameters, gradients and optimizer state, as the ZeRO paper's table 1 adds them up.

        The theory's recipe is "mixed adam, fp32 gradients": 18Ψ, 2Ψ + 16Ψ/N; at stage 3 16Ψ/N, since no bf16 weights stay.
        The gathered weights are gone when the last gradients come, so that the peak can be lower.
        """
        return self.parameter_bytes + self.gathered_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def moved_per_parameter(self):
        """Elements that the step's collectives carry, in units of Ψ: 3 at stage 3, otherwise 2."""
        return self.moved_elements / self.parameters


def shard_on_paper(
    shape,
    world_size=64,
    stage=3,
    recompute="none",
    sequence=None,
    batch=1,
    layers=4,
    mixed=True,
    fused=None,
    dropout=0.0,
):
    """Run a training step of rank 0 among `world_size` ranks and count it; an `OnPaper`. It takes a few seconds.

    shape      a `utils.theory.models.Transformer`
    stage      3: `fully_shard`; 2: the same with `reshard_after_forward=False`, which keeps the gathered weights from
               forward to backward; 0: every rank keeps all, gradients are all-reduced. `fully_shard` has no stage 1.
    recompute  "none", "selective" or "full"; see `utils.parallel.activations.recompute`
    sequence   tokens per sequence; by default the shape's own
    batch      sequences on this rank
    layers     run slices of `layers` and `layers − 1` layers and continue the straight line to the whole model. All
               counts are on that line; the peak is, while it falls on the same moment of the step, which holds from 3
               layers on wherever we looked. None runs all layers, about half a second each.
    mixed      fp32 shards and gradients, bf16 weights and activations; otherwise all fp32
    fused, dropout  as for `utils.parallel.model.LanguageModel`

    Uneven shards are rounded up as `fully_shard` does. The kernels are those of the CPU: fused attention, but an RMSNorm
    in pieces, which keeps two fp32 copies where a GPU's kernel keeps none. No allocator rounds up. From some hundred ranks
    on a point takes longer, half a minute at 1,024. Raises RuntimeError on a rank (the fake group must be the only one), and
    ValueError for a stage that does not exist.
    """
    if stage not in (0, 2, 3):
        raise ValueError(f"fully_shard can do stages 3 and 2, and 0 for comparison, but {stage!r} was given.")
    if dist.is_initialized():
        raise RuntimeError(
            "A process group exists already, and the fake one must be the only one. Call this outside of launch(), or "
            "inside after torch.distributed.destroy_process_group()."
        )
    if layers is not None and layers < 2:
        raise ValueError(f"A straight line needs slices of at least 1 and 2 layers, but layers = {layers!r} was given.")
    if sequence is not None:
        shape = dataclasses.replace(shape, sequence=sequence)
    options = dict(recompute=recompute, batch=batch, mixed=mixed, fused=fused, dropout=dropout)
    with _fake_ranks(world_size, stage) as mesh:
        if layers is None or layers >= shape.layers:
            return _one_step(shape, mesh, stage, **options)
        few, more = (
            _one_step(dataclasses.replace(shape, layers=n), mesh, stage, **options)
            for n in (layers - 1, layers)
        )
    return _continue_line(few, more, shape)


# One step


def _one_step(shape, mesh, stage, recompute, batch, mixed, fused, dropout):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # takes seconds to import

    with FakeTensorMode(), _CollectiveCount() as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch's own tracker calls and will rename
        model = make_recompute(LanguageModel(shape, dropout, fused), recompute)
        tokens = no_tokens(batch, shape)
        _shard(model, mesh, stage, mixed)
        optimizer = _adam_with_state(model)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            loss = model.loss(tokens, tokens)
            after_forward = _snapshot(tracker, "current")
            loss.backward()
            after_backward = _snapshot(tracker, "current")
            optimizer.step()
        peak = _snapshot(tracker, "peak")
    return OnPaper(
        parameters=shape.parameters,
        world_size=mesh.size(),
        stage=stage,
        parameter_bytes=after_forward["Sharded Param"],
        gathered_bytes=after_forward["Unsharded Param"],
        gradient_bytes=after_backward["Sharded Grad"],
        optimizer_bytes=after_backward["OptState"],
        activation_bytes=after_forward["Activation"],
        peak_bytes=peak["Total"],
        peak={kind: n_bytes for kind, n_bytes in peak.items() if kind != "Total"},
        calls=dict(moved.calls),
        moved_elements=moved.elements,
        sent_bytes=moved.sent_bytes,
        measured_layers=(shape.layers,),
    )


def no_tokens(batch, shape):
    """Tokens (b, s), all of them number 0: only their shape matters here."""
    return torch.zeros(batch, shape.sequence, dtype=torch.long)


def _shard(model, mesh, stage, mixed):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    for part in [*model.layers, model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=dtypes)


def _adam_with_state(model):
    """AdamW whose momentum and variance exist already, as in every step but the first."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _snapshot(tracker, which):
    """Bytes alive by kind, over all devices."""
    total = {}
    for by_kind in tracker.get_tracker_snapshot(which).values():
        for kind, n_bytes in by_kind.items():
            name = getattr(kind, "value", kind)
            total[name] = total.get(name, 0) + n_bytes
    return total


# The fake world


@contextlib.contextmanager
def _fake_ranks(world_size, stage):
    """A mesh over `world_size` ranks of which this process is rank 0 and the only one; gone afterwards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        # Replicas are a second dimension of the mesh, with one shard only.
        shape, names = ((world_size,), ("shard",)) if stage else ((world_size, 1), ("replicate", "shard"))
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


class _CollectiveCount(TorchDispatchMode):
    """Count the collectives that `fully_shard` calls, and the elements of their full tensors."""

    def __init__(self):
        super().__init__()
        self.calls, self.elements, self.sent_bytes = {}, 0, 0.0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "c10d":
            self._count(operator.__name__.split(".")[0], args)
        return operator(*args, **(kwargs or {}))

    def _count(self, name, args):
        if name == "allreduce_":
            self._add("all_reduce", args[0][0], dist.get_world_size(), times=2)
        elif name == "_allgather_base_":
            self._add("all_gather", args[0], args[0].numel() // args[1].numel())
        elif name == "_reduce_scatter_base_":
            self._add("reduce_scatter", args[1], args[1].numel() // args[0].numel())
        else:
            raise NotImplementedError(f"fully_shard called {name}, which this count does not know.")

    def _add(self, op, full, ranks, times=1):
        self.calls[op] = self.calls.get(op, 0) + 1
        self.elements += times * full.numel()
        self.sent_bytes += bytes_by_definition(op, full.numel() * full.element_size(), ranks)[0]


# From slices to the whole model


def _continue_line(few, more, shape):
    """The straight line through two slices at `shape.layers` layers, for every count."""
    (start,), (end,) = few.measured_layers, more.measured_layers
    steps = (shape.layers - end) / (end - start)

    def at_the_end(one, other):
        if isinstance(one, dict):
            return {key: at_the_end(one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}
        return other + (other - one) * steps

    names = [field.name for field in dataclasses.fields(OnPaper)]
    fixed = dict(world_size=more.world_size, stage=more.stage, measured_layers=(start, end))
    line = {name: at_the_end(getattr(few, name), getattr(more, name)) for name in names if name not in fixed}
    return OnPaper(**{name: _as_whole(value) for name, value in line.items()} | fixed)


def _as_whole(value):
    if isinstance(value, dict):
        return {key: _as_whole(part) for key, part in value.items()}
    return int(value) if value == int(value) else value
