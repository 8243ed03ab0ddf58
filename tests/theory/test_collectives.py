"""Volumes, steps and seconds of collectives, against simulations of the messages themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from utils.theory.collectives import (
    ALL_REDUCE_ALGORITHMS,
    REDUCE_SCATTER,
    algbw,
    all_gather_elements_sent,
    all_gather_seconds,
    all_reduce_elements_sent,
    all_reduce_lower_bound_seconds,
    all_reduce_seconds,
    all_reduce_steps,
    all_to_all_elements_sent,
    all_to_all_seconds,
    broadcast_elements_sent,
    broadcast_seconds,
    busbw,
    busbw_factor,
    chunk_sizes,
    hierarchical_all_reduce_seconds,
    parameter_server_elements,
    pipelined_tree_all_reduce_seconds,
    point_to_point_seconds,
    reduce_scatter_elements_sent,
    reduce_scatter_seconds,
    ring_schedule,
)
from utils.theory.hardware import Link

LINK = Link(alpha_seconds=1e-6, bandwidth_bytes_per_second=1e9)
sizes = st.integers(0, 500)
worlds = st.integers(1, 17)


def run_ring(elements, world_size):
    """Play the ring's schedule on real arrays: the final tensors, and what each rank sent in each phase."""
    rng = np.random.default_rng(elements + world_size)
    inputs = rng.integers(0, 1000, (world_size, elements))
    chunks = [np.split(row, np.cumsum(chunk_sizes(elements, world_size))[:-1]) for row in inputs]
    sent = {"reduce-scatter": np.zeros(world_size, int), "all-gather": np.zeros(world_size, int)}
    for step in ring_schedule(world_size):
        messages = {move.to_rank: chunks[move.rank][move.send_chunk].copy() for move in step}
        for move in step:
            sent[move.phase][move.rank] += len(chunks[move.rank][move.send_chunk])
            old = chunks[move.rank][move.receive_chunk]
            new = messages[move.rank]
            chunks[move.rank][move.receive_chunk] = old + new if move.phase == REDUCE_SCATTER else new
    return inputs.sum(axis=0), [np.concatenate(row) for row in chunks], sent


@given(sizes, worlds)
def test_the_ring_sums_and_sends_what_the_formulas_say(elements, world_size):
    expected, results, sent = run_ring(elements, world_size)
    for result in results:
        assert_array_equal(result, expected)
    assert_array_equal(sent["reduce-scatter"], reduce_scatter_elements_sent("ring", elements, world_size))
    assert_array_equal(sent["all-gather"], all_gather_elements_sent("ring", elements, world_size))


def test_the_ring_follows_the_courses_convention():
    steps = ring_schedule(4)
    assert [[move.send_chunk for move in step] for step in steps] == [
        [0, 1, 2, 3],
        [3, 0, 1, 2],
        [2, 3, 0, 1],
        [1, 2, 3, 0],
        [0, 1, 2, 3],
        [3, 0, 1, 2],
    ]
    assert [step[0].phase for step in steps] == ["reduce-scatter"] * 3 + ["all-gather"] * 3
    assert ring_schedule(1) == []


def test_chunks_are_those_of_tensor_split():
    torch = pytest.importorskip("torch")
    for elements in (0, 1, 7, 8, 103):
        for world_size in (1, 2, 3, 8):
            expected = [len(part) for part in torch.tensor_split(torch.arange(elements), world_size)]
            assert chunk_sizes(elements, world_size).tolist() == expected


@given(sizes, worlds)
def test_all_reduce_is_reduce_scatter_and_all_gather(elements, world_size):
    for algorithm in ("ring", "recursive_halving_doubling"):
        if algorithm != "ring" and world_size & (world_size - 1):
            continue
        both = reduce_scatter_elements_sent(algorithm, elements, world_size) + all_gather_elements_sent(
            algorithm, elements, world_size
        )
        assert_array_equal(all_reduce_elements_sent(algorithm, elements, world_size), both)


@given(st.integers(1, 50), worlds)
def test_when_n_divides_every_rank_of_a_ring_sends_the_optimum(per_rank, world_size):
    elements = per_rank * world_size
    sent = all_reduce_elements_sent("ring", elements, world_size)
    assert_array_equal(sent, 2 * elements * (world_size - 1) // world_size)


@given(sizes, worlds)
def test_no_algorithm_sends_less_in_all_than_the_ring(elements, world_size):
    least = 2 * elements * (world_size - 1)
    for algorithm in ALL_REDUCE_ALGORITHMS:
        assert all_reduce_elements_sent(algorithm, elements, world_size).sum() >= least


def halving_doubling(elements, world_size):
    """Elements that each rank sends, by playing the exchanges on sets of chunks."""
    size = chunk_sizes(elements, world_size)
    held = [list(range(world_size)) for _ in range(world_size)]
    sent = np.zeros(world_size, int)
    distance = world_size // 2
    while distance:
        for rank in range(world_size):
            half = len(held[rank]) // 2
            upper = bool(rank & distance)
            sent[rank] += size[held[rank][:half] if upper else held[rank][half:]].sum()
            held[rank] = held[rank][half:] if upper else held[rank][:half]
        distance //= 2
    distance = 1
    while distance < world_size:
        before = [list(chunks) for chunks in held]
        for rank in range(world_size):
            sent[rank] += size[before[rank]].sum()
            held[rank] = sorted(before[rank] + before[rank ^ distance])
        distance *= 2
    assert all(chunks == list(range(world_size)) for chunks in held)
    return sent


@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("elements", [0, 5, 64, 103])
def test_recursive_halving_and_doubling(elements, world_size):
    expected = halving_doubling(elements, world_size)
    assert_array_equal(all_reduce_elements_sent("recursive_halving_doubling", elements, world_size), expected)


def test_recursive_halving_folds_surplus_ranks():
    # 6 ranks: 0 and 2 hand over to 1 and 3, and get the result back; 1, 3, 4, 5 halve and double.
    assert all_reduce_elements_sent("recursive_halving_doubling", 8, 6).tolist() == [8, 20, 8, 20, 12, 12]
    assert all_reduce_steps("recursive_halving_doubling", 6) == 2 * 2 + 2


def test_whole_tensor_algorithms():
    assert all_reduce_elements_sent("gather_broadcast", 10, 4).tolist() == [30, 10, 10, 10]
    assert all_reduce_elements_sent("all_gather_sum", 10, 4).tolist() == [30] * 4
    assert all_reduce_elements_sent("unchunked_ring", 10, 4).tolist() == [30] * 4
    assert all_reduce_elements_sent("tree", 10, 4).tolist() == [20, 10, 20, 10]
    assert broadcast_elements_sent(10, 6).tolist() == [30, 0, 10, 0, 10, 0]
    for world_size in range(1, 20):
        assert broadcast_elements_sent(1, world_size).sum() == world_size - 1
        assert all_reduce_elements_sent("tree", 1, world_size).sum() == 2 * (world_size - 1)


def test_steps():
    steps = {algorithm: all_reduce_steps(algorithm, 8) for algorithm in ALL_REDUCE_ALGORITHMS}
    assert steps == {
        "ring": 14,
        "recursive_halving_doubling": 6,
        "tree": 6,
        "gather_broadcast": 14,
        "all_gather_sum": 7,
        "unchunked_ring": 7,
    }


def test_seconds_are_the_published_formulas():
    p, n, a, beta = 8, 1e6, LINK.alpha_seconds, 1 / LINK.bandwidth_bytes_per_second
    assert all_reduce_seconds("ring", n, p, LINK) == pytest.approx(2 * (p - 1) * (a + n * beta / p))
    rabenseifner = 2 * 3 * a + 2 * (p - 1) / p * n * beta
    assert all_reduce_seconds("recursive_halving_doubling", n, p, LINK) == pytest.approx(rabenseifner)
    assert all_reduce_seconds("tree", n, p, LINK) == pytest.approx(2 * 3 * (a + n * beta))
    assert all_reduce_seconds("gather_broadcast", n, p, LINK) == pytest.approx(14 * (a + n * beta))
    assert reduce_scatter_seconds("ring", n, p, LINK) == pytest.approx((p - 1) * (a + n * beta / p))
    assert all_gather_seconds("ring", n, p, LINK) == reduce_scatter_seconds("ring", n, p, LINK)
    assert all_to_all_seconds(n, p, LINK) == pytest.approx((p - 1) * (a + n * beta / p))
    assert broadcast_seconds(n, p, LINK) == pytest.approx(3 * (a + n * beta))
    assert point_to_point_seconds(n, LINK) == pytest.approx(a + n * beta)
    assert pipelined_tree_all_reduce_seconds(n, p, LINK) == pytest.approx(6 * a + 2 * n * beta)
    # G = 4 in a node, 2 nodes.
    inter = Link(5e-6, 1e8)
    parts = 2 * 3 * (a + n / 4 * beta) + 2 * (5e-6 + n / 4 / 2 / 1e8)
    assert hierarchical_all_reduce_seconds(n, 4, 2, LINK, inter) == pytest.approx(parts)


def test_a_tree_wins_for_small_messages_and_a_ring_for_large_ones():
    small, large = 100, 1e9
    assert all_reduce_seconds("tree", small, 64, LINK) < all_reduce_seconds("ring", small, 64, LINK)
    assert all_reduce_seconds("tree", large, 64, LINK) > all_reduce_seconds("ring", large, 64, LINK)


@given(st.floats(0, 1e12), st.integers(1, 5000), st.floats(0, 1e-3), st.floats(1e3, 1e12))
def test_nothing_beats_the_lower_bound(n_bytes, world_size, alpha, bandwidth):
    link = Link(alpha, bandwidth)
    bound = all_reduce_lower_bound_seconds(n_bytes, world_size, link)
    for algorithm in ALL_REDUCE_ALGORITHMS:
        assert all_reduce_seconds(algorithm, n_bytes, world_size, link) >= bound * (1 - 1e-12)


def test_one_rank_sends_nothing_in_no_time():
    for algorithm in ALL_REDUCE_ALGORITHMS:
        assert all_reduce_elements_sent(algorithm, 10, 1).tolist() == [0]
        assert all_reduce_steps(algorithm, 1) == 0
        assert all_reduce_seconds(algorithm, 10, 1, LINK) == 0


def test_all_to_all_keeps_one_chunk():
    assert all_to_all_elements_sent(10, 4).tolist() == [7, 7, 8, 8]


def test_bandwidths_of_nccl_tests():
    assert algbw(1e9, 0.5) == 2e9
    assert busbw("all_reduce", 1e9, 0.5, 4) == 3e9
    assert busbw_factor("broadcast", 5) == busbw_factor("reduce", 5) == 1
    for collective in ("reduce_scatter", "all_gather", "all_to_all"):
        assert busbw_factor(collective, 5) == pytest.approx(4 / 5)
    # A ring without latency reaches exactly the link.
    seconds = all_reduce_seconds("ring", 1e9, 8, Link(0, 3e9))
    assert busbw("all_reduce", 1e9, seconds, 8) == pytest.approx(3e9)


def test_the_servers_link_carries_n_times_a_workers():
    assert parameter_server_elements(100, workers=8) == 2 * 8 * 100
    assert parameter_server_elements(100, workers=8, servers=4) == 2 * 8 * 100 / 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: all_reduce_elements_sent("rings", 10, 4), ["algorithm", "'rings'", "'ring'"]),
        (lambda: all_reduce_elements_sent("ring", -1, 4), ["elements", "-1", "at least 0"]),
        (lambda: all_reduce_elements_sent("ring", 10, 0), ["world_size", "0", "at least 1"]),
        (lambda: all_reduce_elements_sent("ring", 10, 2.5), ["world_size", "2.5", "whole number"]),
        (lambda: all_reduce_elements_sent("ring", 10, "4"), ["world_size", "'4'", "number"]),
        (lambda: all_reduce_elements_sent("ring", float("nan"), 4), ["elements", "nan"]),
        (lambda: all_reduce_steps("ring", True), ["world_size", "True"]),
        (lambda: reduce_scatter_elements_sent("tree", 10, 4), ["algorithm", "'tree'"]),
        (lambda: reduce_scatter_elements_sent("recursive_halving_doubling", 10, 6), ["6", "power of two"]),
        (lambda: all_reduce_seconds("ring", -5, 4, LINK), ["n_bytes", "-5"]),
        (lambda: all_reduce_seconds("ring", 5, 4, 25e9), ["link", "25000000000.0"]),
        (lambda: Link(-1, 1e9), ["alpha_seconds", "-1"]),
        (lambda: Link(0, 0), ["bandwidth_bytes_per_second", "0"]),
        (lambda: busbw("all-reduce", 1, 1, 4), ["collective", "'all-reduce'", "'all_reduce'"]),
        (lambda: algbw(1, 0), ["seconds", "0"]),
        (lambda: parameter_server_elements(10, 0), ["workers", "0"]),
        (lambda: ring_schedule(-2), ["world_size", "-2"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("ranks, link", [(range(8), "intra"), (range(16), "between"), ((0, 8), "one adapter"), ((3, 5), "intra")])
def test_a_cluster_takes_the_slowest_link_of_the_group(ranks, link):
    from utils.theory.hardware import selene

    cluster = selene(16)
    expected = {
        "intra": cluster.intra,
        "between": cluster.ring_link(16, 8),
        "one adapter": cluster.ring_link(2, 1),
    }[link]
    ranks, n, size = tuple(ranks), len(ranks), 10**8
    assert cluster.seconds("all_reduce", ranks, size) == all_reduce_seconds("ring", size, n, expected)
    assert cluster.seconds("send", ranks, size) == expected.seconds(size)
    assert cluster.seconds("all_gather", ranks, size) == cluster.seconds("reduce_scatter", ranks, size)
    assert cluster.seconds("all_reduce", ranks, size) == pytest.approx(
        cluster.seconds("all_gather", ranks, size) + cluster.seconds("reduce_scatter", ranks, size)
    )
    assert cluster.seconds("all_reduce", ranks[:1], size) == 0


def test_a_cluster_knows_every_call_and_its_own_ranks():
    from utils.ranks.description import OPERATORS
    from utils.theory.hardware import selene

    for op in {op for op, _, _ in OPERATORS.values()}:
        assert selene(16).seconds(op, (0, 8), 1000) > 0
    with pytest.raises(ValueError, match="rank must be .* 15"):
        selene(16).seconds("send", (0, 16), 1)
