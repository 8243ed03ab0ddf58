"""Lab 01's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message."""

import contextlib
import io
from pathlib import Path

import pytest

from utils.checks import all_reduce as check
from utils.checks.verdict import CheckFailed
from utils.grading.notebook import grade_id, is_answer, read
from utils.grading.selfcheck import mutants_of

ROOT = Path(__file__).parents[2]
SOLUTION, LAB = (ROOT / folder / "01_all_reduce.ipynb" for folder in ("solutions", "labs"))
MUTANTS = mutants_of(SOLUTION)

pytestmark = pytest.mark.slow


def answers_of(path):
    """The code of a notebook's answer cells, by grade_id."""
    return {grade_id(cell): cell.source for cell in read(path).cells if is_answer(cell)}


def namespace_with(answers):
    """What a kernel holds after the imports and the answer cells."""
    namespace = {"__name__": "__main__"}
    exec("import torch\nimport torch.distributed as dist\nfrom utils import launch", namespace)
    for name, source in answers.items():
        exec(compile(source, f"<cell {name}>", "exec"), namespace)
    return namespace


def run_check(question, namespace):
    """Run one question's check; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        getattr(check, question)(*(namespace[name] for name in check.FUNCTIONS[question]))
    return printed.getvalue()


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_solution_passes(question):
    total = len(check.QUESTIONS[question])
    printed = run_check(question, namespace_with(answers_of(SOLUTION)))
    assert printed == f"{question}: {total}/{total} checks passed\n"


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_blank_lab_fails(question):
    with pytest.raises(CheckFailed, match="There is no answer yet") as caught:
        run_check(question, namespace_with(answers_of(LAB)))
    assert f"{question}: 0 of {len(check.QUESTIONS[question])} checks passed" in str(caught.value)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.path.stem)
def test_mutant_gets_its_message(mutant):
    question = mutant.answer.removesuffix("-answer")
    with pytest.raises(CheckFailed) as caught:
        run_check(question, namespace_with({**answers_of(SOLUTION), mutant.answer: mutant.source}))
    assert mutant.message in str(caught.value)


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_at_least_two_mutants_with_different_messages(question):
    messages = [mutant.message for mutant in MUTANTS if mutant.answer == f"{question}-answer"]
    assert len(messages) >= 2
    assert len(set(messages)) == len(messages)


def test_everything_prints_a_line_per_question(capsys):
    namespace = namespace_with(answers_of(SOLUTION))
    namespace["all_gather"] = namespace_with(answers_of(LAB))["all_gather"]
    del namespace["largest_batch"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q1: passed"
    assert lines[1] == "q2: not yet: There is no answer yet: all_gather raised NotImplementedError."
    assert lines[2] == "q3: not yet: There is no answer yet: all_gather raised NotImplementedError."
    assert lines[3:6] == ["q4: passed", "q5: passed", "q6: passed"]
    assert lines[6] == "q7: not yet: largest_batch is not defined: run the cell of its exercise."
