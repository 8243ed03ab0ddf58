"""Lab 01's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message."""

import contextlib
import io

import pytest
from answers import Answers

from utils.checks import all_reduce as check
from utils.checks.verdict import CheckFailed

ANSWERS = Answers("01_all_reduce")

pytestmark = pytest.mark.slow


def run_check(question, namespace):
    """Run one question's check; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        getattr(check, question)(*(namespace[name] for name in check.FUNCTIONS[question]))
    return printed.getvalue()


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_solution_passes(question):
    total = len(check.QUESTIONS[question])
    printed = run_check(question, ANSWERS.right())
    assert printed == f"{question}: {total}/{total} checks passed\n"


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_blank_lab_fails(question):
    with pytest.raises(CheckFailed, match="There is no answer yet") as caught:
        run_check(question, ANSWERS.blank())
    assert f"{question}: 0 of {len(check.QUESTIONS[question])} checks passed" in str(caught.value)


@pytest.mark.parametrize("mutant", ANSWERS.mutants, ids=lambda mutant: mutant.path.stem)
def test_mutant_gets_its_message(mutant):
    question = mutant.answer.removesuffix("-answer")
    with pytest.raises(CheckFailed) as caught:
        run_check(question, ANSWERS.with_mutant(mutant))
    assert mutant.message in str(caught.value)


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_at_least_two_mutants_with_different_messages(question):
    messages = [mutant.message for mutant in ANSWERS.mutants if mutant.answer == f"{question}-answer"]
    assert len(messages) >= 2
    assert len(set(messages)) == len(messages)


def test_everything_prints_a_line_per_question(capsys):
    namespace = ANSWERS.right()
    namespace["all_gather"] = ANSWERS.blank()["all_gather"]
    del namespace["largest_batch"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q1: passed"
    assert lines[1] == "q2: not yet: There is no answer yet: all_gather raised NotImplementedError."
    assert lines[2] == "q3: not yet: There is no answer yet: all_gather raised NotImplementedError."
    assert lines[3:6] == ["q4: passed", "q5: passed", "q6: passed"]
    assert lines[6] == "q7: not yet: largest_batch is not defined: run the cell of its exercise."
