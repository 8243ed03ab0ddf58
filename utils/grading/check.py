"""For students: run a lab from top to bottom in a fresh kernel and say, question by question, what passes."""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from utils.grading.errors import GradingError
from utils.grading.graft import Report, graft
from utils.grading.kernel import RUNNING_VARIABLE
from utils.grading.nbval_stage import CellResult, NbvalRun, judged_part, run_nbval
from utils.grading.notebook import digest, dumps, grade_id, is_answer, is_check, plain, read
from utils.grading.questions import Question, questions

SYMBOLS = {"passed": "✓", "failed": "✗", "stopped": "✗", "blank": "–", "missing": "–"}


@dataclass(frozen=True)
class QuestionResult:
    """One question: ``state`` is ``"passed"``, ``"failed"``, ``"stopped"``, ``"blank"`` or ``"missing"``."""

    question: Question
    state: str
    message: str
    hint: str


def check_lab(
    path: str | Path, *, against: str | Path | None = None, root: str | Path = "."
) -> list[QuestionResult]:
    """Run the lab in the file ``path`` and return what became of each of its questions.

    Arguments:
        path: the notebook that a student works in.
        against: a released lab to put the answers into; by default the lab of this name under ``root`` if that is
            another file, and otherwise the notebook itself.
        root: the course's folder.

    Raises ``GradingError`` if the file cannot be read, is no lab, or is another lab than ``against``.
    """
    path, root = Path(path), Path(root)
    mine = read(path)
    known = {grade_id(cell): cell for cell in mine.cells if grade_id(cell)}
    pristine = _pristine(mine, path, against, root)
    if not questions(pristine):
        raise GradingError(
            f"{path}: this notebook has no check cells. Give the path of a lab, such as labs/01_all_reduce.ipynb."
        )
    grafted, report = graft(pristine, dumps(mine).encode())
    if report.status not in ("ok", "blank"):
        raise GradingError(f"{path}: {' '.join(report.notes)}")
    if not known and not any(answer.source for answer in report.answers.values()):
        raise GradingError(f"{path}: no answer cells were found. Is this the lab?")
    ran = run_nbval(judged_part(grafted), root)
    return [_judge(question, report, ran) for question in questions(pristine)]


def report_text(results: list[QuestionResult]) -> str:
    """Return the results as lines for a terminal or a cell."""
    lines = []
    for result in results:
        lines.append(f"{SYMBOLS[result.state]} {result.question.name}  {_first_words(result)}")
        lines += [f"      {line}" for line in result.message.splitlines()[1:12]]
        if result.hint and result.state != "passed":
            lines.append(f"      hint: {result.hint}")
    passed = sum(result.state == "passed" for result in results)
    lines.append(
        f"{passed} of {len(results)} questions pass" + ("." if passed < len(results) else ". Well done.")
    )
    return "\n".join(lines)


def show_check(path: str | Path, *, root: str | Path = ".") -> None:
    """Print the result of :func:`check_lab` for a saved notebook: the line for a lab's last cell.

    Inside a run that the grader or another check started it does nothing, so that a lab can check itself.
    """
    if RUNNING_VARIABLE in os.environ:
        return
    try:
        print(report_text(check_lab(path, root=root)))
    except GradingError as error:
        print(error, file=sys.stderr)


def _pristine(mine: NotebookNode, path: Path, against: str | Path | None, root: Path) -> NotebookNode:
    if against is None:
        released = root / "labs" / f"{mine.metadata.get('course', {}).get('lab', '')}.ipynb"
        if released.exists() and released.resolve() != path.resolve():
            return read(released)
        return _as_released(mine)
    return read(against)


def _as_released(mine: NotebookNode) -> NotebookNode:
    """Return a student's own notebook in a form that can be run: its checks need to pass, whatever output is stored."""
    own = copy.deepcopy(mine)
    seen: set[str] = set()
    for number, cell in enumerate(own.cells):
        if (is_answer(cell) or is_check(cell)) and grade_id(cell) not in seen:
            cell.id = grade_id(cell)
            seen.add(cell.id)
        else:
            cell.id = f"cell-{number}"
            cell.metadata.pop("nbgrader", None)
        if is_answer(cell) and cell.metadata.get("course", {}).get("blank") != digest(plain(cell.source)):
            cell.source = ""  # so that the answer counts as one when it is put back
        cell.metadata["tags"] = ["nbval-ignore-output"]
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return own


def _judge(question: Question, report: Report, ran: NbvalRun) -> QuestionResult:
    own = report.answers.get(f"{question.name}-answer") or next(
        (report.answers[name] for name in question.answers if name in report.answers), None
    )
    result = ran.cells.get(question.check)
    if own is not None and own.state != "answered":
        words = "not answered yet" if own.state == "blank" else "its answer cell is not in the notebook"
        return QuestionResult(question, own.state, words, "")
    if result is not None and result.outcome == "passed":
        return QuestionResult(
            question, "passed", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "", ""
        )
    broken = [
        (name, ran.cells[name])
        for name in question.answers
        if name in ran.cells and ran.cells[name].outcome != "passed"
    ]
    notes = " ".join(own.notes) if own is not None else ""
    if broken:
        name, cell = broken[0]
        message = f"the cell of {name} does not run: {cell.message}" + _where(cell)
        return QuestionResult(question, cell.outcome, message, notes or question.hint)
    if result is None:
        return QuestionResult(
            question, "stopped", "not reached: an earlier cell used up the time for the whole lab", ""
        )
    return QuestionResult(question, result.outcome, result.message, notes or question.hint)


def _where(cell: CellResult) -> str:
    """Return the line of the student's cell that an error's traceback points at."""
    marked = [line for line in cell.traceback.splitlines() if line.lstrip().startswith("---->")]
    return f"\n{marked[0].strip()}" if marked else ""


def _first_words(result: QuestionResult) -> str:
    first = (result.message.splitlines() or [""])[0].removeprefix("AssertionError: ").strip()
    for lead in (f"{result.question.name}: ", f"{result.question.name} "):
        first = first.removeprefix(lead)
    return first
