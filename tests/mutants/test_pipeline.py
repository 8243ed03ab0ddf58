"""Lab 04's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message.

`course release --self-check` tries every mutant with the seeds that students get; here they meet another one.
"""

import pytest
from answers import ROOT, Answers

from utils.checks import pipeline as check
from utils.checks.verdict import CheckFailed, first_failure
from utils.grading.notebook import grade_id, read
from utils.grading.sandbox import Sandbox
from utils.grading.verify import verifier_of

ANSWERS = Answers("04_pipeline_bubbles")
OTHER_SEED = 3_456

pytestmark = pytest.mark.slow


def functions(question, namespace):
    return [namespace[name] for name in check.FUNCTIONS[question]]


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_solution_passes(question, capsys):
    total = len(check.QUESTIONS[question])
    getattr(check, question)(*functions(question, ANSWERS.right()))
    assert capsys.readouterr().out == f"{question}: {total}/{total} checks passed\n"


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_blank_lab_fails(question):
    with pytest.raises(CheckFailed, match="There is no answer yet") as caught:
        getattr(check, question)(*functions(question, ANSWERS.blank()))
    assert f"{question}: 0 of {len(check.QUESTIONS[question])} checks passed" in str(caught.value)


@pytest.mark.parametrize("mutant", ANSWERS.mutants, ids=lambda mutant: mutant.path.stem)
def test_mutant_gets_its_message(mutant):
    question = mutant.answer.removesuffix("-answer")
    wrong = functions(question, ANSWERS.with_mutant(mutant))
    assert mutant.message in first_failure(question, check.QUESTIONS[question], wrong, OTHER_SEED)


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_at_least_four_mutants_with_different_messages(question):
    messages = [mutant.message for mutant in ANSWERS.mutants if mutant.answer == f"{question}-answer"]
    assert len(messages) >= 4
    assert len(set(messages)) == len(messages)


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
