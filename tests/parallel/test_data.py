"""Data parallelism on real ranks against one process on the whole batch, in double precision."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from utils.parallel import data
from utils.parallel.collectives import ring_all_reduce
from utils.ranks import RankError, launch
from utils.theory.collectives import all_reduce_elements_sent, parameter_server_elements

CLOSE = dict(rtol=0, atol=1e-12)


class Nasty(nn.Module):
    """Tied weights, a frozen layer, a parameter that nobody uses, a transposed weight, a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.frozen, self.unused = (
            nn.Linear(5, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 4),
            nn.Linear(2, 3),
        )
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(4, 3)
        self.last.weight = nn.Parameter(torch.randn(4, 3).t())
        self.register_buffer("shift", torch.randn(5))
        self.register_buffer("steps", torch.tensor(7))

    def forward(self, x):
        return self.last(
            torch.tanh(self.frozen(torch.tanh(self.second(torch.tanh(self.first(x + self.shift))))))
        )


def nasty(seed=0):
    torch.manual_seed(seed)
    return Nasty().double()


def batch_of(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 5, generator=generator).double(), torch.randn(
        size, 3, generator=generator
    ).double()


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)


def single_process(steps, batch_size):
    model = nasty()
    optimizer = adam(model)
    for step in range(steps):
        x, y = batch_of(batch_size, seed=step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return state(model)


def assert_same_state(actual, expected, **tolerance):
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


def average(how, model, weight, loss):
    """Run backward of `loss` (None: no samples) and average in one of the three ways."""
    if how == "overlapped":
        with data.overlapped_average(model, weight=weight, bucket_bytes=200, find_unused=True):
            if loss is not None:
                loss.backward()
        return
    if loss is not None:
        loss.backward()
    if how == "buckets":
        data.average_gradients_in_buckets(model, weight=weight, bucket_bytes=200, find_unused=True)
    else:
        reduce = ring_all_reduce if how == "ring" else dist.all_reduce
        data.average_gradients(model, weight=weight, all_reduce=reduce, find_unused=True)


@pytest.mark.parametrize("how", ["per parameter", "ring", "buckets", "overlapped"])
@pytest.mark.parametrize("world_size, batch_size", [(1, 5), (2, 8), (3, 10), (4, 3)])
def test_training_equals_one_process(how, world_size, batch_size):
    """Equal parts, unequal parts, and more ranks than samples; AdamW moves what should have no gradient."""

    def worker():
        model = nasty(seed=dist.get_rank())  # every rank starts elsewhere
        data.broadcast_model(model)
        optimizer = adam(model)
        for step in range(3):
            x, y = (data.shard_batch(part) for part in batch_of(batch_size, seed=step))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y) if len(x) else None
            average(how, model, data.share_of_batch(len(x), batch_size), loss)
            optimizer.step()
        return state(model), model.unused.weight.grad is None, model.frozen.weight.grad is None

    run = launch(worker, world_size=world_size)
    expected = single_process(3, batch_size)
    for replica, unused_left_alone, frozen_left_alone in run.results:
        assert unused_left_alone and frozen_left_alone
        assert_same_state(replica, expected, **CLOSE)
        assert_same_state(replica, run.results[0][0], rtol=0, atol=0)


@pytest.mark.parametrize("bucket_bytes", [None, 200])
@pytest.mark.parametrize("batch_size", [6, 7, 2])
def test_step_equals_one_process(bucket_bytes, batch_size):
    def worker():
        model = nasty()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = batch_of(batch_size, seed=0)
        data.data_parallel_step(
            model,
            nn.functional.mse_loss,
            optimizer,
            data.shard_batch(x),
            data.shard_batch(y),
            batch_size=batch_size,
            bucket_bytes=bucket_bytes,
        )
        return state(model)

    model = nasty()
    x, y = batch_of(batch_size, seed=0)
    nn.functional.mse_loss(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for replica in launch(worker, world_size=3).results:
        assert_same_state(replica, state(model), **CLOSE)


def test_plain_mean_is_wrong_for_unequal_parts():
    def worker():
        model = nasty()
        x, y = (data.shard_batch(part) for part in batch_of(7))
        nn.functional.mse_loss(model(x), y).backward()
        data.average_gradients(model)
        return model.first.weight.grad

    model = nasty()
    x, y = batch_of(7)
    nn.functional.mse_loss(model(x), y).backward()
    assert (launch(worker, world_size=3).results[0] - model.first.weight.grad).abs().max() > 1e-3


def test_broadcast_takes_everything_from_rank_0():
    def worker():
        model = nasty(seed=dist.get_rank())
        data.broadcast_model(model)
        return state(model), model.first.weight is model.second.weight, model.last.weight.stride()

    for replica, tied, strides in launch(worker, world_size=3).results:
        assert_same_state(replica, state(nasty(0)), rtol=0, atol=0)
        assert tied and strides == (1, 3)


def test_everything_stays_in_its_group():
    def worker():
        pair = dist.new_group([2, 1])
        model = nasty(seed=dist.get_rank())
        if dist.get_rank() > 0:
            data.broadcast_model(model, pair)
            x, y = (data.shard_batch(part, pair) for part in batch_of(5))
            data.data_parallel_step(
                model,
                nn.functional.mse_loss,
                torch.optim.SGD(model.parameters(), lr=0.1),
                x,
                y,
                batch_size=5,
                bucket_bytes=300,
                group=pair,
            )
        return state(model)

    alone, one, other = launch(worker, world_size=3).results
    assert_same_state(alone, state(nasty(0)), rtol=0, atol=0)
    assert_same_state(one, other, rtol=0, atol=0)
    assert not torch.equal(one["first.weight"], alone["first.weight"])


# Buckets


def test_buckets_run_backwards_and_hold_each_parameter_once():
    model = nasty()
    parameters = data.trainable_parameters(model)
    buckets = data.make_buckets(parameters, bucket_bytes=250)
    assert [p for bucket in buckets for p in bucket] == parameters[::-1]
    assert [sum(p.nbytes for p in bucket) for bucket in buckets] == [24 + 96 + 24 + 48 + 40, 40 + 200]
    assert [len(bucket) for bucket in data.make_buckets(parameters, bucket_bytes=1)] == [1] * len(parameters)
    assert data.make_buckets([]) == []


def test_a_bucket_has_one_dtype():
    parameters = [
        nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float64)
    ]
    assert [len(bucket) for bucket in data.make_buckets(parameters)] == [2, 1]


def test_buckets_leave_during_backward():
    """The first all-reduce starts before the first layer's gradient exists."""

    def worker():
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double()
        model[0].register_full_backward_hook(
            lambda *_: dist.barrier()
        )  # a line in the record: backward has come to the end
        with data.overlapped_average(model, bucket_bytes=model[0].weight.nbytes + model[0].bias.nbytes):
            model(torch.ones(1, 8, dtype=torch.float64, requires_grad=True)).sum().backward()

    run = launch(worker, world_size=2)
    for record in run.records:
        ops = [call.op for call in record.calls]
        assert ops.count("all_reduce") == 4 and ops.index("barrier") >= 3, ops


def test_bytes_are_those_of_an_all_reduce():
    trainable = data.trainable_parameters(nasty())
    parameters = sum(p.numel() for p in trainable)

    def worker(how):
        model = nasty()
        average(how, model, None, model(batch_of(2)[0]).sum())

    for how, calls in [
        ("per parameter", len(trainable)),
        ("buckets", len(data.make_buckets(trainable, 200))),
    ]:
        run = launch(worker, how, world_size=4)
        table = run.comm().query("op == 'all_reduce' and dtype == 'float64'")
        assert table.elements.tolist() == [parameters] * 4
        assert table.calls.tolist() == [calls] * 4
        assert table.sent_bytes.tolist() == [8 * 2 * parameters * 3 / 4] * 4
    ring = launch(worker, "ring", world_size=4).comm().query("op == 'send'")
    assert (
        ring.elements.tolist()
        == sum(all_reduce_elements_sent("ring", p.numel(), 4) for p in trainable).tolist()
    )


def test_a_parameter_used_on_one_rank_only():
    def worker():
        model = nasty()
        model.unused.double()
        x, _ = batch_of(2)
        loss = model(x).sum()
        if dist.get_rank() == 1:
            loss = loss + model.unused(torch.ones(1, 2, dtype=torch.float64)).sum()
        average("overlapped", model, None, loss)
        return model.unused.bias.grad

    for grad in launch(worker, world_size=2).results:
        assert grad.tolist() == [0.5] * 3


def test_accumulated_gradients():
    """All micro-batches but the last run outside the block; twice inside is refused."""

    def worker(inside):
        model = nasty()
        x, y = batch_of(8)
        mine = [(data.shard_batch(part)[::2], data.shard_batch(part)[1::2]) for part in (x, y)]
        losses = [nn.functional.mse_loss(model(a), b) / 2 for a, b in zip(*mine, strict=True)]
        if not inside:
            losses[0].backward()
        with data.overlapped_average(model, bucket_bytes=200):
            if inside:
                losses[0].backward()
            losses[1].backward()
        return model.first.weight.grad

    model = nasty()
    x, y = batch_of(8)
    nn.functional.mse_loss(model(x), y).backward()
    for grad in launch(worker, False, world_size=2).results:
        torch.testing.assert_close(grad, model.first.weight.grad, **CLOSE)
    with pytest.raises(RankError, match="backward ran twice inside overlapped_average"):
        launch(worker, True, world_size=2)


def test_hooks_are_gone_afterwards():
    def worker():
        model = nasty()
        with data.overlapped_average(model):
            model(batch_of(2)[0]).sum().backward()
        model(batch_of(2)[0]).sum().backward()

    run = launch(worker, world_size=2)
    assert run.comm().calls.tolist() == [1, 1]


@pytest.mark.parametrize("samples, batch_size", [(-1, 4), (5, 4), (0, 0)])
def test_share_refuses_what_is_no_share(samples, batch_size):
    with pytest.raises(ValueError, match=f"{samples} of {batch_size} were given"):
        data.share_of_batch(samples, batch_size)


# Parameter server


@pytest.mark.parametrize("workers, batch_size", [(1, 4), (3, 6), (3, 7), (3, 2)])
def test_parameter_server_equals_one_process(workers, batch_size):
    def worker():
        rank = dist.get_rank()
        model = nasty(seed=rank)
        data.broadcast_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if rank == 0 else None
        for step in range(2):
            x, y = batch_of(batch_size, seed=step)
            x, y = ((part[:0] if rank == 0 else part.tensor_split(workers)[rank - 1]) for part in (x, y))
            data.parameter_server_step(model, nn.functional.mse_loss, optimizer, x, y, batch_size=batch_size)
        return state(model)

    model = nasty()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        x, y = batch_of(batch_size, seed=step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        before = copy.deepcopy(state(model))
        optimizer.step()
    run = launch(worker, world_size=workers + 1)
    assert_same_state(run.results[0], state(model), **CLOSE)
    for replica in run.results[1:]:
        assert_same_state(replica, before, **CLOSE)

    parameters = sum(p.numel() for p in data.trainable_parameters(model))
    traffic = run.comm().query("rank == 0 and op in ['send', 'recv']")
    assert traffic.elements.sum() == 2 * parameter_server_elements(parameters, workers)


def test_parameter_server_needs_a_worker():
    with pytest.raises(RankError, match="needs at least one worker: start 2 ranks or more"):
        launch(lambda: data.parameter_server_step(nasty(), None, None, None, None), world_size=1)
