"""Lab 04's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import Answers

from utils.checks import pipeline as check

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
    results = ANSWERS.verified(check.QUESTIONS, WRONG if mistaken else {}, seed=4)
    assert list(results) == list(check.QUESTIONS)
    for question, of_question in results.items():
        messages = [result.message for result in of_question if not result.passed]
        if mistaken:
            assert ANSWERS.message(WRONG[f"{question}-answer"]) in messages[0]
        else:
            assert messages == []
