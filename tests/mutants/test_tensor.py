"""Lab 03's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message.

`course release --self-check` tries every mutant with the seeds that students get; here they meet another one.
"""

import pytest
from answers import Answers

from utils.checks import tensor as check
from utils.checks.verdict import CheckFailed, first_failure

ANSWERS = Answers("03_megatron_ffn_split")
OTHER_SEED = 1_234

pytestmark = pytest.mark.slow


def run_check(question, namespace):
    getattr(check, question)(*functions(question, namespace))


def functions(question, namespace):
    return [namespace[name] for name in check.FUNCTIONS[question]]


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_solution_passes(question, capsys):
    total = len(check.QUESTIONS[question])
    run_check(question, ANSWERS.right())
    assert capsys.readouterr().out == f"{question}: {total}/{total} checks passed\n"
    assert not first_failure(
        question, check.QUESTIONS[question], functions(question, ANSWERS.right()), OTHER_SEED
    )


@pytest.mark.parametrize("question", check.QUESTIONS)
def test_blank_lab_fails(question):
    with pytest.raises(CheckFailed, match="There is no answer yet") as caught:
        run_check(question, ANSWERS.blank())
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
    namespace["g"] = ANSWERS.blank()["g"]
    del namespace["elements_sent"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q1: passed"
    assert lines[1] == "q2: not yet: There is no answer yet: forward raised NotImplementedError."
    assert lines[2:6] == ["q3: passed", "q4: passed", "q5: passed", "q6: passed"]
    assert lines[6] == "q7: not yet: elements_sent is not defined: run the cell of its exercise."
