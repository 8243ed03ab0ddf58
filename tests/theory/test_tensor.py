"""Matrices cut over ranks: every cut gives the same product, at the cost that is counted; a layer's time over t."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.grid import Layout
from utils.theory.hardware import CHIPS, LINKS, Cluster, selene
from utils.theory.models import Transformer
from utils.theory.presets import MODELS
from utils.theory.tensor import (
    ACTIVATIONS,
    CUTS,
    CutProduct,
    Synchronisation,
    synchronisations,
    tensor_efficiency,
    tensor_layer_seconds,
)
from utils.theory.throughput import Rates, step_time
from utils.theory.traffic import tensor_all_reduces_per_layer

X, A, B = np.array([[1, 2]]), np.array([[1, 0, 2, 1], [0, 1, 1, -1]]), np.array([[1], [1], [1], [2]])


def test_the_example_worked_by_hand():
    cut = CutProduct(X, A, B)
    assert [part.tolist() for part in cut.y_parts] == [[[1, 2]], [[4, -1]]]
    assert [part.tolist() for part in cut.activated] == [[[1, 2]], [[4, 0]]]
    assert [part.item() for part in cut.z_parts] == [3, 4] and cut.z.item() == 7
    assert cut.synchronisations == [Synchronisation("all_reduce", "Z", 1)] and cut.elements_sent == 1


def test_rows_first_by_hand():
    cut = CutProduct(X, A, B, cut_a="rows")
    assert [part.tolist() for part in cut.y_parts] == [[[1, 0, 2, 1]], [[0, 2, 2, -2]]]
    assert cut.z.item() == 7 and cut.z_without_sum.item() == 9
    assert [each.collective for each in cut.synchronisations] == ["reduce_scatter", "all_reduce"]
    assert cut.elements_sent == 4 / 2 + 1
    assert CutProduct(X, A, B, cut_a="rows", activation="none").z_without_sum.item() == 5
    assert CutProduct(X, A, B, activation="none").z.item() == 5


matrices = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed))


@given(matrices, st.sampled_from(CUTS), st.sampled_from(CUTS), st.sampled_from([1, 2, 4]), st.sampled_from(list(ACTIVATIONS)))
def test_following_the_synchronisations_gives_the_product(draw, cut_a, cut_b, t, activation):
    """Each collective is carried out here, on what the ranks hold: nothing but their parts goes in."""
    x, a, b = draw.normal(size=(3, 4)), draw.normal(size=(4, 8)), draw.normal(size=(8, 4))
    cut = CutProduct(x, a, b, cut_a, cut_b, t, activation)

    def carry_out(collective, parts):
        if collective == "all_gather":
            return [np.concatenate(parts, axis=1)] * t
        total = sum(parts)
        return [total] * t if collective == "all_reduce" else np.split(total, t, axis=1)

    held, todo = cut.y_parts, cut.synchronisations
    if len(todo) == 2:
        held = carry_out(todo[0].collective, held)
    held = [ACTIVATIONS[activation](y) @ b_r for y, b_r in zip(held, cut.b_shards)]
    assert all(np.allclose(mine, theirs) for mine, theirs in zip(held, cut.z_parts))
    if t > 1:
        held = carry_out(todo[-1].collective, held)
    assert all(np.allclose(z, ACTIVATIONS[activation](x @ a) @ b) for z in held)
    assert np.allclose(cut.z, held[0])


def test_only_columns_then_rows_needs_a_single_synchronisation():
    counts = {(a, b): len(synchronisations(a, b, 4, 1)) for a in CUTS for b in CUTS}
    assert counts == {("columns", "rows"): 1, ("columns", "columns"): 2, ("rows", "rows"): 2, ("rows", "columns"): 2}
    assert CutProduct(X, A, B, tensor=1).synchronisations == [] and CutProduct(X, A, B, tensor=1).elements_sent == 0


def test_gelu_is_exact():
    gelu = ACTIVATIONS["gelu"](np.array([0.0, 1.0, -1.0, 9.0]))
    assert gelu == pytest.approx([0, 0.8413447, -0.1586553, 9], abs=1e-7)


@pytest.mark.parametrize("wrong, sentence", [
    ({"tensor": 0}, "tensor must be at least 1"),
    ({"tensor": 4, "cut_a": "rows"}, "A has 2 rows, which 4 ranks cannot share equally. Cut A by columns"),
    ({"cut_b": "columns"}, "B has 1 column, which 2 ranks cannot share equally. Cut B by rows"),
    ({"tensor": 3}, "A has 4 columns, which 3 ranks"),
    ({"cut_a": "diagonals"}, "cut_a must be one of"),
    ({"cut_b": "diagonals"}, "cut_b must be one of"),
    ({"activation": "tanh"}, "activation must be one of"),
])
def test_what_cannot_be_cut(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        CutProduct(X, A, B, **wrong)


# ---- a layer's time


def test_one_rank_is_efficient_and_a_slow_link_is_not():
    model = MODELS["megatron2019-8.3b"]

    def efficiency(t, link):
        return tensor_efficiency(model, Cluster(1, 8, CHIPS["A100-80GB"], LINKS[link], LINKS["ethernet 100"]), t, 8)

    assert efficiency(1, "nvlink3") == 1
    for link in ("nvlink3", "pcie4 x16"):
        series = [efficiency(t, link) for t in (1, 2, 4, 8)]
        assert series == sorted(series, reverse=True)
    assert efficiency(8, "pcie4 x16") < efficiency(8, "nvlink3") / 2


def test_across_servers_the_layer_gets_slower_not_faster():
    model = Transformer(1, 4096, 32)
    seconds = {t: sum(tensor_layer_seconds(model, selene(32), t).values()) for t in (8, 16)}
    assert seconds[16] > 0.5 * seconds[8] and tensor_efficiency(model, selene(32), 16) < tensor_efficiency(model, selene(32), 8)


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_the_all_reduces_are_as_many_as_traffic_counts(recomputation):
    """A collective starts in a second here, beside which its bytes take next to no time."""
    model = Transformer(1, 1024, 8)
    rates = Rates(collective_seconds=1.0)
    parts = tensor_layer_seconds(model, selene(8), 8, 1, recomputation, rates)
    assert round(parts["communication"]) == tensor_all_reduces_per_layer(recomputation)


def test_the_parts_are_those_of_the_step():
    """One layer of one micro-batch, without logits, optimizer and what belongs to no layer."""
    model, cluster = Transformer(1, 4096, 32), selene(8)
    step = step_time(model, cluster, Layout(tensor=8, recomputation="full"), batch=1).parts
    layer = sum(step[name] for name in ("matmul", "attention", "element-wise", "tensor all-reduce"))
    parts = tensor_layer_seconds(model, cluster, 8)
    assert sum(parts.values()) == pytest.approx(layer) and parts["communication"] == pytest.approx(step["tensor all-reduce"])
    assert parts["backward"] > 2 * parts["forward"] > 2 * parts["weight gradient"]  # it runs the forward again


def test_a_cut_that_is_too_fine_is_refused():
    with pytest.raises(ValueError, match="tensor must divide heads"):
        tensor_efficiency(Transformer(1, 1024, 8), selene(64), 16)
    with pytest.raises(ValueError, match="tensor must be at most 8"):
        tensor_efficiency(Transformer(1, 2048, 16), selene(8), 16)
