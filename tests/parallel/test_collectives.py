"""Every all-reduce by hand: the right sum, equal replicas where promised, and exactly the elements that
theory counts."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from utils.parallel import collectives
from utils.parallel.collectives import ALGORITHMS
from utils.ranks import RankError, launch
from utils.theory.collectives import (
    ALL_REDUCE_ALGORITHMS,
    all_gather_elements_sent,
    all_reduce_elements_sent,
    all_reduce_steps,
    chunk_sizes,
    reduce_scatter_elements_sent,
    ring_schedule,
)

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
WHOLE_TENSOR_SEQUENTIAL = ("gather_broadcast", "tree")


def lengths(world_size):
    return sorted({0, 1, world_size - 1, world_size, 1000, 1003})


def contribution(rank, length, dtype=torch.float64):
    """Values that no other rank has and whose float32 sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(1000 * length + rank)
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def reduce_all(names, lengths, dtype):
    """On each rank: {(name, length): (result as an array, was the given tensor returned)}, and how many calls
    each took."""
    results, calls = {}, []
    for name in names:
        for length in lengths:
            tensor = contribution(dist.get_rank(), length, dtype)
            dist.barrier()  # a line in the record between two algorithms
            returned = ALGORITHMS[name](tensor)
            results[name, length] = tensor.numpy(), returned is tensor
            calls.append((name, length))
    return results, calls


def sends_between_barriers(record):
    """A list per stretch between two barriers: the elements of each send."""
    stretches = []
    for call in record.calls:
        if call.op == "barrier":
            stretches.append([])
        elif call.op == "send":
            stretches[-1].append(call.elements)
    return stretches


def test_names_are_those_of_theory():
    assert tuple(ALGORITHMS) == ALL_REDUCE_ALGORITHMS


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sums_counts_and_replicas(world_size):
    sizes = lengths(world_size)
    run = launch(reduce_all, list(ALGORITHMS), sizes, torch.float32, world_size=world_size)
    keys = run.results[0][1]
    sends = [sends_between_barriers(record) for record in run.records]
    for number, (name, length) in enumerate(keys):
        replicas = [results[name, length][0] for results, _ in run.results]
        expected = sum(contribution(rank, length) for rank in range(world_size)).numpy()
        for rank, replica in enumerate(replicas):
            np.testing.assert_allclose(
                replica, expected, atol=1e-5, err_msg=f"{name}, {length} elements, rank {rank}"
            )
        if name != "unchunked_ring":
            assert len({replica.tobytes() for replica in replicas}) == 1, (
                f"{name}: replicas of {length} elements differ"
            )
        assert all(results[name, length][1] for results, _ in run.results), (
            f"{name} returns the tensor it was given"
        )
        counted = [sum(sends[rank][number]) for rank in range(world_size)]
        assert counted == all_reduce_elements_sent(name, length, world_size).tolist(), (
            f"{name}, {length} elements"
        )
        if name not in WHOLE_TENSOR_SEQUENTIAL and world_size in (1, 2, 4, 8):
            messages = {len(sends[rank][number]) for rank in range(world_size)} - (
                {1} if name == "gather_broadcast" else set()
            )
            assert messages == {all_reduce_steps(name, world_size)}, f"{name}: one message per step"


def test_unchunked_ring_leaves_replicas_different():
    run = launch(reduce_all, ["unchunked_ring"], [1000], torch.float32, world_size=4)
    replicas = [results["unchunked_ring", 1000][0] for results, _ in run.results]
    assert len({replica.tobytes() for replica in replicas}) > 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    def worker():
        reduced = {}
        for name in ALGORITHMS:
            tensor = (torch.arange(12) + dist.get_rank()).to(dtype).view(3, 4)
            reduced[name] = ALGORITHMS[name](tensor)
        return reduced

    expected = (torch.arange(12) * 3 + 3).to(dtype).view(3, 4)
    for reduced in launch(worker, world_size=3).results:
        for name, tensor in reduced.items():
            assert tensor.dtype == dtype and torch.equal(tensor, expected), name


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_halves_of_the_ring_follow_the_schedule(world_size):
    length = 1003

    def worker():
        rank = dist.get_rank()
        tensor = contribution(rank, length)
        owned = collectives.ring_reduce_scatter(tensor).clone()
        dist.barrier()
        mine = (rank + 1) % world_size
        for index, chunk in enumerate(tensor.tensor_split(world_size)):
            if index != mine:
                chunk.fill_(float("nan"))
        return owned, collectives.ring_all_gather(tensor)

    run = launch(worker, world_size=world_size)
    total = sum(contribution(rank, length) for rank in range(world_size))
    for rank, (owned, gathered) in enumerate(run.results):
        torch.testing.assert_close(owned, total.tensor_split(world_size)[(rank + 1) % world_size])
        torch.testing.assert_close(gathered, total)

    sizes = chunk_sizes(length, world_size)
    schedule = ring_schedule(world_size)
    for record in run.records:
        calls = [(call.op, call.peer, call.elements) for call in record.calls if call.op != "barrier"]
        moves = [moves[record.rank] for moves in schedule]
        assert calls[0::2] == [("send", move.to_rank, sizes[move.send_chunk]) for move in moves]
        assert calls[1::2] == [("recv", move.from_rank, sizes[move.receive_chunk]) for move in moves]
        before = [call.op for call in record.calls].index("barrier")
        sent = [call.elements if call.op == "send" else 0 for call in record.calls]
        assert sum(sent[:before]) == reduce_scatter_elements_sent("ring", length, world_size)[record.rank]
        assert sum(sent[before:]) == all_gather_elements_sent("ring", length, world_size)[record.rank]


def test_inside_a_group():
    def worker():
        odd, even = dist.new_group([1, 3, 5]), dist.new_group([4, 0, 2])
        reduced = {}
        for name in ALGORITHMS:
            tensor = torch.arange(7) + 10 ** dist.get_rank()
            reduced[name] = ALGORITHMS[name](tensor, odd if dist.get_rank() % 2 else even)
        return reduced

    results = launch(worker, world_size=6).results
    for rank, reduced in enumerate(results):
        expected = torch.arange(7) * 3 + (101010 if rank % 2 else 10101)
        for name, tensor in reduced.items():
            assert torch.equal(tensor, expected), (name, rank)


def test_parameters_can_be_reduced():
    def worker():
        parameter = torch.nn.Parameter(torch.ones(5))
        return collectives.ring_all_reduce(parameter) is parameter, parameter.detach()

    for same, values in launch(worker, world_size=2).results:
        assert same and values.tolist() == [2.0] * 5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_refuses_what_is_not_contiguous(name):
    with pytest.raises(
        RankError, match=r"not contiguous \(shape \(4, 2\), strides \(4, 1\)\).*tensor.contiguous\(\)"
    ):
        launch(lambda: ALGORITHMS[name](torch.ones(4, 4)[:, :2]), world_size=2)
