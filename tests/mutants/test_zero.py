"""Lab 02's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message.

`course release --self-check` tries every mutant with the seeds that students get; here they meet another one.
"""

import pytest
from answers import ROOT, Answers

from utils.checks import zero as check
from utils.checks.verdict import CheckFailed, first_failure
from utils.grading.notebook import grade_id, read
from utils.grading.sandbox import Sandbox
from utils.grading.verify import verifier_of

ANSWERS = Answers("02_zero_memory")
OTHER_SEED = 2_345

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
    namespace["saved_bytes"] = ANSWERS.blank()["saved_bytes"]
    del namespace["fewest_ranks"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [f"q{number}: passed" for number in range(1, 6)]
    assert lines[5] == "q6: not yet: There is no answer yet: saved_bytes raised NotImplementedError."
    assert lines[6] == "q7: not yet: fewest_ranks is not defined: run the cell of its exercise."


HOARDERS = {
    "q2-answer": "q2_state_not_sharded",
    "q3-answer": "q3_view_kept",
    "q4-answer": "q4_not_freed_in_backward",
    "q5-answer": "q5_all_at_once",
}


@pytest.mark.parametrize("hoarding", [False, True])
def test_a_grader_in_other_processes_finds_the_same(hoarding):
    """The verify stage passes the solution, and finds the one thing that is wrong with answers that keep too much."""
    sources = {mutant.path.stem: mutant for mutant in ANSWERS.mutants}
    notebook = read(ANSWERS.solution)
    for cell in notebook.cells:
        if hoarding and grade_id(cell) in HOARDERS:
            cell.source = sources[HOARDERS[grade_id(cell)]].source
    verifier = verifier_of(read(ANSWERS.lab), ROOT, Sandbox(), seed=3)
    try:
        results = verifier(notebook, check.QUESTIONS)
    finally:
        verifier.close()
    failed = {
        question: [result.message for result in of_question if not result.passed]
        for question, of_question in results.items()
    }
    for question, messages in failed.items():
        expected = [sources[name].message for answer, name in HOARDERS.items() if hoarding and answer.startswith(question)]
        assert len(messages) == len(expected) and all(words in messages[0] for words in expected), messages
