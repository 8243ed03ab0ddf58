"""The planner widget: its figures are the theory's, the papers' choices are found, and nothing breaks it."""
import re

import pytest

from utils.theory.hardware import eos, selene
from utils.theory.layout import Layout, plan
from utils.theory.papers.narayanan import table_1_runs
from utils.theory.presets import MODELS
from utils.widgets import layout, layout_run
from utils.widgets.layout_picture import parts_shown


@pytest.fixture(scope="module")
def widget():
    return layout.plan_layouts()


def state_of(choice):
    methods = "all" if choice.layout.zero_stage else "as in 2021"
    return dict(model=choice.model, machine=choice.machine, gpus=choice.gpus, batch=choice.batch,
                sequence=MODELS[choice.model].sequence, attention="flash" if choice.layout.flash_attention else "plain",
                methods=methods)


def test_the_ranking_is_the_theorys():
    found = layout.find_plan("narayanan-18.4b", list(layout.MACHINES)[0], 256, 1024, 2048)
    theory = plan(MODELS["narayanan-18.4b"], selene(256), 1024, chunks=(1, 2, 3, 4, 8))
    assert [each.layout for each in found.ranked] == [each.layout for each in theory.ranked]
    assert layout.cluster_of(list(layout.MACHINES)[1], 64) == eos(64)


def test_every_row_of_the_papers_is_a_preset_and_its_layout_is_in_the_ranking():
    assert len(layout.PAPER_CHOICES) == len(table_1_runs()) + 2
    for label, choice in layout.PAPER_CHOICES.items():
        found = layout.find_plan(**state_of(choice))
        place = layout.place_of(found, layout.paper_choice(**state_of(choice)))
        assert place is not None, label
        assert found.ranked[place].layout.tensor == choice.layout.tensor


@pytest.mark.parametrize("label", ["Narayanan 2021: 1008B", "Llama 3 405B on 16,384 GPUs"])
def test_the_sentence_says_where_the_papers_choice_stands(widget, label):
    widget.preset.value = label
    found = layout.find_plan(**state_of(layout.PAPER_CHOICES[label]))
    place = layout.place_of(found, layout.PAPER_CHOICES[label])
    assert f"the paper's layout is no. {place + 1}, " in widget.text
    assert f"{len(found.ranked):,} of {len(found.ranked) + len(found.rejected):,} layouts fit" in widget.text
    assert layout.layout_text(found.best.layout) in widget.text
    assert not widget.note.value


def test_nothing_of_a_step_is_left_out_of_its_bar():
    for choice in layout.PAPER_CHOICES.values():
        for planned in layout.find_plan(**state_of(choice)).ranked[:3]:
            shown = parts_shown(planned.step.parts)
            assert sum(shown.values()) == pytest.approx(planned.step.seconds)
            assert min(shown.values()) >= -1e-12


def test_every_control_and_preset_gives_a_picture_or_a_sentence(widget):
    for label in widget._presets:
        widget.preset.value = label
        assert widget.picture.value and not widget.note.value, label
    for name in ("gpus", "batch", "sequence"):
        control = getattr(widget.controls, name)
        for value in (control.options[0], control.options[-1]):
            control.value = value
            assert widget.text
    for name in ("machine", "model", "attention", "methods"):
        control = getattr(widget.controls, name)
        for option in control.options:
            control.value = option
            assert widget.text


def test_a_model_that_is_too_large_says_so():
    state = dict(model="narayanan-1008b", machine=list(layout.MACHINES)[4], gpus=2, batch=32, sequence=2048)
    assert layout.plan_sentence(**state).startswith("0 of ")
    assert "take more GPUs" in layout.plan_sentence(**state)
    texts = [text.get_text() for text in layout.draw_plan(**state).texts]
    assert "No layout fits: see below why they fall out" in texts


@pytest.mark.parametrize("change, sentence", [
    (dict(machine="my laptop"), "machine must be one of"),
    (dict(model="gpt5"), "model must be one of"),
    (dict(gpus=20), "gpus must be a multiple of the 8 of a server"),
    (dict(attention="fast"), "attention must be one of 'plain', 'flash'"),
    (dict(methods="those of 1950"), "methods must be one of"),
])
def test_what_does_not_exist_gets_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        layout.draw_plan(**change)


def test_texts_lie_inside_the_figure_and_apart():
    for label in ("Narayanan 2021: 39.1B", "Narayanan 2021: 1008B", "Llama 3 405B on 16,384 GPUs"):
        figure = layout.draw_plan(**state_of(layout.PAPER_CHOICES[label]))
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        bars = figure.axes[0]
        boxes = [text.get_window_extent(renderer) for text in (*figure.texts, *bars.texts, *bars.get_yticklabels())]
        width, height = figure.canvas.get_width_height()
        assert all(0 <= box.x0 and box.x1 <= width and 0 <= box.y0 and box.y1 <= height for box in boxes), label
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1:]), label


# ---- real ranks

def fastest_form(**sizes):
    return layout_run.small_layout(Layout(**sizes))


@pytest.mark.parametrize("small", [
    fastest_form(tensor=8, pipeline=64, data=6, micro_batch=2, recomputation="full", sequence_parallel=True),
    fastest_form(tensor=8, pipeline=8, data=24, schedule="interleaved 1f1b", chunks=4),
    fastest_form(tensor=4, data=2, zero_stage=3),
    fastest_form(pipeline=4),
    fastest_form(micro_batch=8),
], ids=lambda small: f"t{small.tensor} p{small.pipeline} d{small.data}")
def test_every_byte_of_real_ranks_is_predicted(small):
    run = layout_run.measure_layout(small)
    assert run.sent_bytes == layout_run.predict_layout(small)
    assert run.loss == pytest.approx(run.loss_alone, rel=1e-12)


def test_a_small_layout_keeps_its_kind():
    small = fastest_form(tensor=8, pipeline=8, data=24, schedule="interleaved 1f1b", chunks=4, zero_stage=2, micro_batch=4)
    cube = Layout(tensor=2, pipeline=2, data=2, schedule="interleaved 1f1b", chunks=2)
    assert small == cube.replace(zero_stage=1, recomputation="none")
    assert fastest_form(tensor=8, data=3).sizes == Layout(tensor=2, data=2).sizes


def test_the_button_lays_its_run_over_the_prediction():
    frame = layout.plan_layouts()
    assert "real rank" not in frame.text
    before = bytes(frame.picture.value)
    frame.run().join(150)
    assert not frame.note.value
    assert re.search(r"· a small Llama as t2 p2 d2 on 8 real ranks: sent .* along tensor \(ratio 1.00\), .* along pipeline "
                     r"\(ratio 1.00\), .* along data \(ratio 1.00\); loss (\S+), in one process \1$", frame.text)
    assert bytes(frame.picture.value) != before
    frame.preset.value = "a student's two T4: GPT-2 1.5B"
    assert "real rank" not in frame.text


def test_where_nothing_fits_there_is_nothing_to_run():
    frame = layout.plan_layouts("narayanan-1008b", list(layout.MACHINES)[4], 2, 32)
    frame.run().join(10)
    assert "No layout fits; they fall out: 30 for memory, 5 for layers. Take more GPUs" in frame.note.value and not frame.runs


def test_a_measurement_that_differs_shows_its_ratio():
    small = fastest_form(tensor=8, pipeline=8, data=24, schedule="interleaved 1f1b", chunks=2)
    sent = {name: 2 * n_bytes for name, n_bytes in layout_run.predict_layout(small).items()}
    run = layout_run.LayoutRun(small, sent, 4.0, 4.1)
    assert "along pipeline (ratio 2.00)" in layout.plan_sentence(runs=[run])
    assert "loss 4.000000, in one process 4.100000" in layout.plan_sentence(runs=[run])
    drawn = [text.get_text() for axes in layout.draw_plan(runs=[run]).axes for text in axes.texts]
    assert sum("(2.00)" in text for text in drawn) == 3
