"""Lab 05's checks tell right from wrong: the solution passes, the blank lab fails, every mutant gets its own message.

`course release --self-check` tries every mutant with the seeds that students get; here they meet another one.
"""

import pytest
from answers import ROOT, Answers

from utils.checks import layout as check
from utils.checks.verdict import CheckFailed, first_failure
from utils.grading.notebook import grade_id, read
from utils.grading.sandbox import Sandbox
from utils.grading.verify import verifier_of

ANSWERS = Answers("05_3d_layout")
OTHER_SEED = 5_678

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
    namespace["step_seconds"] = ANSWERS.blank()["step_seconds"]
    del namespace["broken_rule"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["q1: passed", "q2: passed", "q3: passed"]
    assert lines[3] == "q4: not yet: There is no answer yet: step_seconds raised NotImplementedError."
    assert lines[4] == "q5: not yet: broken_rule is not defined: run the cell of its exercise."


def test_the_five_layouts_of_the_lab_break_the_five_rules():
    """What the explanation says of A to E, from the cell that students get."""
    namespace = ANSWERS.right()
    (given,) = (cell.source for cell in read(ANSWERS.lab).cells if "LAYOUTS = {" in cell.source)
    exec(given, namespace)
    found = {
        name: namespace["broken_rule"](namespace["GPT"], layout, batch, namespace["MACHINE"])
        for name, (layout, batch) in namespace["LAYOUTS"].items()
    }
    assert found == {"A": "bubble", "B": "layers", "C": "memory", "D": "node", "E": "batch"}


WRONG = {
    "q1-answer": "q1_one_dimension_only",
    "q2-answer": "q2_tables_cut_by_p",
    "q3-answer": "q3_whole_batch_everywhere",
    "q4-answer": "q4_bubble_of_the_gradients",
    "q5-answer": "q5_order_ignored",
}


@pytest.mark.parametrize("mistaken", [False, True])
def test_a_grader_in_other_processes_finds_the_same(mistaken):
    """The verify stage passes the solution, and finds what is wrong with one mutant of each question."""
    sources = {mutant.path.stem: mutant for mutant in ANSWERS.mutants}
    notebook = read(ANSWERS.solution)
    for cell in notebook.cells:
        if mistaken and grade_id(cell) in WRONG:
            cell.source = sources[WRONG[grade_id(cell)]].source
    verifier = verifier_of(read(ANSWERS.lab), ROOT, Sandbox(), seed=5)
    try:
        results = verifier(notebook, check.QUESTIONS)
    finally:
        verifier.close()
    assert list(results) == list(check.QUESTIONS)
    for question, of_question in results.items():
        messages = [f"{result.message} {result.name}" for result in of_question if not result.passed]
        if mistaken:
            wrong = sources[WRONG[f"{question}-answer"]].message.partition("the next one is “")
            assert (wrong[2].rstrip("”") or wrong[0]) in messages[0]
        else:
            assert messages == []
