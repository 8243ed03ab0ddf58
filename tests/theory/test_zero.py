"""A ZeRO rank as a whole: it agrees with the parts that have their own modules, and with DeepSpeed's estimates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.activations import layer_activation_bytes
from utils.theory.grid import Layout
from utils.theory.layout import rank_bytes
from utils.theory.memory import (
    MOMENT_BYTES,
    PRECISIONS,
    RECIPES,
    build_recipe,
    training_state,
    zero2_offload,
    zero3_offload,
)
from utils.theory.presets import MODELS, gpt_of_size, gpt_with_layers
from utils.theory.traffic import zero_elements_per_step
from utils.theory.units import GB, GiB
from utils.theory.zero import (
    largest_gpt,
    zero_bytes_per_step,
    zero_peak_bytes,
    zero_rank_bytes,
)

PSI = 7.5e9
MODEL = gpt_of_size(PSI, sequence=1024)


def test_a_recipe_is_a_precision_and_an_optimizer():
    totals = {p: build_recipe(p, "adam").bytes_per_parameter for p in PRECISIONS}
    assert totals == {"fp32": 16, "mixed": 16, "mixed, fp32 gradients": 18, "mixed, both gradients": 20}
    assert [build_recipe("mixed", o).optimizer for o in MOMENT_BYTES] == [4, 8, 12]
    assert build_recipe("fp32", "momentum") == RECIPES["fp32 momentum"]
    for wrong in (("fp8", "adam"), ("mixed", "lion")):
        with pytest.raises(ValueError, match="must be one of .* was given"):
            build_recipe(*wrong)


@given(st.floats(1.5e8, 2e12))
def test_a_gpt_of_a_size_is_near_it(parameters):
    found = gpt_of_size(parameters)
    for layers in (found.layers - 1, found.layers + 1):
        other = gpt_with_layers(layers).parameters
        assert max(other / parameters, parameters / other) >= max(
            found.parameters / parameters, parameters / found.parameters)
    assert 0.8 < found.parameters / parameters < 1.25


def test_gpt_3_is_a_gpt_of_its_size():
    assert gpt_of_size(175e9) == MODELS["gpt3-175b"]
    assert gpt_of_size(1).layers == 1


@pytest.mark.parametrize("stage, state", [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_papers_example_and_its_activations(stage, state):
    rank = zero_rank_bytes(PSI, MODEL, stage=stage, world_size=64, micro_batch=2)
    assert round(rank.state_bytes / GB, 1) == state
    assert rank.activations == MODEL.layers * layer_activation_bytes(MODEL, 2) and rank.cpu_bytes == 0
    assert rank.gathered == (2 * MODEL.layer_parameters if stage == 3 else 0)
    assert rank.total_bytes == rank.state_bytes + rank.gathered + rank.activations


@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize("stage", range(4))
def test_the_same_as_the_planner_of_layouts(stage, recomputation):
    """Which puts the layer that stage 3 gathers with the parameters, and leaves out the final norm."""
    layout = Layout(data=8, micro_batch=2, zero_stage=stage, recomputation=recomputation)
    planned = rank_bytes(MODEL, layout, batch=16, recipe="mixed adam")
    mine = zero_rank_bytes(MODEL.parameters, MODEL, "mixed adam", stage, 8, 2, recomputation)
    assert mine.parameters + mine.gathered == pytest.approx(planned.parameters, rel=1e-4)
    assert mine.optimizer == pytest.approx(planned.optimizer, rel=1e-4)
    assert mine.activations == planned.activations


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_offload_moves_bytes_and_loses_none(stage, offload):
    state = training_state(PSI, stage=stage, world_size=8)
    rank = zero_rank_bytes(PSI, MODEL, stage=stage, world_size=8, offload=offload)
    assert rank.state_bytes + rank.cpu_bytes == pytest.approx(state.total_bytes)
    assert (rank.cpu_bytes == 0) == (stage == 0)


def test_offload_agrees_with_deepspeeds_estimates():
    layer = MODEL.layer_parameters
    stage_2 = zero_rank_bytes(PSI, MODEL, stage=2, world_size=8, offload="optimizer")
    assert stage_2.state_bytes == zero2_offload(PSI, 8).gpu_bytes
    for offload, whole in (("optimizer", False), ("parameters", True)):
        rank = zero_rank_bytes(PSI, MODEL, stage=3, world_size=8, offload=offload)
        estimate = zero3_offload(PSI, layer, 8, offload_parameters=whole)
        assert rank.state_bytes + 4 * layer == pytest.approx(estimate.gpu_bytes)


@pytest.mark.parametrize("choices", [
    {"stage": 0}, {"stage": 3, "world_size": 1024}, {"stage": 2, "world_size": 8, "micro_batch": 16},
    {"stage": 3, "offload": "parameters", "recomputation": "full"}, {"recipe": "fp32 sgd"}])
@pytest.mark.parametrize("memory", [32 * GiB, 141 * GB])
def test_the_largest_gpt_fits_and_the_next_one_does_not(choices, memory):
    best = largest_gpt(memory, 1024, **choices)
    larger = gpt_with_layers(best.layers + 1, 1024)
    assert zero_rank_bytes(best.parameters, best, **choices).total_bytes <= memory
    assert zero_rank_bytes(larger.parameters, larger, **choices).total_bytes > memory


def test_nothing_fits_when_the_activations_of_one_layer_are_too_large():
    assert largest_gpt(2 * GB, 2**17) is None
    with pytest.raises(ValueError, match="memory_bytes is counted in bytes"):
        largest_gpt(80)


@pytest.mark.parametrize("stage", range(4))
def test_bytes_sent_are_elements_of_a_parameters_width(stage):
    for recipe, width in (("mixed adam", 2), ("fp32 adam", 4), ("mixed adam, both gradients", 2)):
        elements = zero_elements_per_step(PSI, stage, 64, 4)
        assert zero_bytes_per_step(PSI, recipe, stage, 64, 4) == width * elements


def test_the_peak_beside_what_rests():
    """By hand: 100 parameters on 4 ranks, a block of 40 whose largest tensor has 30."""
    def peak(recipe, stage):
        return zero_peak_bytes(100, 40, 30, recipe, stage, 4) - training_state(100, recipe, stage, 4).total_bytes

    assert [peak("fp32 adam", stage) for stage in range(4)] == [0, 0, 4 * 70, 4 * 70 + 4 * 40]
    assert [peak("mixed adam", stage) for stage in range(4)] == [4 * 100, 4 * 25, 2 * 70, 2 * 70 + 2 * 40]


def test_what_is_refused():
    for wrong in ({"offload": "everything"}, {"stage": 4}, {"recomputation": "some"}, {"world_size": 0}, {"micro_batch": 0}):
        with pytest.raises(ValueError, match="must be .* was given"):
            zero_rank_bytes(PSI, MODEL, **wrong)
