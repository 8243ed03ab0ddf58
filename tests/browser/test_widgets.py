"""A widget under a student's hands: the mouse, the keyboard, and nothing that lags behind."""
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
        notebook.wait_for(lambda name=f"on {ranks} ranks": name in schedules.sentence() and "at t =" not in schedules.sentence())
