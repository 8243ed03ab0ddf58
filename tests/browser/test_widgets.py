"""A widget under a student's hands: the mouse, the keyboard, and nothing that lags behind."""
import re

import pytest

WIDGETS = [
    "from utils.widgets.all_reduce import ring_steps\nring_steps()",
    "from utils.widgets.pipeline import explore_schedules\nexplore_schedules()",
    "from utils.widgets.quiz import predict\npredict('How many?', answer=1500, explanation='That is all.')",
]


@pytest.fixture
def notebook(jupyter, window):
    notebook = jupyter.open(window, jupyter.write("lessons/widgets.ipynb", *WIDGETS))
    notebook.run_all()
    return notebook


def test_keyboard_alone_moves_a_slider_and_presses_a_button(notebook):
    ring = notebook.frames()[0]
    for label in ("N ranks", "step"):
        notebook.tab_to(label)
        with ring.expect_another_picture():
            notebook.page.keyboard.press("ArrowRight")
    assert ring.sentence().startswith("step 2 of 8: ")
    notebook.tab_to("Run on real ranks")
    for key in ("Enter", "Space"):  # the button keeps the focus
        with ring.expect_run():
            notebook.page.keyboard.press(key)
        assert "on real ranks: " in ring.sentence() and ring.note() == ""


def test_a_quiz_is_answered_with_the_keyboard(notebook):
    notebook.tab_to("I say")
    notebook.page.keyboard.type("1,500")
    notebook.page.keyboard.press("Enter")
    verdict = notebook.quizzes()[0].get_by_role("status")
    assert verdict.text_content() == "Right. That is all."


def test_a_dragged_slider_ends_where_it_is_let_go(notebook):
    ring = notebook.frames()[0]
    ring.drag("step")
    assert ring.value("step") == "6"
    notebook.wait_for(lambda: ring.sentence().startswith("step 6 of 6: "))


def test_the_moment_that_is_looked_at_stays_at_the_end_when_the_step_grows(notebook):
    schedules = notebook.frames()[1]
    for ranks in range(5, 9):
        with schedules.expect_another_picture():
            schedules.press("p ranks", "ArrowRight")
        notebook.wait_for(lambda name=f"on {ranks} ranks": name in schedules.sentence())
        assert "at t =" not in schedules.sentence() and schedules.value("t/step") == "100.0%"


def test_the_play_button_takes_the_moment_through_the_step(notebook):
    schedules = notebook.frames()[1]
    play = schedules.box.locator(".widget-play button").first

    def at_the_moment_shown():
        share = float(schedules.value("t/step").removesuffix("%")) / 100
        step = float(re.search(r"the step takes ([\d.]+)", schedules.sentence())[1])
        return f"at t = {share * step:.4g}, from rank 0 on: " in schedules.sentence()

    play.click()
    notebook.wait_for(lambda: "at t = " in schedules.sentence())
    play.click()  # it pauses
    notebook.wait_for(at_the_moment_shown)


def test_a_saved_notebook_shows_its_widgets_when_it_is_opened_again_and_runs_again(jupyter, notebook):
    ring = notebook.frames()[0]
    ring.choose_preset("10 elements, 3 ranks: uneven chunks")
    sentence, picture = ring.sentence(), ring.picture_bytes()
    notebook.save()
    notebook.ask("panel.sessionContext.shutdown().then(() => true)")
    notebook = jupyter.open(notebook.page, notebook.path)
    notebook.wait_for(lambda: len(notebook.frames()) == 2 and len(notebook.quizzes()) == 1)
    assert notebook.frames()[0].sentence() == sentence and notebook.frames()[0].picture_bytes() == picture
    assert notebook.box.get_by_text("oading widget").or_(notebook.box.get_by_text("Error displaying widget")).count() == 0
    notebook.run_all()
    with notebook.frames()[0].expect_another_picture():
        notebook.frames()[0].press("N ranks", "ArrowRight")
