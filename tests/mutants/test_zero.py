"""Lab 02's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import ROOT, Answers

from utils.checks import zero as check
from utils.grading.notebook import grade_id, read
from utils.grading.sandbox import Sandbox
from utils.grading.verify import verifier_of

ANSWERS = Answers("02_zero_memory")

pytestmark = pytest.mark.slow


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
