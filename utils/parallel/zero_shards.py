"""The parts that the ZeRO stages are made of: parameters cut into shards, blocks, Adam on a shard.

A `Flat` holds some parameters one after the other in one tensor, which `torch.tensor_split` cuts into N chunks
of any length. Rank r owns chunk (r + 1) mod N, its *shard*: where `ring_reduce_scatter` leaves the sum.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


class Flat:
    """Parameters of one dtype in one flat tensor, and this rank's shard of it.

    weights    the whole flat tensor, of which the parameters are views; None while it is freed
    shard      this rank's chunk: a view of `weights` until `keep_shard_only`, its own memory from then on
    gradients  the whole flat gradient, or None
    gradient   this rank's chunk of the summed gradient, or None
    """

    def __init__(self, parameters, group=None):
        self.parameters, self.group = list(parameters), group
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.shard = self.own_chunk(self.weights)
        self.gradients = self.gradient = None
        self.arriving = None
        self._show_whole()

    def own_chunk(self, flat):
        """This rank's chunk of a tensor that is as long as all the parameters together: a view."""
        rank, world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        return flat.tensor_split(world_size)[(rank + 1) % world_size]

    def views(self, flat):
        """Views of `flat`, one per parameter and in its shape."""
        return [part.view(parameter.shape) for part, parameter in zip(flat.split(self.sizes), self.parameters)]

    # Weights that are whole only while they are used

    @property
    def is_whole(self):
        return self.weights is not None and self.arriving is None

    def keep_shard_only(self):
        self.shard = self.shard.clone()
        self.free()

    def start_gather(self):
        """Ask for the other ranks' shards and go on; `gather` waits for them."""
        if self.weights is None:
            self.weights = self.shard.new_empty(sum(self.sizes))
            self.own_chunk(self.weights).copy_(self.shard)
            self.arriving = start_all_gather(self.weights, self.group)

    def gather(self):
        """Make the parameters whole."""
        if self.is_whole:
            return
        self.start_gather()
        self._wait()
        self._show_whole()

    def free(self):
        """Drop the whole weights; the parameters keep their shape and read as NaN."""
        self._wait()
        self.weights = None
        nothing = torch.full((), math.nan, dtype=self.shard.dtype, device=self.shard.device)
        for parameter in self.parameters:
            parameter.data = nothing.expand(parameter.shape)

    def _wait(self):
        for work in self.arriving or []:
            work.wait()
        self.arriving = None

    def _show_whole(self):
        for parameter, view in zip(self.parameters, self.views(self.weights)):
            parameter.data = view

    # Gradients

    def hold_all_gradients(self):
        """Let backward add up in one flat tensor: every parameter's `grad` is a view of it."""
        self.gradients = torch.zeros_like(self.weights)
        self.gradient = self.own_chunk(self.gradients)
        for parameter, view in zip(self.parameters, self.views(self.gradients)):
            parameter.grad = view

    def check_gradients(self):
        """Raise RuntimeError when a parameter's `grad` is not what `hold_all_gradients` made it."""
        for parameter, view in zip(self.parameters, self.views(self.gradients)):
            if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
                raise RuntimeError(
                    "A parameter's gradient lies no longer in the flat gradient, so this step would miss it. "
                    "step() sets the gradients to zero itself: leave out zero_grad()."
                )

    def begin_gradients(self):
        """The whole gradient, which is zeros at first."""
        if self.gradients is None:
            self.gradients = self.shard.new_zeros(sum(self.sizes))
        return self.gradients

    def take_gradient(self, parameter):
        """Move `parameter.grad` into the whole gradient."""
        position = next(n for n, other in enumerate(self.parameters) if other is parameter)
        self.views(self.begin_gradients())[position].add_(parameter.grad)
        parameter.grad = None


def start_all_gather(flat, group=None):
    """Post all sends and receives of an all-gather at once, and return what to wait for.

    Rank r starts with chunk (r + 1) mod N, as in `ring_all_gather`, and sends it to every other rank: (N−1)Ψ/N
    elements, the same as the ring. The ring takes N − 1 steps, and somebody must wait between them; this
    way travels while the rank computes.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(world_size)
    sends_and_receives = []
    for step in range(1, world_size):
        to_rank, from_rank = (rank + step) % world_size, (rank - step) % world_size
        theirs = chunks[(from_rank + 1) % world_size]
        sends_and_receives += [
            dist.P2POp(dist.isend, chunks[(rank + 1) % world_size], group=group, group_peer=to_rank),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=from_rank),
        ]
    return dist.batch_isend_irecv(sends_and_receives) if sends_and_receives else []


# Which parameters belong together


@dataclass(eq=False)
class Block:
    """A module whose weights are gathered and freed together."""

    module: nn.Module
    trainable: list[Flat] = field(default_factory=list)
    frozen: list[Flat] = field(default_factory=list)

    @property
    def flats(self):
        return self.trainable + self.frozen


def make_blocks(model, modules=None, group=None, frozen=True):
    """Cut a model into Blocks: the model itself first, with what is left over, and then the modules in order.

    modules  the submodules that become blocks; if not given, `default_blocks`
    frozen   put frozen parameters into flats of their own; otherwise they stay where they are

    A parameter that several blocks share, such as an embedding tied to the output head, belongs to the model's
    own block. Blocks without parameters are left out.
    """
    modules = default_blocks(model) if modules is None else list(modules)
    owners = {}
    for module in dict.fromkeys(modules):
        for parameter in module.parameters():
            owners.setdefault(parameter, []).append(module)
    parts = {module: [] for module in [model, *modules]}
    for parameter in model.parameters():
        holders = owners.get(parameter, [])
        parts[holders[0] if len(holders) == 1 else model].append(parameter)
    return [
        Block(
            module,
            make_flats((p for p in parameters if p.requires_grad), group),
            make_flats((p for p in parameters if frozen and not p.requires_grad), group),
        )
        for module, parameters in parts.items()
        if parameters
    ]


def make_flats(parameters, group=None):
    """One Flat for each dtype and device among the parameters."""
    alike = {}
    for parameter in parameters:
        alike.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return [Flat(same, group) for same in alike.values()]


def default_blocks(model):
    """The entries of the outermost `nn.ModuleList`s and `nn.Sequential`s; the model's children when there are none."""
    return _entries(model) or list(model.children())


def _entries(module):
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        return list(module)
    return [entry for child in module.children() for entry in _entries(child)]


# The optimizer, on shards only


class Adam:
    """Adam with decoupled weight decay, written out (Kingma and Ba 2015; Loshchilov and Hutter 2019, AdamW).

    parameters  tensors of any shape; like torch's optimizers it reads their `grad` and writes to them. All
                arithmetic is per element, so Adam on a shard is the shard of Adam.
    """

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.steps = 0
        self.state = {
            parameter: {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            for parameter in parameters
        }

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        bias1, bias2 = 1 - beta1**self.steps, 1 - beta2**self.steps
        for parameter, state in self.state.items():
            momentum, variance = state["exp_avg"], state["exp_avg_sq"]
            parameter.mul_(1 - self.lr * self.weight_decay)
            momentum.lerp_(parameter.grad, 1 - beta1)
            variance.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            denominator = (variance.sqrt() / bias2**0.5).add_(self.eps)
            parameter.addcdiv_(momentum, denominator, value=-self.lr / bias1)


class ShardOptimizer:
    """An optimizer that sees this rank's shards only, in fp32 when the weights are 16 bits wide.

    make_optimizer  called with the list of shards, as `functools.partial(torch.optim.AdamW, lr=1e-3)` would be
    """

    def __init__(self, make_optimizer, flats):
        self.flats = flats
        self.masters = [
            flat.shard.float() if flat.shard.dtype in (torch.bfloat16, torch.float16) else flat.shard.detach()
            for flat in flats
        ]
        self.optimizer = make_optimizer(self.masters)

    def step(self):
        """Update the shards from the flats' `gradient`."""
        for master, flat in zip(self.masters, self.flats):
            master.grad = flat.gradient.to(master.dtype)
        self.optimizer.step()
        for master, flat in zip(self.masters, self.flats):
            master.grad = None
            flat.shard.copy_(master)
