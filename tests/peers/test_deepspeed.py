"""DeepSpeed's ZeRO and ours: the same model, ten steps, the same weights. `make deepspeed` installs it and runs this."""

import contextlib
import functools

import pytest
import torch
import torch.distributed as dist

from utils.parallel import deepspeed
from utils.parallel.data import shard_batch
from utils.parallel.model import LanguageModel
from utils.parallel.zero import Zero1, Zero2, Zero3
from utils.ranks import launch
from utils.theory.models import Transformer

STEPS, BATCH, RANKS = 10, 8, 2
ADAM = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
# DeepSpeed reduces gradients in fp32 at best, so everything is fp32 here. Gradients differ by the order of additions:
# 1e-7 of their size, 1e-5 for a sum that lost two digits. Adam divides a gradient by its own size: an update of
# lr = 0.01 is off by lr times that, 1e-7, and ten updates by 1e-6. A digit is for other machines.
CLOSE = 1e-5
RUNS = [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]
SHAPE = Transformer(2, 32, 4, kv_heads=2, ffn=48, vocab=65, sequence=16, activation="swiglu", tied=False)

needs_deepspeed = pytest.mark.skipif(not deepspeed.available(), reason=deepspeed.missing())


def batch(step):
    return torch.randint(SHAPE.vocab, (2, BATCH, SHAPE.sequence), generator=torch.Generator().manual_seed(step))


def own_parts():
    return [tuple(shard_batch(part) for part in batch(step)) for step in range(STEPS)]


def loss_of(model, tokens, targets):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def by_deepspeed():
    trained = {}
    for stage, offload in RUNS:
        dist.barrier()
        trained[stage, offload] = deepspeed.train(LanguageModel(SHAPE), loss_of, own_parts(), stage, offload, ADAM)
    return trained


SGD = functools.partial(torch.optim.SGD, lr=0.1)  # sees the length of a gradient, which Adam hides


def steep_loss(model, tokens, targets):
    return 10 * loss_of(model, tokens, targets)  # gradients far longer than 1


def by_deepspeed_with_sgd():
    """As it is configured here, and as DeepSpeed would do it without a word about clipping."""
    plain = deepspeed.configuration

    def silent(*given, **named):
        return {key: value for key, value in plain(*given, **named).items() if key != "gradient_clipping"}

    finals = []
    for configuration in (plain, silent):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deepspeed, "configuration", configuration)
            finals.append(deepspeed.train(LanguageModel(SHAPE), steep_loss, own_parts(), 2, optimizer=SGD).weights)
    return finals


def by_hand():
    finals = {}
    for stage, make in {1: Zero1, 2: Zero2, 3: Zero3}.items():
        zero = make(LanguageModel(SHAPE), ADAM)
        for tokens, targets in own_parts():
            zero.backward(loss_of(zero, tokens, targets))
            zero.step()
        with zero.gathered() if stage == 3 else contextlib.nullcontext():
            finals[stage] = {name: p.detach().clone() for name, p in zero.model.named_parameters()}
    return finals


def alone(make_optimizer=ADAM, loss_of=loss_of):
    model = LanguageModel(SHAPE)
    optimizer, losses = make_optimizer(model.parameters()), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {name: p.detach() for name, p in model.named_parameters()}, losses


def furthest(actual, expected):
    assert actual.keys() == expected.keys()
    return torch.stack([(actual[name] - expected[name]).abs().max() for name in expected]).max().item()


@pytest.fixture(scope="module")
def theirs():
    return launch(by_deepspeed, world_size=RANKS, timeout=300)


@pytest.mark.slow
@needs_deepspeed
def test_the_same_weights_as_ours_and_as_one_process(theirs):
    ours = launch(by_hand, world_size=RANKS).results[0]
    weights, losses = alone()
    start = {name: p.detach() for name, p in LanguageModel(SHAPE).named_parameters()}
    for (stage, offload), trained in theirs.results[0].items():
        assert furthest(trained.weights, weights) <= CLOSE, (stage, offload)
        assert furthest(trained.weights, ours.get(stage, weights)) <= CLOSE, (stage, offload)
        assert trained.losses == pytest.approx(losses, abs=CLOSE)
        assert furthest(trained.weights, theirs.results[1][stage, offload].weights) == 0
    assert furthest(start, weights) > 1000 * CLOSE  # it did train


@pytest.mark.slow
@needs_deepspeed
def test_each_stage_keeps_its_shard_only(theirs):
    psi = SHAPE.parameters
    for (stage, offload), trained in theirs.results[0].items():
        assert trained.optimizer_elements == 2 * psi / (RANKS if stage >= 1 else 1), (stage, offload)
        assert trained.parameter_elements == psi / (RANKS if stage == 3 else 1), (stage, offload)


@pytest.mark.slow
@needs_deepspeed
def test_what_deepspeed_sends(theirs):
    """3Ψ at stage 3. On gloo its stages 1 and 2 all-reduce the gradients, twice what a reduce-scatter would move."""
    stretches = [{}]
    for call in theirs.records[0].calls:
        if call.op == "barrier" and stretches[-1]:
            stretches.append({})
        elif call.op in ("all_gather", "reduce_scatter", "all_reduce") and call.elements > 1:
            stretches[-1][call.op] = stretches[-1].get(call.op, 0) + call.elements
    sent = dict(zip(RUNS, [stretch for stretch in stretches if stretch]))
    steps = STEPS * SHAPE.parameters
    assert sent[0, False] == {"all_reduce": steps}
    for stage in (1, 2):
        assert sent[stage, False] == sent[stage, True] == {"all_reduce": steps, "all_gather": steps}
    once = SHAPE.parameters  # more in the first step, and again for the weights that `train` returns
    assert sent[3, False] == sent[3, True] == {"all_gather": 2 * steps + 2 * once, "reduce_scatter": steps}


@pytest.mark.slow
@needs_deepspeed
def test_gradients_are_not_clipped():
    ours, clipped = launch(by_deepspeed_with_sgd, world_size=RANKS, timeout=120).results[0]
    expected, _ = alone(SGD, steep_loss)
    assert furthest(ours, expected) <= CLOSE
    assert furthest(clipped, expected) > 1000 * CLOSE


def test_without_deepspeed_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(deepspeed.importlib.util, "find_spec", lambda name: None)
    assert not deepspeed.available()
    with pytest.raises(RuntimeError, match="is not installed here.*`make deepspeed` installs it"):
        deepspeed.train(None, None, [], stage=1)


def test_a_configuration_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="stages 0, 1, 2 and 3, but 4 was given"):
        deepspeed.configuration(4)
    with pytest.raises(ValueError, match="offloads from stage 1 on"):
        deepspeed.configuration(0, offload=True)
