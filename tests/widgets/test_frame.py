import base64
import threading

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import pytest

from utils import RankError, launch
from utils.widgets import style
from utils.widgets.frame import LIVE_VIEW, READY, RUNNING, YOUR_OWN, Frame, without_live_views

draws = []


@pytest.fixture(autouse=True)
def no_draws_yet():
    draws.clear()


def draw(a, b, runs=(), figure=None):
    draws.append((a, b, runs))
    with style.drawing(figure, height=1) as figure:
        figure.text(0.1, 0.1, f"{a} {b} {runs}")
    return figure


def say(a, b, runs=()):
    if b > 8:
        raise ValueError(f"b must be at most 8, but {b} was given.")
    return f"a = {a}, b = {b}, runs {runs}"


def make(measure=None, **options):
    controls = {"a": ipywidgets.IntSlider(1, 0, 100, description="a"),
                "b": ipywidgets.IntSlider(2, 0, 100, description="b")}
    return Frame(controls, draw, say, measure, **options)


def test_the_first_state_is_drawn_once_with_its_sentence():
    frame = make()
    assert draws == [(1, 2, ())]
    assert frame.text == "a = 1, b = 2, runs ()" and frame.text in frame.sentence.value
    assert bytes(frame.picture.value).startswith(b"\x89PNG")


def test_a_control_that_moves_changes_picture_and_sentence_and_back_again():
    frame = make()
    first = frame.picture.value
    frame.controls.a.value = 5
    assert frame.text == "a = 5, b = 2, runs ()" and frame.picture.value != first
    frame.controls.a.value = 1
    assert frame.picture.value == first


def test_a_state_that_is_shown_already_is_not_drawn_again():
    frame = make()
    frame.redraw()
    frame.controls.a.value = 1
    assert len(draws) == 1


def test_a_preset_is_one_redraw_and_a_control_of_ones_own_leaves_it():
    frame = make(presets={"first": {"a": 1, "b": 2}, "second": {"a": 7, "b": 8}})
    assert frame.preset.value == "first"
    frame.preset.value = "second"
    assert draws == [(1, 2, ()), (7, 8, ())] and frame.values == {"a": 7, "b": 8}
    frame.controls.b.value = 3
    assert frame.preset.value == YOUR_OWN and frame.values == {"a": 7, "b": 3}
    frame.controls.b.value = 8
    assert frame.preset.value == "second"


def test_a_value_that_the_theory_refuses_is_a_sentence_below_and_the_picture_stays():
    frame = make()
    picture = frame.picture.value
    frame.controls.b.value = 9
    assert "b must be at most 8, but 9 was given." in frame.note.value
    assert frame.picture.value == picture
    frame.controls.b.value = 2
    assert frame.note.value == ""


def test_a_wrong_first_state_is_the_authors_mistake_and_raises():
    with pytest.raises(ValueError, match="at most 8"):
        Frame({"a": ipywidgets.IntSlider(1), "b": ipywidgets.IntSlider(9)}, draw, say)


def test_without_measure_there_is_no_button():
    def widgets(box):
        yield box
        for child in getattr(box, "children", ()):
            yield from widgets(child)
    assert not any(isinstance(widget, ipywidgets.Button) for widget in widgets(make()))
    assert any(isinstance(widget, ipywidgets.Button) for widget in widgets(make(measure=lambda a, b: 0)))


def test_a_run_is_added_and_drawn_with_the_controls_values():
    frame = make(measure=lambda a, b: 10 * a + b)
    frame.run().join()
    assert frame.runs == (12,) and frame.text == "a = 1, b = 2, runs (12,)" and draws[-1] == (1, 2, (12,))
    assert not frame.running and frame.button.icon == READY and frame.note.value == ""


def test_of_each_state_the_latest_run_is_kept():
    results = iter(range(10))
    frame = make(measure=lambda a, b: next(results))
    for a in (1, 1, 5, 1):
        frame.controls.a.value = a
        frame.run().join()
    assert frame.runs == (2, 3)


def test_a_second_press_starts_no_second_run():
    began, may_end, times = threading.Event(), threading.Event(), []

    def measure(a, b):
        times.append((a, b))
        began.set()
        may_end.wait(300)
        return "measured"

    frame = make(measure, announce=lambda a, b: f"running {a}")
    frame.button.click()
    assert began.wait(300)
    assert frame.running and frame.button.icon == RUNNING and "running 1" in frame.note.value
    frame.button.click()
    assert frame.run() is None
    frame.controls.a.value = 4  # the sliders go on working, and the line beside the button stays
    assert frame.text == "a = 4, b = 2, runs ()" and "running 1" in frame.note.value
    thread = frame._run_thread
    may_end.set()
    thread.join(300)
    assert times == [(1, 2)] and frame.runs == ("measured",) and frame.button.icon == READY


def test_a_failing_rank_is_a_sentence_in_the_widget_and_the_button_works_again():
    def fails_on_rank_1():
        import torch.distributed as dist
        if dist.get_rank() == 1:
            raise ValueError("one <bad> batch")
        dist.barrier()

    frame = make(measure=lambda a, b: launch(fails_on_rank_1, world_size=2, echo=False))
    picture = frame.picture.value
    frame.run().join(300)
    assert "Rank 1 raised ValueError: one &lt;bad&gt; batch" in frame.note.value
    assert "Traceback" not in frame.note.value
    assert frame.runs == () and frame.picture.value == picture and frame.button.icon == READY
    frame._measure = lambda a, b: 3
    frame.run().join()
    assert frame.runs == (3,) and frame.note.value == ""


@pytest.mark.parametrize("error, sentence", [
    (RankError("Rank 0 waits for ever.", "deadlock"), "Rank 0 waits for ever."),
    (ValueError("At most 8 ranks."), "At most 8 ranks."),
    (KeyError("ring"), "The run failed with KeyError: &#x27;ring&#x27;"),
])
def test_whatever_a_run_raises_becomes_a_sentence(error, sentence):
    def measure(a, b):
        raise error
    frame = make(measure)
    frame.run().join()
    assert sentence in frame.note.value and frame.button.icon == READY


def test_200_redraws_leave_no_figure_open_and_use_one_figure():
    frame, open_figures = make(), plt.get_fignums()
    figure = frame._figure
    for number in range(200):
        frame.controls.a.value = number % 100
    assert len(draws) >= 200 and frame._figure is figure and plt.get_fignums() == open_figures


def test_one_output_has_a_live_a_static_and_a_text_form():
    frame = make()
    data = frame._repr_mimebundle_()
    assert set(data) == {LIVE_VIEW, "image/png", "text/plain"}
    assert data[LIVE_VIEW]["model_id"] == frame.model_id
    assert base64.b64decode(data["image/png"]) == frame.static_png()
    assert data["text/plain"] == "a = 1, b = 2, runs ()"


def test_a_stored_notebook_loses_the_live_view_only_where_something_else_can_be_shown():
    def output(*kinds):
        return nbformat.v4.new_output("display_data", {kind: "x" for kind in kinds})
    notebook = nbformat.v4.new_notebook(metadata={"widgets": {"state": {}}}, cells=[
        nbformat.v4.new_markdown_cell("text"),
        nbformat.v4.new_code_cell("1", outputs=[output(LIVE_VIEW, "image/png", "text/plain"), output(LIVE_VIEW, "text/plain"),
                                                nbformat.v4.new_output("stream", text="x")])])
    without_live_views(notebook)
    first, second, _ = notebook.cells[1].outputs
    assert set(first.data) == {"image/png", "text/plain"} and set(second.data) == {LIVE_VIEW, "text/plain"}
    assert "widgets" not in notebook.metadata
