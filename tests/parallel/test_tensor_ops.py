"""The exchanges of tensor parallelism: their gradients by finite differences, and what the wrong ones do."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from utils.parallel import tensor, tensor_ops
from utils.parallel.model import LanguageModel
from utils.parallel.tensor_linear import shard_range
from utils.ranks import launch
from utils.theory.models import Transformer

SWIGLU, GELU = (
    {"layers": 1, "hidden": 8, "heads": 4, "ffn": 12, "vocab": 10, "sequence": 4, "activation": name}
    for name in ("swiglu", "gelu")
)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def columns(x):
    return x.tensor_split(dist.get_world_size(), -1)[dist.get_rank()]


def every_operator():
    """One operator alone maps equal tensors to unequal ones or back, so it is tested on the way there and back.

    All ranks move the same element of the same tensor by the same step, and get the same result.
    """
    x, factor = random(2, 4, 4).requires_grad_(), random(2, 4, 4, seed=dist.get_rank() + 1)
    ops = tensor_ops

    def f_and_g(x):
        return ops.reduce_from_group(torch.tanh(ops.copy_to_group(x) * factor))

    def sequence_pair(x):
        whole = ops.gather_from_parts(ops.split_to_parts(x, dim=1))
        return ops.join_parts(ops.reduce_scatter_to_parts(torch.tanh(whole * factor)), dim=1)

    def split_and_join(x):
        return ops.join_parts(torch.tanh(ops.split_to_parts(x)) * columns(random(2, 4, 4)))

    for function in (f_and_g, sequence_pair, split_and_join):
        assert gradcheck(function, x)
        assert gradgradcheck(function, x, fast_mode=True)


def shared_piece():
    """Ranks that hold the same piece use it differently; the piece's gradient is the sum over them."""
    t = dist.get_world_size()
    for pieces in {1, max(1, t // 2), t}:
        mine, factor = tensor_ops.piece_of(pieces), random(3, seed=dist.get_rank())
        piece = random(pieces, 3)[mine].clone().requires_grad_()
        (tensor_ops.copy_to_sharers(piece, pieces) * factor).sum().backward()
        sharers = [rank for rank in range(t) if rank * pieces // t == mine]
        close(piece.grad, sum(random(3, seed=rank) for rank in sharers))


def check_layer(whole, cut, x, into=lambda x: x, out=lambda y: y):
    """gradcheck of a parallel layer with respect to x and to every *whole* weight, all of them the same on all ranks.

    into, out  from the whole x to what the layer takes, and from what it returns to the whole y
    """
    parallel = cut(whole)
    names, weights = zip(*whole.named_parameters())
    parts = dict(parallel.named_parameters())

    def function(x, *weights):
        cut_weights = {name: own_part(w, parts[name]) for name, w in zip(names, weights)}
        return out(functional_call(parallel, cut_weights, (into(x),)))

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, *weights) if tensor.is_floating_point()]
    if not x.is_floating_point():
        assert gradcheck(lambda *weights: function(x, *weights), inputs, fast_mode=True)
    else:
        assert gradcheck(function, inputs, fast_mode=True)


def own_part(whole, part):
    """This rank's part of a whole weight; backward, the parts' gradients come together, a shared part's once."""
    if whole.shape == part.shape:
        return whole
    dim = next(dim for dim in range(whole.dim()) if whole.shape[dim] != part.shape[dim])
    length, size = whole.shape[dim], part.shape[dim]
    t, shared = dist.get_world_size(), 1
    start = shard_range(length)[0]
    if size * t > length and length % size == 0 and t % (length // size) == 0:
        shared = t // (length // size)
        start = tensor_ops.piece_of(length // size) * size
    piece = tensor_ops.copy_to_group(whole).narrow(dim, start, size)
    return piece / shared + (piece * (1 - 1 / shared)).detach()


def joined(y):
    return tensor_ops.join_parts(y, dim=-1)


def every_layer():
    x, wide = random(2, 4, 8), random(2, 4, 12)
    torch.manual_seed(0)
    check_layer(nn.Linear(8, 12).double(), tensor.ColumnParallelLinear, x, out=joined)
    check_layer(nn.Linear(12, 8).double(), tensor.RowParallelLinear, wide, into=tensor_ops.split_to_parts)

    embedding = nn.Embedding(10, 8).double()
    check_layer(embedding, tensor.VocabParallelEmbedding, torch.arange(12).view(2, 6) % 10)

    for options, kv_heads in [(SWIGLU, 4), (SWIGLU, 2), (GELU, 1)]:  # with four ranks: a head each, half, a quarter
        block = LanguageModel(Transformer(kv_heads=kv_heads, **options), dtype=torch.float64).layers[0]
        with torch.no_grad():
            for number, parameter in enumerate(block.parameters()):
                parameter += 0.3 * random(*parameter.shape, seed=number)
        check_layer(block.attention, tensor.ParallelAttention, x)
        check_layer(block.feed_forward, tensor.ParallelMLP, x)


def cross_entropy():
    targets = torch.tensor([[3, 0, -100], [9, 4, 3]])
    start, end = shard_range(10)

    def function(logits):
        part = tensor_ops.copy_to_group(logits)[..., start:end]
        return tensor.vocab_parallel_cross_entropy(part, targets, 10)

    assert gradcheck(function, random(2, 3, 10).requires_grad_())


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_gradients_are_those_of_finite_differences(world_size):
    def worker():
        every_operator()
        shared_piece()
        every_layer()
        cross_entropy()

    launch(worker, world_size=world_size)


# The wrong operators


def test_wrong_f_and_g():
    """g with an all-reduce in backward gives gradients × t; without f each rank sees its own part of x's gradient."""

    class AllReduceBothWays(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return tensor_ops.reduce_from_group(x)

        @staticmethod
        def backward(ctx, gradient):
            return tensor_ops.reduce_from_group(gradient)

    def gradients(f, g):
        x, a, b = random(5, 4).requires_grad_(), columns(random(4, 8)), random(8, 3).tensor_split(dist.get_world_size())
        a, b = a.clone().requires_grad_(), b[dist.get_rank()].clone().requires_grad_()
        g(torch.tanh(f(x) @ a) @ b).pow(2).sum().backward()
        return x.grad, a.grad, b.grad

    def worker():
        f, g = tensor_ops.copy_to_group, tensor_ops.reduce_from_group
        return gradients(f, g), gradients(f, AllReduceBothWays.apply), gradients(lambda x: x, g)

    results = launch(worker, world_size=4).results
    for right, wrong_g, without_f in results:
        for expected, actual in zip(right, wrong_g):
            close(actual, 4 * expected)
        close(without_f[1], right[1])
        assert (without_f[0] - right[0]).abs().max() > 1e-3
    close(sum(without_f[0] for _, _, without_f in results), results[0][0][0])


def test_pytorchs_differentiable_all_reduce_counts_a_replicated_loss_once_per_rank():
    """Its backward pass is an all-reduce: right when the ranks' losses are added, × N when all have the same one."""
    from torch.distributed.nn.functional import all_reduce

    def worker():
        part = random(4, seed=dist.get_rank()).requires_grad_()
        all_reduce(part).sum().backward()
        return part.grad

    for gradient in launch(worker, world_size=4).results:
        close(gradient, torch.full((4,), 4.0, dtype=torch.float64))
