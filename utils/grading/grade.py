"""Grade one submission: graft, run under nbval, verify behind a process wall, and count points."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from utils.grading.graft import Report, graft
from utils.grading.nbval_stage import (
    CELL_TIMEOUT_SECONDS,
    TOTAL_TIMEOUT_SECONDS,
    CellResult,
    NbvalRun,
    judged_part,
    run_nbval,
)
from utils.grading.notebook import digest, dumps, is_answer
from utils.grading.questions import Question, questions
from utils.grading.sandbox import Sandbox
from utils.grading.suspicion import suspicious_words
from utils.grading.unboxed import fresh_course
from utils.grading.warm import Warm

RERUNS = 3
NOT_RUN = "not run: "


@dataclass(frozen=True)
class SubCheck:
    """One thing that was verified about a question; ``hidden`` ones are named to students but not explained."""

    name: str
    passed: bool
    message: str = ""
    hidden: bool = False


@dataclass(frozen=True)
class Assignment:
    """What submissions are graded against.

    ``verify`` may be ``None``: then nbval's verdict is all there is.  ``warm`` may be ``None``: then every run loads
    everything anew.  ``support`` are the course's ``utils`` where there is no box to keep them as they are: each
    submission then gets a copy (:mod:`utils.grading.unboxed`).
    """

    lab: NotebookNode
    root: Path
    sandbox: Sandbox
    cell_timeout: float = CELL_TIMEOUT_SECONDS
    total_timeout: float = TOTAL_TIMEOUT_SECONDS
    extra_cells: str = "keep"
    verify: Callable[[NotebookNode, tuple[str, ...]], dict[str, list[SubCheck]]] | None = None
    warm: Warm | None = None
    support: dict[str, bytes] | None = None

    @property
    def version(self) -> str:
        """The lab's version."""
        return self.lab.metadata.get("course", {}).get("lab_version", "")


@dataclass(frozen=True)
class QuestionGrade:
    """One question of one student: what it got, why, and what was handed in."""

    name: str
    points: float
    score: float
    state: str
    message: str = ""
    hint: str = ""
    code: str = ""
    stdout: str = ""
    checks: tuple[SubCheck, ...] = ()


@dataclass(frozen=True)
class Grade:
    """One submission, before lateness and overrides.  ``status`` is described in ``docs/grading.md``."""

    status: str
    questions: tuple[QuestionGrade, ...]
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The points earned."""
        return round(sum(question.score for question in self.questions), 4)


def no_grade(
    lab: NotebookNode, status: str, notes: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> Grade:
    """Return the grade of a submission of which nothing could be run."""
    return Grade(
        status, tuple(QuestionGrade(q.name, q.points, 0.0, status) for q in questions(lab)), flags, notes
    )


def grade_submission(assignment: Assignment, data: bytes) -> Grade:
    """Return the grade of the submitted file ``data``; it never raises because of what is in the file."""
    grafted, report = graft(assignment.lab, data, extra_cells=assignment.extra_cells)
    if report.status not in ("ok", "blank"):
        return no_grade(assignment.lab, report.status, report.notes, report.flags)
    with (
        fresh_course(assignment.support)
        if assignment.support
        else contextlib.nullcontext(assignment.root) as root
    ):
        ran, grafted = _run_with_second_chances(assignment, judged_part(grafted), root)
    asked = questions(assignment.lab)
    passed = tuple(question.name for question in asked if ran.passed(question.check))
    verified = assignment.verify(grafted, passed) if assignment.verify and passed else {}
    graded = tuple(
        _question(question, report, ran, tuple(verified.get(question.name, ()))) for question in asked
    )
    words = sorted(
        {
            word
            for answer in report.answers.values()
            if answer.state == "answered"
            for word in suspicious_words(answer.source)
        }
    )
    flags = set(report.flags) | ({"suspicious_api"} if words else set())
    flags |= {"leftover_processes"} if ran.left_behind else set()
    flags |= {"output_cut"} if any(cell.cut for cell in ran.cells.values()) else set()
    flags |= {"mismatch"} if any(q.state == "mismatch" for q in graded) else set()
    return Grade(_status(report, ran), graded, tuple(sorted(flags)), report.notes, tuple(words))


def blank_cell(lab: NotebookNode, grafted: NotebookNode, name: str) -> NotebookNode:
    """Return ``grafted`` with the cell ``name`` as it is in the lab: the stub of an answer, nothing of an addition."""
    stubs = {cell.id: cell.source for cell in lab.cells}
    changed = copy.deepcopy(grafted)
    changed.cells = [cell for cell in changed.cells if cell.id in stubs or cell.id != name]
    for cell in changed.cells:
        if cell.id == name:
            cell.source = stubs[name]
    return changed


def _run_with_second_chances(
    assignment: Assignment, grafted: NotebookNode, root: Path
) -> tuple[NbvalRun, NotebookNode]:
    """Run the lab; when one answer was stopped, run again without it for the sake of the other questions.

    ``root`` is the folder of the course, or of a copy.  Returns what became of each cell, and the notebook that was run last.
    """

    def run(notebook):
        return run_nbval(
            notebook,
            root,
            sandbox=assignment.sandbox,
            cell_timeout=assignment.cell_timeout,
            total_timeout=assignment.total_timeout,
            warm=assignment.warm,
        )

    ran = run(grafted)
    final: NbvalRun = ran
    troubles: dict[str, str] = {}
    for _ in range(RERUNS):
        trouble = _first_trouble(grafted, final, set(troubles.values()) | set(troubles))
        name = _answer_behind(assignment.lab, grafted, trouble) if trouble else None
        if name is None or name in troubles:
            break
        troubles[name] = trouble
        grafted = blank_cell(assignment.lab, grafted, name)
        own = {q.check for q in questions(assignment.lab) if f"{q.name}-answer" == name}
        others = {q.check for q in questions(assignment.lab)} - own
        again = final if all(final.passed(check) for check in others) else run(grafted)
        kept = {
            cell: result
            for cell, result in final.cells.items()
            if not result.message.startswith(NOT_RUN) and not (cell in own and result.outcome == "passed")
        }
        lost = {cell: kept.get(cell, _lost(name, final.status)) for cell in {trouble, name, *own}}
        final = NbvalRun(
            again.cells | lost,
            _worst(final, again),
            final.left_behind + (again.left_behind if again is not final else 0),
            final.seconds + (again.seconds if again is not final else 0),
            again.output,
        )
    return final, grafted


def _lost(name: str, status: str) -> CellResult:
    why = "used up the time for the whole lab" if status == "timeout" else "was stopped"
    return CellResult("stopped", f"{NOT_RUN}the cell {name} {why}")


def _worst(*runs: NbvalRun) -> str:
    return next(
        (status for status in ("timeout", "crashed") if any(run.status == status for run in runs)), "ok"
    )


def _first_trouble(notebook: NotebookNode, ran: NbvalRun, known: set[str]) -> str | None:
    """Return the first cell that was stopped, or that had no result because everything ended during it."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id not in known:
            result = ran.cells.get(cell.id)
            if result is None or (result.outcome == "stopped" and not result.message.startswith(NOT_RUN)):
                return cell.id
    return None


def _answer_behind(lab: NotebookNode, grafted: NotebookNode, trouble: str) -> str | None:
    """Return the cell to blank: the troubled cell itself if it is the student's, or the answer that its check looks at."""
    question = next((q for q in questions(lab) if q.check == trouble), None)
    if question is not None:
        return (
            f"{question.name}-answer"
            if f"{question.name}-answer" in question.answers
            else question.answers[0]
        )
    own = {cell.id for cell in lab.cells if is_answer(cell)} | (
        {c.id for c in grafted.cells} - {c.id for c in lab.cells}
    )
    return trouble if trouble in own else None


def _question(
    question: Question, report: Report, ran: NbvalRun, checks: tuple[SubCheck, ...]
) -> QuestionGrade:
    answers = [report.answers[name] for name in question.answers if name in report.answers]
    own = report.answers.get(f"{question.name}-answer") or (answers[0] if answers else None)
    cell = ran.cells.get(
        question.check, CellResult("stopped", "not reached: an earlier cell used up the time")
    )
    code = own.source if own is not None else ""
    notes = " ".join(own.notes) if own is not None else ""
    fields = {
        "name": question.name,
        "points": question.points,
        "code": code,
        "stdout": cell.stdout[:4000],
        "checks": checks,
    }
    if own is not None and own.state != "answered" and cell.outcome != "passed":
        return QuestionGrade(
            **fields, score=0.0, state=own.state, message="There is no answer to this question."
        )
    if cell.outcome != "passed":
        broken = next(
            (
                (name, ran.cells[name])
                for name in question.answers
                if name in ran.cells and ran.cells[name].outcome != "passed"
            ),
            None,
        )
        message = f"The cell of {broken[0]} does not run: {broken[1].message}" if broken else cell.message
        return QuestionGrade(
            **fields, score=0.0, state=cell.outcome, message=message, hint=notes or question.hint
        )
    if not checks:
        return QuestionGrade(**fields, score=float(question.points), state="passed")
    earned = sum(check.passed for check in checks) / len(checks)
    failed = next((check for check in checks if not check.passed), None)
    if failed is None:
        return QuestionGrade(**fields, score=float(question.points), state="passed")
    message = f"{failed.name}: a hidden check failed" if failed.hidden else f"{failed.name}: {failed.message}"
    return QuestionGrade(
        **fields,
        score=round(question.points * earned, 4),
        state="mismatch",
        message=message,
        hint=question.hint,
    )


def _status(report: Report, ran: NbvalRun) -> str:
    stopped = [
        cell.message
        for cell in ran.cells.values()
        if cell.outcome == "stopped" and not cell.message.startswith(NOT_RUN)
    ]
    if ran.status == "timeout" or any("longer than its limit" in message for message in stopped):
        return "timeout"
    if ran.status == "crashed" or any("ended" in message or "exit()" in message for message in stopped):
        return "crashed"
    if any("printed more than" in message for message in stopped):
        return "too_large"
    return report.status


def cache_key(assignment: Assignment, data: bytes, extra: str) -> str:
    """Return what a grade depends on, as a hash: answers, lab, limits, sandbox and ``extra`` (checks, tools)."""
    grafted, report = graft(assignment.lab, data, extra_cells=assignment.extra_cells)
    parts = (
        dumps(grafted),
        report.status,
        report.flags,
        assignment.version,
        assignment.cell_timeout,
        assignment.total_timeout,
        assignment.sandbox.level,
        assignment.sandbox.memory_bytes,
        extra,
    )
    return digest(repr(parts), 24)
