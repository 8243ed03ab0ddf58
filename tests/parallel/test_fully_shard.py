"""Our ZeRO stages and PyTorch's own forms of them: ten steps in fp64, what they send, and what the wire carries."""

import functools

import pytest
import torch

from utils.parallel.data import average_gradients, shard_batch
from utils.parallel.fully_sharded import shard_with_torch, whole_state
from utils.parallel.model import LanguageModel
from utils.parallel.zero import Zero1, Zero2, Zero3
from utils.ranks import launch
from utils.theory.models import Transformer
from utils.theory.traffic import zero_elements_per_step

STEPS, BATCH = 10, 8
# The order of additions differs, so gradients differ in their last bits: 1e-16 of their size, and a hundred times that
# for a sum that lost two digits. Adam divides a gradient by its own size, so an update of lr = 0.01 is off by lr times
# the relative error, 1e-16; ten of them, and the rounding of weights of size 1, stay below 1e-14. A digit for other machines.
CLOSE = 1e-13
# A key's bias adds the same to all scores of a query, which the softmax does not see: its gradient is 0 but for rounding,
# 1e-18 here, and Adam divides that by its eps = 1e-8 alone: 1e-12 for each update.
CLOSE_KEY_BIAS = 1e-11
ADAM = dict(lr=0.01, weight_decay=0.1)
SHAPES = {  # biases and a tied head; grouped queries and an untied head
    "gpt": Transformer(2, 32, 4, vocab=65, sequence=16),
    "llama": Transformer(2, 32, 4, kv_heads=2, ffn=48, vocab=65, sequence=16, activation="swiglu", tied=False),
}
OURS = {
    "1": Zero1,
    "2": Zero2,
    "3": Zero3,
    "3 kept": functools.partial(Zero3, reshard_after_forward=False),
}
THEIRS = {
    "reshard": dict(),
    "keep": dict(reshard_after_forward=False),
    "offload": dict(cpu_offload=True),
    "keep, offload": dict(reshard_after_forward=False, cpu_offload=True),
}


def batch(step, shape):
    return torch.randint(shape.vocab, (2, BATCH, shape.sequence), generator=torch.Generator().manual_seed(step))


def part(step, shape):
    return [shard_batch(tokens) for tokens in batch(step, shape)]


def loss_of(model, tokens, targets):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def model_of(shape, mixed=False):
    """With a frozen matrix in a layer that is trained. Mixed: FSDP keeps fp32, so begin with what bf16 holds exactly."""
    model = LanguageModel(shape, dtype=torch.bfloat16 if mixed else torch.float64)
    model.layers[0].feed_forward.w1.requires_grad_(False)
    return model


def by_hand(shape, make, mixed=False):
    zero = make(model_of(shape, mixed), functools.partial(torch.optim.AdamW, **ADAM))
    for step in range(STEPS):
        zero.backward(loss_of(zero, *part(step, shape)))
        zero.step()
    if not isinstance(zero, Zero3):
        return whole_state(zero.model)
    with zero.gathered() as model:
        return whole_state(model)


def steps_of(model, optimizer, shape, before_step=lambda: None):
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *part(step, shape)).backward()
        before_step()
        optimizer.step()
    return whole_state(model)


def by_fully_shard(shape, mixed=False, **options):
    model = model_of(shape, mixed)
    model = shard_with_torch(model.float() if mixed else model, mixed=mixed, **options)
    return steps_of(model, torch.optim.AdamW(model.parameters(), **ADAM), shape)


def by_redundancy_optimizer(shape):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = model_of(shape)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAM)
    return steps_of(model, optimizer, shape, lambda: average_gradients(model))


def all_of_them(shape):
    torch.set_num_threads(1)  # LayerNorm's backward pass adds up by threads
    ours = {stage: by_hand(shape, make) for stage, make in OURS.items()}
    theirs = {name: by_fully_shard(shape, **options) for name, options in THEIRS.items()}
    theirs["redundancy"] = by_redundancy_optimizer(shape)
    mixed = by_hand(shape, Zero3, mixed=True), by_fully_shard(shape, mixed=True)
    return ours, theirs, mixed


def one_process(shape):
    model = model_of(shape)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch(step, shape)).backward()
        optimizer.step()
    return whole_state(model)


def furthest(actual, expected):
    """The largest difference, of everything but the keys' biases and of them."""
    assert actual.keys() == expected.keys()
    largest = {False: 0.0, True: 0.0}
    for name in expected:
        difference, is_key_bias = (actual[name] - expected[name]).abs().max().item(), name.endswith("wk.bias")
        assert difference == difference, name  # no NaN
        largest[is_key_bias] = max(largest[is_key_bias], difference)
    return largest[False], largest[True]


def are_close(actual, expected):
    difference, of_key_biases = furthest(actual, expected)
    return difference <= CLOSE and of_key_biases <= CLOSE_KEY_BIAS


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_ten_steps_of_every_form_are_the_same(name):
    shape = SHAPES[name]
    run = launch(all_of_them, shape, world_size=2)
    ours, theirs, (our_mixed, their_mixed) = run.results[0]
    expected, start = one_process(shape), whole_state(model_of(shape))
    assert furthest(start, expected)[0] > 0.01  # it did train
    for form, final in {**ours, **theirs}.items():
        assert are_close(final, expected), (form, furthest(final, expected))
        for stage in ours:
            assert are_close(final, ours[stage]), (form, stage, furthest(final, ours[stage]))
    # In bf16 two ranks add two numbers, in whichever order: bitwise the same.
    assert furthest(our_mixed, {name: tensor.bfloat16() for name, tensor in their_mixed.items()}) == (0, 0)


# What they send. A model large enough that the headers of messages do not count

LARGE = Transformer(2, 128, 4, kv_heads=4, ffn=256, vocab=256, sequence=8, activation="swiglu", tied=False)


def one_step(make):
    """One training step, and nothing else is sent."""
    torch.set_num_threads(1)
    if isinstance(make, dict):
        model = shard_with_torch(LanguageModel(LARGE), **make)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        model = optimizer = make(LanguageModel(LARGE))
    loss = loss_of(model, *part(0, LARGE))
    loss.backward() if isinstance(make, dict) else model.backward(loss)
    optimizer.step()


def sent_of(make, world_size):
    run = launch(one_step, make, world_size=world_size)
    wire = run.wire()
    wire = None if wire.isna().any(axis=None) else wire.sum(axis=1) / (4 * LARGE.parameters)
    return run.comm(), wire


@pytest.mark.parametrize(
    "form, stage, times", [("1", 1, 2), ("2", 2, 2), ("3", 3, 3), ("3 kept", 2, 2), ("reshard", 3, 3), ("keep", 2, 2)]
)
def test_two_and_three_psi_by_definition_and_on_the_wire(form, stage, times):
    """Ours send exactly what the theory says. Gloo's reduce-scatter, which FSDP calls, carries an all-reduce: 1Ψ more."""
    n, psi = 4, LARGE.parameters
    assert zero_elements_per_step(psi, stage) == times * psi
    calls, wire = sent_of(THEIRS[form] if form in THEIRS else OURS[form], n)
    by_definition = calls.groupby("rank").sent_bytes.sum()
    assert by_definition.tolist() == [4 * zero_elements_per_step(psi, stage, n)] * n
    if form in THEIRS:
        elements = calls[calls["rank"] == 0].groupby("op").elements.sum().to_dict()
        assert elements == {"all_gather": (times - 1) * psi, "reduce_scatter": psi}
    if wire is None:
        pytest.skip("Only Linux counts the bytes on the wire.")
    on_the_wire = times + 1 if form in THEIRS else times
    assert wire.tolist() == pytest.approx([on_the_wire * (n - 1) / n] * n, rel=0.03)
