"""Tensor parallelism on real ranks against one process, in double precision."""

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from utils.parallel import tensor, tensor_ops
from utils.parallel.model import LanguageModel
from utils.ranks import launch
from utils.theory.models import Transformer

LLAMA = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=4, ffn=48, vocab=65, sequence=8, activation="swiglu", tied=False
)
GROUPED = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=66, sequence=8, activation="swiglu", tied=True
)
GPT = Transformer(layers=2, hidden=32, heads=4, kv_heads=1, vocab=65, sequence=8)
BATCH = 3


def close(actual, expected):
    """Sums in another order: a few of fp64's last bits."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nasty(config, **options):
    """A model whose biases and norms are not what they start as."""
    model = LanguageModel(config, dtype=torch.float64, **options)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.3 * random(*parameter.shape, seed=number)
    return model


def batch(config):
    generator = torch.Generator().manual_seed(5)
    tokens, targets = torch.randint(config.vocab, (2, BATCH, config.sequence), generator=generator)
    targets[0, :3] = -100
    return tokens, targets


def check_gradients(parallel, whole, cut):
    """Each rank's gradients are those of the whole module, cut as `cut` cuts its weights."""
    for parameter in whole.parameters():
        parameter.data = parameter.grad
    expected = dict(cut(whole).named_parameters())
    assert expected.keys() == dict(parallel.named_parameters()).keys()
    for name, parameter in parallel.named_parameters():
        close(parameter.grad, expected[name].detach())


def check_module(whole, cut, x, into=lambda x: x, out=lambda y: y):
    """The same output, input gradient and parameter gradients as the whole module in this process.

    into, out  this rank's part of the input, and of the output: the identity when every rank has all of it.
    """
    whole = deepcopy(whole)
    parallel = cut(whole)
    x_whole, x_part = x.clone().requires_grad_(), into(x).clone().requires_grad_()
    expected, actual = whole(x_whole), parallel(x_part)
    close(actual, out(expected))
    weights = random(*expected.shape, seed=9)
    (expected * weights).sum().backward()
    (actual * out(weights)).sum().backward()
    close(x_part.grad, into(x_whole.grad))
    check_gradients(parallel, whole, cut)


def columns(y):
    return y.tensor_split(dist.get_world_size(), -1)[dist.get_rank()]


def sequence_part(x):
    return x.tensor_split(dist.get_world_size(), 1)[dist.get_rank()]


def every_operator():
    x, row_x = random(BATCH, 8, 12), random(BATCH, 8, 18)
    for bias in (True, False):
        torch.manual_seed(0)
        column, row = nn.Linear(12, 18, bias=bias).double(), nn.Linear(18, 12, bias=bias).double()
        check_module(column, tensor.ColumnParallelLinear, x, out=columns)
        check_module(row, tensor.RowParallelLinear, row_x, into=columns)
        check_module(
            column,
            lambda linear: tensor.ColumnParallelLinear(linear, sequence_parallel=True),
            x,
            into=sequence_part,
            out=columns,
        )
        both = nn.Sequential(column, nn.GELU(), row)
        for parallel in (False, True):

            def cut(both, parallel=parallel):
                first = tensor.ColumnParallelLinear(both[0], sequence_parallel=parallel)
                return nn.Sequential(first, both[1], tensor.RowParallelLinear(both[2], sequence_parallel=parallel))

            own = sequence_part if parallel else (lambda x: x)
            check_module(both, cut, x, into=own, out=own)

    x_here = sequence_part(x).clone().requires_grad_()  # gathered for a use that is the same everywhere: t uses
    (tensor_ops.gather_from_parts(x_here) * x).sum().backward()
    close(x_here.grad, sequence_part(x) * dist.get_world_size())
    x_here = row_x[..., :16].clone().requires_grad_()
    (tensor_ops.split_to_parts(x_here) * columns(row_x[..., :16])).sum().backward()
    close(x_here.grad, row_x[..., :16])
    x_here = columns(row_x[..., :16]).clone().requires_grad_()
    (tensor_ops.join_parts(x_here) * row_x[..., :16]).sum().backward()
    close(x_here.grad, columns(row_x[..., :16]))


def every_layer():
    for config in (LLAMA, GROUPED, GPT):
        model, x = nasty(config), random(BATCH, config.sequence, config.hidden)
        block = model.layers[0]
        for whole, cut in [
            (block.attention, tensor.ParallelAttention),
            (block.feed_forward, tensor.ParallelMLP),
            (block, tensor.ParallelBlock),
        ]:
            check_module(whole, cut, x)
        check_module(
            block,
            lambda block: tensor.ParallelBlock(block, sequence_parallel=True),
            x,
            into=sequence_part,
            out=sequence_part,
        )
    mlp = tensor.ParallelMLP(nasty(GPT).layers[0].feed_forward)
    assert torch.autograd.gradcheck(mlp, random(1, 2, 32).requires_grad_(), fast_mode=True)


def vocabulary():
    for vocab in (64, 65, 7):
        embedding = nn.Embedding(vocab, 12).double()
        with torch.no_grad():
            embedding.weight.copy_(random(vocab, 12))
        ids = torch.arange(2 * vocab).view(2, vocab) % vocab
        parallel = tensor.VocabParallelEmbedding(embedding)
        close(parallel(ids), embedding(ids))
        weights = random(2, vocab, 12)
        (parallel(ids) * weights).sum().backward()
        (embedding(ids) * weights).sum().backward()
        check_gradients(parallel, embedding, tensor.VocabParallelEmbedding)

        logits = 50 * random(2, vocab, vocab) + 1000  # overflows without the maximum of all ranks
        targets = ids.clone()
        targets[0, :2] = -100
        for reduction in ("mean", "sum", "none"):
            whole, part = logits.clone().requires_grad_(), columns(logits).clone().requires_grad_()
            expected = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction=reduction)
            actual = tensor.vocab_parallel_cross_entropy(part, targets, vocab, reduction=reduction)
            close(actual.flatten(), expected.flatten())
            (expected.flatten() * 3).sum().backward()
            (actual.flatten() * 3).sum().backward()
            close(part.grad, columns(whole.grad))
        half = columns(logits).bfloat16()
        assert tensor.vocab_parallel_cross_entropy(half, targets, vocab).dtype == torch.float32


def whole_model():
    for config in (LLAMA, GROUPED, GPT):
        tokens, targets = batch(config)
        for sequence_parallel in (False, True):

            def cut(model, sequence_parallel=sequence_parallel):
                return tensor.ParallelLanguageModel(model, sequence_parallel=sequence_parallel)

            whole = nasty(config)
            parallel = cut(whole)
            close(parallel(tokens), columns(whole(tokens)))
            expected, actual = whole.loss(tokens, targets), parallel.loss(tokens, targets)
            close(actual, expected)
            expected.backward()
            actual.backward()
            if config.tied:
                assert parallel.output.weight is parallel.tok_embeddings.weight
                whole.output.weight = nn.Parameter(whole.tok_embeddings.weight.grad)
                whole.tok_embeddings.weight = whole.output.weight
                whole.output.weight.grad = whole.output.weight.data
            check_gradients(parallel, whole, cut)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equal_to_one_process(world_size):
    def worker():
        every_operator()
        every_layer()
        vocabulary()
        whole_model()

    launch(worker, world_size=world_size)


# Randomness


def test_dropout_repeats_in_replicated_regions_and_differs_in_split_ones():
    def worker(sequence_parallel):
        torch.manual_seed(0)
        model = tensor.ParallelLanguageModel(nasty(GPT, dropout=0.5), sequence_parallel=sequence_parallel)
        masks = {}
        for name, module in model.named_modules():
            if name.endswith("dropout"):
                module.register_forward_hook(lambda _, x, y, name=name: masks.update({name: (x[0] != 0) & (y == 0)}))
        model(batch(GPT)[0])
        return masks, torch.rand(3).tolist()

    for sequence_parallel in (False, True):
        (here, next_here), (there, next_there) = launch(worker, sequence_parallel, world_size=2).results
        assert next_here == next_there
        assert len(here) == 1 + 2 * GPT.layers
        for name in here:
            split = sequence_parallel or "attention" in name
            assert here[name].any() and there[name].any()
            assert torch.equal(here[name], there[name]) != split, name


# Refusals, groups


def test_what_does_not_fit_is_refused():
    def sentence(fn):
        with pytest.raises((ValueError, IndexError)) as caught:
            fn()
        return str(caught.value)

    def worker():
        heads = Transformer(layers=1, hidden=6, heads=3, vocab=8, activation="swiglu")
        wide = Transformer(layers=1, hidden=8, heads=2, ffn=7, vocab=8, activation="swiglu")
        model = tensor.ParallelLanguageModel(LanguageModel(LLAMA), sequence_parallel=True)
        wrong = torch.full((1, 2), 65)
        return [
            sentence(lambda: tensor.ParallelAttention(LanguageModel(heads).layers[0].attention)),
            sentence(lambda: tensor.ParallelMLP(LanguageModel(wide).layers[0].feed_forward)),
            sentence(lambda: model(torch.zeros(1, 3, dtype=torch.long))),
            sentence(lambda: model.tok_embeddings(wrong)),
            sentence(lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(1, 2, 33 - dist.get_rank()), wrong, 65)),
            sentence(lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(1, 2, 65), wrong, 65)),
            sentence(lambda: tensor.ColumnParallelLinear(nn.Linear(4, 1))),
        ]

    for sentences in launch(worker, world_size=2).results:
        parts = [
            "tensor = 2 and heads = 3",
            "tensor = 2 and ffn = 7",
            "2 does not divide 3",
            "A token id is between 0 and 64, but 65",
            "A target is between 0 and 64, but 65",
            "(1, 2, 65) was given",
            "A dimension of 1 cannot be cut over 2 ranks",
        ]
        for text, part in zip(sentences, parts, strict=True):
            assert part in text


def test_everything_stays_in_its_group():
    """Two groups of two ranks train on different batches, as tensor times data parallelism does."""

    def worker():
        rank = dist.get_rank()
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        whole = nasty(GROUPED)
        parallel = tensor.ParallelLanguageModel(whole, groups[rank % 2], sequence_parallel=True)
        tokens, targets = (part[rank % 2 :] for part in batch(GROUPED))
        close(parallel.loss(tokens, targets), whole.loss(tokens, targets))

    run = launch(worker, world_size=4)
    assert set(run.comm().elements) and not run.warnings
