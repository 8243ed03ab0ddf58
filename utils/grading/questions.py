"""What a lab asks: its questions, read from the metadata of its check cells."""

from __future__ import annotations

from dataclasses import dataclass

from nbformat import NotebookNode

from utils.grading.notebook import grade_id, is_check

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Question:
    """One check cell and the answers that it looks at.

    ``name`` is ``"q1"``, ``check`` the check cell's ``grade_id``, ``answers`` the ``grade_id`` of every answer cell
    whose code takes part, ``timeout_seconds`` the limit for the check cell, ``ranks`` how many processes it starts.
    """

    name: str
    check: str
    answers: tuple[str, ...]
    points: float
    timeout_seconds: float = TIMEOUT_SECONDS
    ranks: int = 1
    hint: str = ""


def question_of(cell: NotebookNode) -> Question:
    """Return the question of a check cell; what its ``course`` metadata leaves out has a default.

    ``question`` defaults to the ``grade_id`` without ``-check``, ``answers`` to that question's own answer cell.
    """
    check = grade_id(cell)
    course = cell.metadata.get("course", {})
    name = course.get("question", check.removesuffix("-check"))
    return Question(
        name=name,
        check=check,
        answers=tuple(course.get("answers", [f"{name}-answer"])),
        points=cell.metadata.nbgrader.get("points", 0),
        timeout_seconds=course.get("timeout", TIMEOUT_SECONDS),
        ranks=course.get("ranks", 1),
        hint=course.get("hint", ""),
    )


def questions(notebook: NotebookNode) -> tuple[Question, ...]:
    """Return the questions of a lab or a solution in the order of its check cells."""
    return tuple(question_of(cell) for cell in notebook.cells if is_check(cell))
