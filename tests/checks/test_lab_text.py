"""What every exercise of a lab must tell its reader, and that the text and the metadata agree."""

import re
from pathlib import Path

import pytest

from utils.grading.notebook import grade_id, is_answer, is_check, read
from utils.grading.questions import question_of

LAB = Path(__file__).parents[2] / "labs" / "01_all_reduce.ipynb"
CELLS = read(LAB).cells
CHECKS = {question_of(cell).name: position for position, cell in enumerate(CELLS) if is_check(cell)}
FACTS = re.compile(
    r"^\*Difficulty ([1-5])/5 · importance ([1-5])/5 · (\d+) minutes · (\d+) points · deliverable: .+\*$",
    re.MULTILINE,
)


def text_before(position):
    """The Markdown above a question's answer cell."""
    return CELLS[position - 2].source


@pytest.mark.parametrize("question", CHECKS)
def test_an_exercise_is_text_answer_check_text(question):
    position = CHECKS[question]
    kinds = [cell.cell_type for cell in CELLS[position - 2 : position + 2]]
    assert kinds == ["markdown", "code", "code", "markdown"]
    assert is_answer(CELLS[position - 1]) and grade_id(CELLS[position - 1]) == f"{question}-answer"
    assert CELLS[position + 1].source.startswith("<details><summary>"), "the explanation is folded"


@pytest.mark.parametrize("question", CHECKS)
def test_an_exercise_states_its_facts_and_the_table_agrees(question):
    ((difficulty, importance, minutes, points),) = FACTS.findall(text_before(CHECKS[question]))
    assert int(points) == question_of(CELLS[CHECKS[question]]).points
    row = rf"\| {question} \| .+ \| {difficulty}/5 \| {importance}/5 \| {minutes} \| {points} \|"
    assert re.search(row, CELLS[0].source)


@pytest.mark.parametrize("question", CHECKS)
def test_an_exercise_has_three_folded_hints(question):
    exercise = text_before(CHECKS[question]).rpartition("\n## ")[2]
    assert re.findall(r"<details><summary>Hint (\d)", exercise) == ["1", "2", "3"]
    assert exercise.count("<details>") == exercise.count("</details>")


def test_a_check_names_the_answers_it_uses():
    answers = {question: question_of(CELLS[position]).answers for question, position in CHECKS.items()}
    assert answers["q3"] == ("q1-answer", "q2-answer", "q3-answer")
    assert all(answers[question] == (f"{question}-answer",) for question in answers if question != "q3")
