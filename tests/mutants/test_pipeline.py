"""Lab 04's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import ROOT, Answers

from utils.checks import pipeline as check
from utils.grading.notebook import grade_id, read
from utils.grading.sandbox import Sandbox
from utils.grading.verify import verifier_of

ANSWERS = Answers("04_pipeline_bubbles")

pytestmark = pytest.mark.slow


def test_everything_prints_a_line_per_question(capsys):
    namespace = ANSWERS.right()
    namespace["bubble"] = ANSWERS.blank()["bubble"]
    del namespace["choose"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert [lines[number] for number in (0, 1, 3, 4)] == [f"q{number}: passed" for number in (1, 2, 4, 5)]
    assert lines[2] == "q3: not yet: There is no answer yet: bubble raised NotImplementedError."
    assert lines[5] == "q6: not yet: choose is not defined: run the cell of its exercise."


WRONG = {
    "q1-answer": "q1_directions_differ",
    "q2-answer": "q2_one_ahead_too_many",
    "q3-answer": "q3_bubble_over_ideal",
    "q4-answer": "q4_loss_keeps_its_graph",
    "q5-answer": "q5_weight_overwritten",
    "q6-answer": "q6_visits_cost_nothing",
}


@pytest.mark.parametrize("mistaken", [False, True])
def test_a_grader_in_other_processes_finds_the_same(mistaken):
    """The verify stage passes the solution, and finds what is wrong with one mutant of each question."""
    sources = {mutant.path.stem: mutant for mutant in ANSWERS.mutants}
    notebook = read(ANSWERS.solution)
    for cell in notebook.cells:
        if mistaken and grade_id(cell) in WRONG:
            cell.source = sources[WRONG[grade_id(cell)]].source
    verifier = verifier_of(read(ANSWERS.lab), ROOT, Sandbox(), seed=4)
    try:
        results = verifier(notebook, check.QUESTIONS)
    finally:
        verifier.close()
    assert list(results) == list(check.QUESTIONS)
    for question, of_question in results.items():
        messages = [result.message for result in of_question if not result.passed]
        if mistaken:
            assert sources[WRONG[f"{question}-answer"]].message in messages[0]
        else:
            assert messages == []
