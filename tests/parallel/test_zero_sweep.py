"""Lesson 02's stored sweep: all its points are there, two of them are computed again, and all follow the theory."""

import pytest

from utils.parallel.zero_sweep import MODEL, POINTS, run_point, stored_sweep
from utils.theory.memory import training_state_bytes

RECIPES = {0: "mixed adam, fp32 gradients", 2: "mixed adam, fp32 gradients", 3: "fp32 adam"}
"""Bytes per parameter that fully_shard keeps: 4 + 4 + 8, and below stage 3 the bf16 weights of forward, 2 more."""


def test_every_point_is_stored():
    stored = [{name: row[name] for name in POINTS[0]} for row in stored_sweep()]
    assert stored == list(POINTS)


@pytest.mark.parametrize("point", [POINTS[3], POINTS[-1]], ids=str)
def test_a_point_computed_again_is_the_stored_one(point):
    stored = {tuple(row[name] for name in point): row for row in stored_sweep()}
    again, before = run_point(**point), stored[tuple(point.values())]
    assert {name: again[name] for name in again if name != "peak_bytes"} == {
        name: before[name] for name in again if name != "peak_bytes"
    }
    assert again["peak_bytes"] == pytest.approx(before["peak_bytes"], rel=0.01)


def test_the_state_is_what_the_formula_says():
    for row in stored_sweep():
        expected = training_state_bytes(MODEL.parameters, RECIPES[row["stage"]], row["stage"], row["world_size"])
        assert row["state_bytes"] == pytest.approx(expected, rel=0.01), row  # uneven shards are rounded up
        if row["world_size"] > 1:
            assert row["moved_per_parameter"] == pytest.approx(3 if row["stage"] == 3 else 2), row


def test_activations_do_not_depend_on_ranks_or_stage():
    first = [row for row in stored_sweep() if row["recompute"] == "none" and row["sequence"] == 2048]
    smallest = min(row["activation_bytes"] for row in first)
    assert all(row["activation_bytes"] == pytest.approx(smallest, rel=0.02) for row in first)
