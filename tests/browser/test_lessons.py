"""Every lesson in JupyterLab: all cells run, every widget answers to every control, everything can be seen and read."""
import pytest
from lab import ROOT, Notebook, ShownFrame
from looks import cut_off, hard_to_read, see_through

from utils.widgets.frame import LIVE_VIEW, YOUR_OWN

LESSONS = sorted(path.stem for path in (ROOT / "lessons").glob("*.ipynb"))
MATTERS_IN = {
    "v chunks": "two chunks on each rank",
    "M_W/M_B": "ZB-H1 and ZB-H2",
    "between": "GPT-3 on A100s, t across servers",
    "cut B": "Megatron-LM's cut, four ranks",
}
"""Controls that change nothing in the first preset, and one in which they do."""


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_and_its_widgets_answer(jupyter, window, name):
    notebook = jupyter.open(window, f"lessons/{name}.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    frames, quizzes = notebook.frames(), notebook.quizzes()
    assert len(frames) + len(quizzes) == live_views(notebook) > 0
    for number, frame in enumerate(frames):
        choose_every_preset(frame)
        move_every_control(frame)
        if frame.can_run():
            run_on_real_ranks(frame)
        notebook.save_screenshot(f"{name}-widget-{number}", frame.box)
    assert see_through(notebook.box) == []
    for width in (1280, 800):
        window.set_viewport_size({"width": width, "height": 900})
        assert {number: found for number, frame in enumerate(frames) if (found := cut_off(frame.box))} == {}, f"{width} px"
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.use_theme(theme)
        assert hard_to_read(notebook.outputs()) == [], theme


def live_views(notebook: Notebook) -> int:
    return notebook.ask(f"cells.flatMap(cell => cell.outputs.toJSON()).filter(output => output.data?.['{LIVE_VIEW}']).length")


def choose_every_preset(frame: ShownFrame):
    for preset in frame.presets():
        if preset != YOUR_OWN:
            frame.choose_preset(preset)


def move_every_control(frame: ShownFrame):
    for label in frame.labels():
        frame.choose_preset(MATTERS_IN.get(label, frame.presets()[0]))
        with frame.expect_answer():
            frame.move(label)


def run_on_real_ranks(frame: ShownFrame):
    frame.choose_preset(frame.presets()[0])
    with frame.expect_another_picture():
        frame.run()
    assert frame.note() == "" and "real rank" in frame.sentence()
