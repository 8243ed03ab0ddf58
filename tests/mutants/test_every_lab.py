"""The labs' checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message.

`course release --self-check` tries every mutant with the seeds that students get; here they meet another one.
"""

import pytest
from answers import Answers

from utils.checks import layout, pipeline, tensor, zero
from utils.checks.verdict import CheckFailed, first_failure

CHECKS = {"02_zero_memory": zero, "03_megatron_ffn_split": tensor, "04_pipeline_bubbles": pipeline, "05_3d_layout": layout}
ANSWERS = {lab: Answers(lab) for lab in CHECKS}
QUESTIONS = [(lab, question) for lab, check in CHECKS.items() for question in check.QUESTIONS]
MUTANTS = [pytest.param(lab, mutant, id=f"{lab}-{mutant.path.stem}") for lab in CHECKS for mutant in ANSWERS[lab].mutants]
OTHER_SEED = 2_345

pytestmark = pytest.mark.slow


def functions(lab, question, namespace):
    return [namespace[name] for name in CHECKS[lab].FUNCTIONS[question]]


@pytest.mark.parametrize("lab, question", QUESTIONS)
def test_solution_passes(lab, question, capsys):
    check = CHECKS[lab]
    total = len(check.QUESTIONS[question])
    getattr(check, question)(*functions(lab, question, ANSWERS[lab].right()))
    assert capsys.readouterr().out == f"{question}: {total}/{total} checks passed\n"


@pytest.mark.parametrize("lab, question", QUESTIONS)
def test_blank_lab_fails(lab, question):
    check = CHECKS[lab]
    with pytest.raises(CheckFailed, match="There is no answer yet") as caught:
        getattr(check, question)(*functions(lab, question, ANSWERS[lab].blank()))
    assert f"{question}: 0 of {len(check.QUESTIONS[question])} checks passed" in str(caught.value)


@pytest.mark.parametrize("lab, mutant", MUTANTS)
def test_mutant_gets_its_message(lab, mutant):
    question = mutant.answer.removesuffix("-answer")
    wrong = functions(lab, question, ANSWERS[lab].with_mutant(mutant))
    assert mutant.message in first_failure(question, CHECKS[lab].QUESTIONS[question], wrong, OTHER_SEED)


@pytest.mark.parametrize("lab, question", QUESTIONS)
def test_at_least_four_mutants_with_different_messages(lab, question):
    messages = [mutant.message for mutant in ANSWERS[lab].mutants if mutant.answer == f"{question}-answer"]
    assert len(messages) >= 4
    assert len(set(messages)) == len(messages)
