"""PyTorch's own tensor parallelism under the course's plans: the same numbers as ours, and what each plan sends."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from utils.parallel import tensor_plans
from utils.parallel.model import LanguageModel
from utils.parallel.tensor import ParallelLanguageModel
from utils.ranks import launch
from utils.theory.models import Transformer
from utils.theory.traffic import tensor_all_reduces_per_layer

CONFIGS = {
    kv_heads: Transformer(
        layers=2, hidden=32, heads=8, kv_heads=kv_heads, ffn=48, vocab=64, sequence=8, activation="swiglu", tied=False
    )
    for kv_heads in (8, 4, 2, 1)
}
BATCH = 3


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


def batch(config):
    tokens, targets = torch.randint(
        config.vocab, (2, BATCH, config.sequence), generator=torch.Generator().manual_seed(5)
    )
    targets[0, :3] = -100
    return tokens, targets


def parallelized(config, plan):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = LanguageModel(config, dtype=torch.float64)
    return parallelize_module(model, mesh, plan(config, dist.get_world_size()))


def whole_gradients(config):
    model = LanguageModel(config, dtype=torch.float64)
    loss = model.loss(*batch(config))
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def check_against_one_process(config, model, loss):
    expected_loss, expected = whole_gradients(config)
    close(loss.full_tensor() if isinstance(loss, DTensor) else loss, expected_loss)
    names = dict(model.named_parameters())
    assert names.keys() == expected.keys()
    for name, parameter in names.items():
        gradient = parameter.grad
        close(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient, expected[name])


@pytest.mark.parametrize(("world_size", "kv_heads"), [(2, 8), (4, 4), (4, 1)])
def test_equal_to_one_process(world_size, kv_heads):
    config = CONFIGS[kv_heads]

    def worker():
        for plan in (tensor_plans.naive_plan, tensor_plans.prepared_plan):
            model = parallelized(config, plan)
            loss = model.loss(*batch(config))
            loss.backward()
            check_against_one_process(config, model, loss)
        model = parallelized(config, tensor_plans.sequence_parallel_plan)
        with loss_parallel():
            loss = model.loss(*batch(config))
            loss.backward()
        check_against_one_process(config, model, loss)

    launch(worker, world_size=world_size)


@pytest.mark.parametrize(("world_size", "kv_heads"), [(2, 8), (4, 2)])
def test_equal_to_ours_on_every_rank(world_size, kv_heads):
    """The same rows of the same weights on the same rank, and the same gradients there."""
    config = CONFIGS[kv_heads]

    def worker():
        theirs = parallelized(config, tensor_plans.sequence_parallel_plan)
        ours = ParallelLanguageModel(LanguageModel(config, dtype=torch.float64), sequence_parallel=True)
        with loss_parallel():
            loss = theirs.loss(*batch(config))
            loss.backward()
        our_loss = ours.loss(*batch(config))
        our_loss.backward()
        close(our_loss, loss.full_tensor())
        our_parameters, compared = dict(ours.named_parameters()), 0
        for name, parameter in theirs.named_parameters():
            if parameter.to_local().shape == our_parameters[name].shape:  # all but wk and wv with shared heads
                close(parameter.to_local(), our_parameters[name])
                gradient = parameter.grad.redistribute(placements=parameter.placements).to_local()
                close(gradient, our_parameters[name].grad)
                compared += 1
        return compared, len(our_parameters)

    shared = 2 * config.layers if kv_heads < world_size else 0
    for compared, parameters in launch(worker, world_size=world_size).results:
        assert compared == parameters - shared


def counts(config, plan, world_size=2):
    """All-reduces of b·s·h elements on rank 0, forward and backward; the loss's own small ones are left out."""

    def worker():
        model = parallelized(config, plan)
        x = torch.ones(BATCH, config.sequence, config.hidden, dtype=torch.float64, requires_grad=True)
        dist.barrier()
        for layer in model.layers:
            x = layer(x)
        dist.barrier()
        x.sum().backward()

    calls = launch(worker, world_size=world_size).calls().query("rank == 0")
    numbers = calls[calls.op == "barrier"].number.tolist()
    large = calls[(calls.op == "all_reduce") & (calls.elements == BATCH * config.sequence * config.hidden)]
    return [int(large.number.between(*numbers).sum()), int((large.number > numbers[1]).sum())]


def test_the_naive_plan_reduces_the_gradient_of_one_input_many_times():
    config = CONFIGS[8]
    megatron = config.layers * tensor_all_reduces_per_layer() // 2
    assert counts(config, tensor_plans.naive_plan) == [megatron, 10]
    assert counts(config, tensor_plans.prepared_plan) == [megatron, megatron]


def test_loss_parallel_sends_numbers_per_token_and_no_logits():
    config = CONFIGS[8]

    def worker():
        model = parallelized(config, tensor_plans.sequence_parallel_plan)
        tokens, targets = batch(config)
        dist.barrier()
        with loss_parallel():
            logits = model(tokens)
            dist.barrier()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        return tuple(logits.to_local().shape)

    run = launch(worker, world_size=2)
    assert run.results == [(BATCH, config.sequence, config.vocab // 2)] * 2
    calls = run.calls().query("rank == 0")
    after_cutting, after_logits = calls.number[calls.op == "barrier"]
    assert calls[calls.number > after_cutting].elements.max() == BATCH * config.sequence * config.hidden
    loss = calls[calls.number > after_logits].head(3)
    assert set(loss.op) == {"all_reduce"} and set(loss.elements) == {BATCH * config.sequence}


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="tensor = 3 and heads = 8"):
        tensor_plans.naive_plan(CONFIGS[8], 3)
