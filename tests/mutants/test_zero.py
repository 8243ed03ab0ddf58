"""Lab 02's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import Answers

from utils.checks import zero as check

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
    results = ANSWERS.verified(check.QUESTIONS, HOARDERS if hoarding else {}, seed=3)
    failed = {
        question: [result.message for result in of_question if not result.passed]
        for question, of_question in results.items()
    }
    for question, messages in failed.items():
        expected = [ANSWERS.message(name) for answer, name in HOARDERS.items() if hoarding and answer.startswith(question)]
        assert len(messages) == len(expected) and all(words in messages[0] for words in expected), messages
