"""What every exercise of a lab must tell its reader, and that the text and the metadata agree."""

import re
from pathlib import Path

import pytest

from utils.grading.notebook import grade_id, is_answer, is_check, read
from utils.grading.questions import question_of

LABS = sorted((Path(__file__).parents[2] / "labs").glob("*.ipynb"))
CELLS = {lab.stem: read(lab).cells for lab in LABS}
CHECKS = {
    (lab, question_of(cell).name): position
    for lab, cells in CELLS.items()
    for position, cell in enumerate(cells)
    if is_check(cell)
}
every_exercise = pytest.mark.parametrize("lab, question", [pytest.param(*key, id="-".join(key)) for key in CHECKS])
FACTS = re.compile(
    r"^\*Difficulty ([1-5])/5 · importance ([1-5])/5 · (\d+) minutes · (\d+) points? · deliverable: .+\*$",
    re.MULTILINE,
)


def text_before(lab, question):
    """The Markdown above a question's answer cell."""
    return CELLS[lab][CHECKS[lab, question] - 2].source


@every_exercise
def test_an_exercise_is_text_answer_check_text(lab, question):
    cells, position = CELLS[lab], CHECKS[lab, question]
    kinds = [cell.cell_type for cell in cells[position - 2 : position + 2]]
    assert kinds == ["markdown", "code", "code", "markdown"]
    assert is_answer(cells[position - 1]) and grade_id(cells[position - 1]) == f"{question}-answer"
    assert cells[position + 1].source.startswith("<details><summary>"), "the explanation is folded"


@every_exercise
def test_an_exercise_states_its_facts_and_the_table_agrees(lab, question):
    ((difficulty, importance, minutes, points),) = FACTS.findall(text_before(lab, question))
    assert int(points) == question_of(CELLS[lab][CHECKS[lab, question]]).points
    row = rf"\| {question} \| .+ \| {difficulty}/5 \| {importance}/5 \| {minutes} \| {points} \|"
    assert re.search(row, CELLS[lab][0].source)


@every_exercise
def test_an_exercise_has_three_folded_hints(lab, question):
    exercise = text_before(lab, question).rpartition("\n## ")[2]
    assert re.findall(r"<details><summary>Hint (\d)", exercise) == ["1", "2", "3"]
    assert exercise.count("<details>") == exercise.count("</details>")


USES_OTHERS = {
    ("01_all_reduce", "q3"): ("q1-answer", "q2-answer", "q3-answer"),
    ("02_zero_memory", "q7"): ("q1-answer", "q7-answer"),
}


@every_exercise
def test_a_check_names_the_answers_it_uses(lab, question):
    answers = question_of(CELLS[lab][CHECKS[lab, question]]).answers
    assert answers == USES_OTHERS.get((lab, question), (f"{question}-answer",))
