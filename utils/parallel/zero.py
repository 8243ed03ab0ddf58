"""ZeRO: data parallelism that keeps the training state once instead of N times (arXiv 1910.02054).

=======  ======================================  =====================  =========================
stage    sharded over the ranks                  bytes, mixed Adam      elements sent per step
=======  ======================================  =====================  =========================
`Zero1`  optimizer state                         4Ψ + 12Ψ/N             2Ψ (N−1)/N
`Zero2`  and gradients                           2Ψ + 14Ψ/N             (m + 1)Ψ (N−1)/N
`Zero3`  and parameters                          16Ψ/N                  3mΨ (N−1)/N
=======  ======================================  =====================  =========================

m micro-batches make up a step. As numbers: :mod:`utils.theory.memory` and :mod:`utils.theory.traffic`.

All three are used alike, on every rank, each with its own part of the batch:

>>> zero = Zero2(model, functools.partial(torch.optim.AdamW, lr=1e-3))      # doctest: +SKIP
>>> zero.backward(loss_fn(zero(inputs), targets))
>>> zero.step()

All ranks begin with the same weights (`utils.parallel.data.broadcast_model`). Weights of 16 bits get an fp32
master copy in the optimizer's shard; others are updated in place. Tied parameters count once. Frozen parameters
get no gradient and no optimizer state; stage 3 shards them too. A parameter that nobody uses has the gradient
zero, so that weight decay reaches it. The parameters become views of flat tensors, with the usual strides.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

from utils.parallel.collectives import ring_all_gather, ring_reduce_scatter
from utils.parallel.data import trainable_parameters
from utils.parallel.zero_shards import Adam, ShardOptimizer, make_blocks, make_flats


class Zero1:
    """Stage 1: weights and gradients stay whole, each rank updates its shard of the weights.

    model      any module; the parameters' gradients are summed in place, so do not set them to None
    optimizer  called with a list of tensors, this rank's shards; `Adam` here or any of torch.optim that
               works element by element

    Micro-batches cost nothing: their gradients add up on the rank until `step` reduces them once.
    """

    def __init__(self, model, optimizer=Adam, group=None):
        self.model, self.group = model, group
        self.flats = make_flats(trainable_parameters(model), group)
        for flat in self.flats:
            flat.hold_all_gradients()
        self.optimizer = ShardOptimizer(optimizer, self.flats)

    def __call__(self, *inputs, **named):
        return self.model(*inputs, **named)

    def backward(self, loss, weight=None):
        """Add the gradient of `loss` times `weight`: this rank's share of the batch, 1/N if not given."""
        _weighted(loss, weight, self.group).backward()

    def step(self):
        """Reduce-scatter, update the shard, all-gather: an all-reduce with the optimizer in its middle."""
        for flat in self.flats:
            flat.check_gradients()
            ring_reduce_scatter(flat.gradients, self.group)  # the sum of the own chunk: flat.gradient
        self.optimizer.step()
        for flat in self.flats:
            ring_all_gather(flat.weights, self.group)
            flat.gradients.zero_()


class GradientShards:
    """Reduce each flat's gradient while backward runs, as soon as it is complete, and keep only the shard.

    flats    in the order in which backward finishes them, more or less. They are reduced in exactly this order,
             the same on all ranks; one that is complete early waits for its turn.
    reduced  called with the flat after each reduction
    """

    def __init__(self, flats, group=None, reduced=lambda flat: None):
        self.flats, self.group, self.reduced = flats, group, reduced
        self.flat_of = {parameter: flat for flat in flats for parameter in flat.parameters}
        for flat in flats:
            flat.gradient = torch.zeros_like(flat.shard)
        for parameter in self.flat_of:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)
        self.waiting = self.missing = None

    @contextlib.contextmanager
    def reduced_meanwhile(self):
        """Backward runs inside this block. What got no gradient on this rank is reduced at its end, as zeros."""
        self.waiting = list(self.flats)
        self.missing = {flat: set(flat.parameters) for flat in self.flats}
        try:
            yield
            while self.waiting:
                self._reduce_next()
        finally:
            self.waiting = self.missing = None

    def _gradient_is_ready(self, parameter):
        if self.missing is None:
            raise RuntimeError(
                "loss.backward() was called, but gradients are reduced during backward and the last ones after it. "
                "Call zero.backward(loss)."
            )
        flat = self.flat_of[parameter]
        flat.take_gradient(parameter)
        self.missing[flat].discard(parameter)
        while self.waiting and not self.missing[self.waiting[0]]:
            self._reduce_next()

    def _reduce_next(self):
        flat = self.waiting.pop(0)
        flat.gradient += ring_reduce_scatter(flat.begin_gradients(), self.group)
        flat.gradients = None
        self.reduced(flat)


class Zero2:
    """Stage 2: gradients are reduced block by block while backward runs; each rank keeps its shard of the sum.

    blocks  submodules whose gradients are reduced together, see `make_blocks`

    At most about one block's gradient is whole at a time. Every micro-batch is reduced, since nobody has room
    to keep its gradient whole.
    """

    def __init__(self, model, optimizer=Adam, blocks=None, group=None):
        self.model, self.group = model, group
        self.blocks = make_blocks(model, blocks, group, frozen=False)
        self.flats = [flat for block in self.blocks for flat in block.trainable]
        self.gradients = GradientShards(self.flats[::-1], group)
        self.optimizer = ShardOptimizer(optimizer, self.flats)

    def __call__(self, *inputs, **named):
        return self.model(*inputs, **named)

    def backward(self, loss, weight=None):
        """Add to the shards the gradient of `loss` times `weight`: 1/N if not given. Every rank must call it."""
        with self.gradients.reduced_meanwhile():
            _weighted(loss, weight, self.group).backward()

    def step(self):
        """Update the shard, then all-gather the weights."""
        self.optimizer.step()
        for flat in self.flats:
            ring_all_gather(flat.weights, self.group)
            flat.gradient.zero_()


class Zero3:
    """Stage 3: a block's weights are whole only while it computes, in forward and again in backward.

    blocks                 submodules that are gathered together, see `make_blocks`
    reshard_after_forward  False keeps what forward gathered until backward has used it: 2Ψ instead of 3Ψ sent,
                           and all weights whole in between
    prefetch               ask for the next block's weights before computing this one

    What belongs to no block, or to several, stays whole from the first to the last block. Of weights autograd
    keeps nothing but their place, and looks them up when backward needs them. All ranks must run the same blocks
    in the same order, a rank without samples too: with an empty part of the batch. A parameter that is freed
    reads as NaN; see `gathered`.
    """

    def __init__(
        self,
        model,
        optimizer=Adam,
        blocks=None,
        group=None,
        reshard_after_forward=True,
        prefetch=False,
    ):
        self.model, self.group = model, group
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        self.blocks = make_blocks(model, blocks, group)
        self.flats = [flat for block in self.blocks for flat in block.flats]
        for flat in self.flats:
            flat.keep_shard_only()
        trainable = [flat for block in self.blocks for flat in block.trainable]
        self.gradients = GradientShards(trainable[::-1], group, reduced=self.after_reduction)
        self.optimizer = ShardOptimizer(optimizer, trainable)
        self.in_backward = False
        for block in self.blocks:
            block.module.register_forward_pre_hook(lambda *_, block=block: self.before_use(block))
            block.module.register_forward_hook(lambda *call, block=block: self.after_forward(block, call[-1]))

    def __call__(self, *inputs, **named):
        with saved_tensors_hooks(self.keep_place, self.look_up):
            return self.model(*inputs, **named)

    # The heart: when a block's weights are whole

    def before_use(self, block):
        if self.in_backward:
            self.free_finished(but=block)
        for flat in block.flats:
            flat.gather()
        if self.prefetch:
            for flat in self.next_block(block).flats:
                flat.start_gather()

    def after_forward(self, block, output):
        if self.in_backward:  # recomputed: backward goes on with it
            return
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.before_use(block))
        if self.reshard_after_forward:
            self.free(block)

    def after_reduction(self, flat):
        flat.free()

    def free_finished(self, but):
        """Free the blocks that wait for no gradient any more: what is frozen in them may be whole yet."""
        for block in self.blocks:
            if block is not but and not any(flat in self.gradients.waiting for flat in block.trainable):
                self.free(block)

    def free(self, block):
        for flat in block.flats:
            flat.free()

    def next_block(self, block):
        """Which block comes after this one: from the last to the first in backward; the model's own leads both."""
        order = self.blocks[:1] + self.blocks[:0:-1] if self.in_backward else self.blocks
        position = order.index(block) + 1
        return order[position] if position < len(order) else block

    # What autograd keeps for backward

    def keep_place(self, tensor):
        """Of gathered weights keep only where they lie; keep anything else as it is."""
        memory = tensor.untyped_storage().data_ptr()
        for block in self.blocks:
            for flat in block.flats:
                if flat.is_whole and flat.weights.untyped_storage().data_ptr() == memory:
                    return block, flat, (tensor.size(), tensor.stride(), tensor.storage_offset())
        return tensor

    def look_up(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        block, flat, place = kept
        if not flat.is_whole:
            self.before_use(block)
        return flat.weights.as_strided(*place)

    # The step

    def backward(self, loss, weight=None):
        """Add to the shards the gradient of `loss` times `weight`: 1/N if not given. Every rank must call it."""
        self.in_backward = True
        try:
            with self.gradients.reduced_meanwhile():
                _weighted(loss, weight, self.group).backward()
        finally:
            self.in_backward = False
        for block in self.blocks:
            self.free(block)

    def step(self):
        """Update the shard. Nothing is sent: the next forward pass gathers the new weights."""
        for block in self.blocks:
            self.free(block)  # an evaluation may have left some whole
        self.optimizer.step()
        for flat in self.gradients.flats:
            flat.gradient.zero_()

    @contextlib.contextmanager
    def gathered(self):
        """Inside the `with` block all parameters are whole, to be read or saved; what is written to them is lost."""
        for flat in self.flats:
            flat.gather()
        try:
            yield self.model
        finally:
            for flat in self.flats:
                flat.free()


def _weighted(loss, weight, group):
    return loss * (1 / dist.get_world_size(group) if weight is None else weight)
