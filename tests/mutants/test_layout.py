"""Lab 05's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import Answers

from utils.checks import layout as check
from utils.grading.notebook import read

ANSWERS = Answers("05_3d_layout")

pytestmark = pytest.mark.slow


def test_everything_prints_a_line_per_question(capsys):
    namespace = ANSWERS.right()
    namespace["step_seconds"] = ANSWERS.blank()["step_seconds"]
    del namespace["broken_rule"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["q1: passed", "q2: passed", "q3: passed"]
    assert lines[3] == "q4: not yet: There is no answer yet: step_seconds raised NotImplementedError."
    assert lines[4] == "q5: not yet: broken_rule is not defined: run the cell of its exercise."


def test_the_five_layouts_of_the_lab_break_the_five_rules():
    """What the explanation says of A to E, from the cell that students get."""
    namespace = ANSWERS.right()
    (given,) = (cell.source for cell in read(ANSWERS.lab).cells if "LAYOUTS = {" in cell.source)
    exec(given, namespace)
    found = {
        name: namespace["broken_rule"](namespace["GPT"], layout, batch, namespace["MACHINE"])
        for name, (layout, batch) in namespace["LAYOUTS"].items()
    }
    assert found == {"A": "bubble", "B": "layers", "C": "memory", "D": "node", "E": "batch"}


WRONG = {
    "q1-answer": "q1_one_dimension_only",
    "q2-answer": "q2_tables_cut_by_p",
    "q3-answer": "q3_whole_batch_everywhere",
    "q4-answer": "q4_bubble_of_the_gradients",
    "q5-answer": "q5_order_ignored",
}


@pytest.mark.parametrize("mistaken", [False, True])
def test_a_grader_in_other_processes_finds_the_same(mistaken):
    """The verify stage passes the solution, and finds what is wrong with one mutant of each question."""
    results = ANSWERS.verified(check.QUESTIONS, WRONG if mistaken else {}, seed=5)
    assert list(results) == list(check.QUESTIONS)
    for question, of_question in results.items():
        messages = [f"{result.message} {result.name}" for result in of_question if not result.passed]
        if mistaken:
            wrong = ANSWERS.message(WRONG[f"{question}-answer"]).partition("the next one is “")
            assert (wrong[2].rstrip("”") or wrong[0]) in messages[0]
        else:
            assert messages == []
