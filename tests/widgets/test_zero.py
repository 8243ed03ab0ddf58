import functools
import itertools
import re

import matplotlib.pyplot as plt
import pytest

from utils.theory.hardware import CHIPS
from utils.theory.memory import STAGES, build_recipe, training_state, training_state_bytes
from utils.theory.presets import gpt_of_size
from utils.theory.traffic import zero_elements_per_step
from utils.theory.zero import largest_gpt, zero_rank_bytes
from utils.widgets import style
from utils.widgets.style import bytes_text
from utils.widgets.zero import (
    GPUS,
    SIZES,
    draw_memory,
    measure_zero,
    memory_sentence,
    plan_memory,
    predict_zero,
)
from utils.widgets.zero_picture import count_text
from utils.widgets.zero_run import RUNNABLE, SMALL_GPT, Footprint, ZeroRun

STATES = [
    {},
    {"parameters": 1.75e11, "world_size": 1024, "stage": 3, "recomputation": "full", "gpu": "H100-80GB"},
    {"parameters": 1e12, "world_size": 1, "stage": 0},
    {"parameters": 1e8, "precision": "fp32", "optimizer": "sgd", "world_size": 3, "stage": 1, "gpu": "H200-141GB"},
    {"stage": 3, "offload": "parameters", "micro_batch": 64, "micro_batches": 64, "sequence": 32768},
    {"parameters": 1.3e10, "world_size": 8, "offload": "optimizer", "precision": "mixed, both gradients", "gpu": "A100-80GB"},
]
WHOLE = {"parameters": 7.5e9, "precision": "mixed", "optimizer": "adam", "world_size": 64, "stage": 2, "micro_batch": 1,
         "micro_batches": 1, "sequence": 1024, "recomputation": "none", "offload": "nothing", "gpu": "V100-32GB"}


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


# ---- numbers


def test_the_sentence_begins_with_the_papers_four_numbers():
    assert memory_sentence().startswith(
        "7.5B parameters at 16 bytes on 64 ranks: state of 120, 31.4, 16.6 and 1.88 GB in stages 0 to 3 · ")
    eight = memory_sentence(7e9, world_size=8)
    assert "state of 112, 38.5, 26.2 and 14 GB in stages 0 to 3" in eight


@pytest.mark.parametrize("state", STATES)
def test_the_texts_are_theorys_values(state):
    """Written out from the functions of utils.theory, one by one, for all four stages."""
    s = WHOLE | state
    recipe, memory = build_recipe(s["precision"], s["optimizer"]), CHIPS[s["gpu"]].memory_bytes
    shown = texts(draw_memory(**state))
    for stage in STAGES:
        rank = zero_rank_bytes(s["parameters"], gpt_of_size(s["parameters"], s["sequence"]), recipe, stage, s["world_size"],
                               s["micro_batch"], s["recomputation"], s["offload"])
        best = largest_gpt(memory, s["sequence"], recipe=recipe, stage=stage, world_size=s["world_size"],
                           micro_batch=s["micro_batch"], recomputation=s["recomputation"], offload=s["offload"])
        elements = zero_elements_per_step(s["parameters"], stage, s["world_size"], s["micro_batches"])
        left = memory - rank.total_bytes
        for text in (bytes_text(rank.total_bytes), bytes_text(left) if left >= 0 else f"−{bytes_text(-left)}",
                     count_text(best.parameters) if best else "none", bytes_text(recipe.parameters * elements)):
            assert text in shown
        n = min(s["world_size"], 8)
        assert bytes_text(training_state_bytes(SMALL_GPT.parameters, recipe, stage, n)) in shown
        if s["offload"] == "nothing":
            state_bytes = training_state_bytes(s["parameters"], recipe, stage, s["world_size"])
            assert bytes_text(state_bytes).split()[0] in memory_sentence(**state).split(" in stages")[0]


@pytest.mark.parametrize("state, title", [
    ({}, "Stage 2 is the first that fits a V100-32GB"),
    ({"stage": 1}, "Stage 1 does not fit a V100-32GB; stage 2 is the first that does"),
    ({"stage": 3, "gpu": "A100-80GB"}, "Stage 3 fits an A100-80GB; stage 1 would do"),
    ({"stage": 0, "parameters": 1e8}, "Stage 0 fits a V100-32GB: no need to shard"),
    ({"world_size": 1, "parameters": 1e12}, "No stage fits a V100-32GB: stage 3 misses 16"),
])
def test_the_title_says_what_fits(state, title):
    assert texts(draw_memory(**state))[0].startswith(title)


def test_a_stage_that_does_not_fit_says_what_is_missing_and_offload_says_where_the_rest_is():
    assert re.search(r"stage 0 with activations: 131 GB of a V100-32GB's 34.4 GB, 96.\d GB are missing", memory_sentence(stage=0))
    state = training_state(7.5e9, stage=2, world_size=64)
    moved = bytes_text(state.gradients + state.optimizer)
    assert f"; {moved} of its state lie in the CPU's memory" in memory_sentence(offload="optimizer")
    assert "CPU" not in memory_sentence(offload="optimizer", stage=0)


# ---- pictures and controls


@pytest.mark.parametrize("state", STATES)
def test_every_stage_of_extreme_states_has_a_picture_of_its_own(state):
    assert len({style.png(draw_memory(**state | {"stage": stage})) for stage in STAGES}) == 4


def test_no_two_texts_of_the_picture_overlap():
    """Also with the longest numbers, and with measured ones below them."""
    for state in STATES:
        s = WHOLE | state
        runs = [ZeroRun(s["precision"], s["optimizer"], min(s["world_size"], 8), stage,
                        predict_zero(s["precision"], s["optimizer"], min(s["world_size"], 8), stage), (5.5, 5.4, 5.3))
                for stage in STAGES]
        figure = draw_memory(**state, runs=runs)
        style.png(figure)
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        width, height = figure.canvas.get_width_height()
        for box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other), state


def test_every_control_redraws_and_no_figure_stays_open():
    open_figures, frame = plt.get_fignums(), plan_memory()
    for name in WHOLE:
        control = getattr(frame.controls, name)
        first, pictures = control.value, set()
        options = [option[1] if isinstance(option, tuple) else option for option in getattr(control, "options", range(4))]
        for value in (options[0], options[-1]):
            control.value = value
            pictures.add(bytes(frame.picture.value))
        assert len(pictures) == 2 and frame.note.value == "", name
        control.value = first
    assert plt.get_fignums() == open_figures


def test_all_presets_can_be_chosen_and_the_first_is_the_papers():
    frame = plan_memory()
    assert frame.preset.value == "ZeRO's figure 1: 7.5B on 64 GPUs"
    for preset in frame.preset.options[:-1]:
        frame.preset.value = preset
        assert frame.preset.value == preset and frame.note.value == ""


def test_a_value_between_the_sliders_steps_can_be_the_first():
    frame = plan_memory(6.7e9, world_size=24, sequence=3000)
    assert frame.values["parameters"] == 6.7e9 and "6.7B parameters" in frame.text and "on 24 ranks" in frame.text
    assert {7e9, 7.5e9, 1.3e10, 7e10, 1.75e11} <= set(SIZES) and set(GPUS) <= set(CHIPS)


@pytest.mark.parametrize("wrong, sentence", [
    ({"parameters": -1}, "parameters must be a finite number above 0"),
    ({"precision": "fp8"}, "precision must be one of"),
    ({"optimizer": "lion"}, "optimizer must be one of"),
    ({"world_size": 0}, "world_size must be at least 1"),
    ({"stage": 4}, "stage must be one of"),
    ({"micro_batch": 0}, "micro_batch must be at least 1"),
    ({"micro_batches": 0}, "micro_batches must be at least 1"),
    ({"recomputation": "some"}, "recomputation must be one of"),
    ({"offload": "everything"}, "offload must be one of"),
    ({"gpu": "RTX"}, "gpu must be one of"),
])
def test_what_cannot_be_planned_is_a_sentence(wrong, sentence):
    for function in (memory_sentence, draw_memory):
        with pytest.raises(ValueError, match=sentence):
            function(**wrong)


# ---- real ranks


measured = functools.cache(measure_zero)
RECIPES_RUN = [("fp32", "adam", 0), ("fp32", "adam", 1), ("fp32", "adam", 2), ("fp32", "adam", 3), ("mixed", "momentum", 0),
               ("mixed", "adam", 1), ("mixed", "sgd", 2), ("mixed", "momentum", 3), ("fp32", "sgd", 3)]


@pytest.mark.parametrize("precision, optimizer, stage", RECIPES_RUN)
def test_real_ranks_need_what_theory_predicts(precision, optimizer, stage):
    """Two ranks share everything equally, so that not a byte is off."""
    run = measured(precision, optimizer, 2, stage)
    assert run.measured == predict_zero(precision, optimizer, 2, stage)
    assert run.losses[0] > run.losses[1] > run.losses[2]


def test_unequal_shards_differ_by_an_element_per_tensor():
    run, predicted = measured("mixed", "adam", 3, 3), predict_zero("mixed", "adam", 3, 3)
    assert run.measured.state.total_bytes == pytest.approx(predicted.state.total_bytes, rel=1e-3)
    assert run.measured.peak_bytes == pytest.approx(predicted.peak_bytes, rel=1e-3)
    assert run.measured.sent_bytes == pytest.approx(predicted.sent_bytes, rel=1e-3)


def test_all_stages_train_the_same_model():
    losses = [measured("fp32", "adam", 2, stage).losses for stage in STAGES]
    assert all(each == pytest.approx(losses[0], rel=1e-5) for each in losses)


def test_the_button_lays_its_run_over_the_prediction_of_the_same_state():
    frame = plan_memory(world_size=2, stage=3)
    before = bytes(frame.picture.value)
    frame.run().join(300)
    assert frame.note.value == "" and frame.runs[0].measured == predict_zero("mixed", "adam", 2, 3)
    assert re.search(r"· on 2 real ranks, a small GPT: .* \(ratio 1.00\) at rest, .* \(ratio 1.00\) at the peak, "
                     r".* \(ratio 1.00\) sent per step; loss 5\.\d\d → \d\.\d\d in 3 steps$", frame.text)
    assert bytes(frame.picture.value) != before
    frame.controls.stage.value = 2
    assert "real" not in frame.text
    frame.controls.parameters.value = 7e10  # the small GPT stays the same
    frame.controls.stage.value = 3
    assert "real ranks" in frame.text
    frame.controls.optimizer.value = "sgd"
    assert "real" not in frame.text


def test_what_the_stages_do_not_have_is_a_sentence():
    frame = plan_memory(precision="mixed, fp32 gradients")
    frame.run().join(10)
    assert "keep gradients as wide as the weights" in frame.note.value and not frame.runs
    assert all(repr(name) in frame.note.value.replace("&#x27;", "'") for name in RUNNABLE)


def test_a_measurement_that_differs_shows_its_ratio():
    right = predict_zero("mixed", "adam", 8, 2)
    wrong = Footprint(right.state, 2 * right.peak_bytes, right.sent_bytes / 2)
    run = ZeroRun("mixed", "adam", 8, 2, wrong, (5.5, 5.5, 5.5))
    assert "(ratio 2.00) at the peak" in memory_sentence(runs=[run]) and "(ratio 0.50) sent" in memory_sentence(runs=[run])
    assert any("(2.00)" in text for text in texts(draw_memory(runs=[run])))
