"""Our tensor-parallel layers against Megatron's own (megatron-core), on CPU ranks. `make peers` installs it and runs this.

Megatron's layers start from random parts of their own. Here every rank gives them the same parts that ours hold, so
that outputs and gradients must agree to rounding in fp64.
"""

import warnings
from importlib.util import find_spec

import pytest

if find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed; `make peers` installs it", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn

from utils.parallel import tensor, tensor_ops
from utils.ranks import launch

BATCH, SEQUENCE, HIDDEN, FFN, VOCAB = 2, 6, 8, 12, 32


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def own_columns(x):
    return x.tensor_split(dist.get_world_size(), -1)[dist.get_rank()].clone()


def start_megatron():
    """Megatron's package with all ranks as one tensor-parallel group; it asks for a GPU where a CPU would do."""
    warnings.simplefilter("ignore")
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    return tensor_parallel


def build(layer, *sizes, **options):
    """A layer of Megatron's for the CPU, in fp64."""
    from megatron.core.model_parallel_config import ModelParallelConfig

    config = ModelParallelConfig(
        tensor_model_parallel_size=dist.get_world_size(), use_cpu_initialization=True, params_dtype=torch.float64
    )
    return layer(*sizes, config=config, init_method=nn.init.normal_, **options)


def same_weights(theirs, ours):
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            assert getattr(theirs, name).shape == parameter.shape
            getattr(theirs, name).copy_(parameter)


def check(theirs, ours, x):
    """Equal outputs and equal gradients of x and of each weight. Megatron returns (output, bias not yet added)."""
    x_theirs, x_ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    (y_theirs, _), y_ours = theirs(x_theirs), ours(x_ours)
    close(y_ours, y_theirs)
    weights = random(*y_ours.shape, seed=4)
    (y_theirs * weights).sum().backward()
    (y_ours * weights).sum().backward()
    close(x_ours.grad, x_theirs.grad)
    for name, parameter in ours.named_parameters():
        close(parameter.grad, getattr(theirs, name).grad)


def linear_layers(megatron):
    for bias in (True, False):
        torch.manual_seed(0)
        column, row = nn.Linear(HIDDEN, FFN, bias=bias).double(), nn.Linear(FFN, HIDDEN, bias=bias).double()

        ours = tensor.ColumnParallelLinear(column)
        theirs = build(megatron.ColumnParallelLinear, HIDDEN, FFN, bias=bias, gather_output=False)
        same_weights(theirs, ours)
        check(theirs, ours, random(SEQUENCE, BATCH, HIDDEN))

        ours = tensor.RowParallelLinear(row)
        theirs = build(
            megatron.RowParallelLinear, FFN, HIDDEN, bias=bias, input_is_parallel=True, skip_bias_add=False
        )
        same_weights(theirs, ours)
        check(theirs, ours, own_columns(random(SEQUENCE, BATCH, FFN)))


def vocabulary(megatron):
    torch.manual_seed(0)
    ours = tensor.VocabParallelEmbedding(nn.Embedding(VOCAB, HIDDEN).double())
    theirs = build(megatron.VocabParallelEmbedding, VOCAB, HIDDEN)
    same_weights(theirs, ours)
    ids = torch.arange(2 * VOCAB).view(2, VOCAB) % VOCAB
    weights = random(2, VOCAB, HIDDEN)
    results = []
    for embedding in (theirs, ours):
        y = embedding(ids)
        (y * weights).sum().backward()
        results.append((y, embedding.weight.grad))
    for expected, actual in zip(*results):
        close(actual, expected)

    logits = (10 * random(SEQUENCE, BATCH, VOCAB)).float()  # Megatron computes the loss in fp32, whatever it is given
    targets = ids[:, :SEQUENCE].t().contiguous()
    losses = []
    for cross_entropy in (
        megatron.vocab_parallel_cross_entropy,
        lambda part, targets: tensor.vocab_parallel_cross_entropy(part, targets, VOCAB, reduction="none"),
    ):
        part = own_columns(logits).requires_grad_()
        loss = cross_entropy(part * 1.0, targets)  # Megatron's works in place, on what is not a leaf
        (loss * random(SEQUENCE, BATCH, seed=6)).sum().backward()
        losses.append((loss, part.grad))
    for expected, actual in zip(*losses):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def exchanges(megatron):
    """f, g and the pairs, by Megatron's names for them; parts along the last dimension, or the first for sequences."""
    first = {"dim": 0}
    pairs = [
        (megatron.copy_to_tensor_model_parallel_region, tensor_ops.copy_to_group),
        (megatron.reduce_from_tensor_model_parallel_region, tensor_ops.reduce_from_group),
        (megatron.scatter_to_tensor_model_parallel_region, tensor_ops.split_to_parts),
        (megatron.gather_from_tensor_model_parallel_region, lambda x: tensor_ops.join_parts(x, dim=-1)),
        (megatron.gather_from_sequence_parallel_region, lambda x: tensor_ops.gather_from_parts(x, **first)),
        (megatron.reduce_scatter_to_sequence_parallel_region, lambda x: tensor_ops.reduce_scatter_to_parts(x, **first)),
    ]
    for pair in pairs:
        results = []
        for operator in pair:
            x = random(4, 2, 8, seed=dist.get_rank()).requires_grad_()
            y = operator(x)
            (y * random(*y.shape, seed=10 + dist.get_rank())).sum().backward()
            results.append((y, x.grad))
        for expected, actual in zip(*results):
            close(actual, expected)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("part", [linear_layers, vocabulary, exchanges])
def test_equal_to_megatron(part, world_size):
    launch(lambda: part(start_megatron()), world_size=world_size, timeout=180)
