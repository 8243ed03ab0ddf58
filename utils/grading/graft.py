"""Put a student's answers into the pristine lab, so that everything else in the notebook is the course's own.

Only text crosses: no outputs, no metadata, no files.  The functions here are pure.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field

from nbformat import NotebookNode, v4

from utils.grading.notebook import anchored_id, is_answer, is_check, plain
from utils.grading.submission import Cell, Submission, parse

NBVAL_MARKERS = frozenset(
    {
        "PYTEST_VALIDATE_IGNORE_OUTPUT",
        "NBVAL_IGNORE_OUTPUT",
        "NBVAL_CHECK_OUTPUT",
        "NBVAL_RAISES_EXCEPTION",
        "NBVAL_SKIP",
    }
)
# blanks, not \s: a student's text with a million empty lines would be searched from each of them to its end
_LEFTOVER = re.compile(r"^[ \t]*raise NotImplementedError(\(\))?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """What was handed in for one answer cell; ``state`` is ``"answered"``, ``"blank"`` or ``"missing"``."""

    state: str
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """How a graft went.

    ``status`` is ``"ok"``, ``"blank"``, ``"wrong_lab"``, ``"unreadable"`` or ``"too_large"``; ``flags`` are single
    words for the instructor, ``notes`` sentences for the student, ``answers`` goes by ``grade_id``.
    """

    status: str
    answers: dict[str, Answer] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def graft(pristine: NotebookNode, data: bytes, *, extra_cells: str = "keep") -> tuple[NotebookNode, Report]:
    """Return the pristine lab with the answers of a submission, and a report.

    Answers are found by ``grade_id``, then by cell id, then by the anchor in their first line; never by position.
    Other code of the student's is kept behind the lab's cell that it follows, and copies of check cells are dropped.
    If the submission cannot be read or belongs to another lab, the pristine lab itself comes back.

    Arguments:
        pristine: the released lab.
        data: the bytes of the submitted file.
        extra_cells: ``"keep"`` the student's additional code cells or ``"drop"`` them.
    """
    submission = parse(data)
    if submission.problem:
        status, sentence = submission.problem
        return copy.deepcopy(pristine), Report(status, notes=(sentence,))
    sorted_out = _Sorted(pristine, submission)
    if problem := sorted_out.wrong_lab():
        return copy.deepcopy(pristine), Report("wrong_lab", notes=(problem,))
    answers = {
        cell.id: _answer(cell, sorted_out.parts[cell.id]) for cell in pristine.cells if is_answer(cell)
    }
    lab = copy.deepcopy(pristine)
    lab.cells = []
    for cell in copy.deepcopy(pristine.cells):
        lab.cells.append(cell)
        followers = sorted_out.extras.get(cell.id, []) if extra_cells == "keep" else []
        if is_answer(cell):
            first, *others = answers[cell.id][1] or [cell.source]
            cell.source = first
            followers = others + followers
        lab.cells += [
            _extra_cell(cell.id, number, source) for number, source in enumerate(followers, start=1)
        ]
    if extra_cells == "keep":
        lab.cells[:0] = [
            _extra_cell("start", number, source)
            for number, source in enumerate(sorted_out.extras.get("", []), start=1)
        ]
    return lab, _report(
        pristine, submission, sorted_out, {key: answer for key, (answer, _) in answers.items()}
    )


def neutralise(source: str) -> str:
    """Return ``source`` without lines that nbval would obey.

    >>> neutralise("# NBVAL_SKIP\\nx = 1")
    '# (NBVAL_SKIP)\\nx = 1'
    """
    lines = source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        word = line.strip().lstrip("#").strip()
        if line.strip().startswith("#") and word in NBVAL_MARKERS:
            lines[number] = line.replace(word, f"({word})")
    return "".join(lines)


class _Sorted:
    """The cells of a submission, each with what it is: part of an answer, a copy of a check, or an addition."""

    def __init__(self, pristine: NotebookNode, submission: Submission):
        self._pristine, self._submission = pristine, submission
        self._ids = {cell.id for cell in pristine.cells}
        self._same_text = {}
        for cell in pristine.cells:
            self._same_text.setdefault(_text_key(cell.cell_type, cell.source), cell.id)
        self.parts: dict[str, list[Cell]] = {cell.id: [] for cell in pristine.cells if is_answer(cell)}
        self.extras: dict[str, list[str]] = {}
        self.checks: dict[str, list[str]] = {cell.id: [] for cell in pristine.cells if is_check(cell)}
        previous = ""
        for cell in submission.cells:
            name = self._name(cell)
            if name in self.parts:
                self.parts[name].append(cell)
            elif name in self.checks:
                self.checks[name].append(cell.source)
            elif (
                cell.kind == "code"
                and cell.source.strip()
                and _text_key(cell.kind, cell.source) not in self._same_text
            ):
                self.extras.setdefault(name or previous, []).append(neutralise(cell.source))
            previous = name or previous

    def _name(self, cell: Cell) -> str:
        """Return the id of the pristine cell that this one is or was, or ``""``."""
        for name in (cell.grade_id, cell.id, anchored_id(cell.source)):
            if name in self.parts or name in self.checks:
                return name
        return cell.id if cell.id in self._ids else self._same_text.get(_text_key(cell.kind, cell.source), "")

    def wrong_lab(self) -> str:
        """Return a sentence if the submission is not of this lab, else ``""``."""
        wanted = self._pristine.metadata.get("course", {}).get("lab", "")
        if self._submission.lab and wanted and self._submission.lab != wanted:
            return f"This is the notebook of lab '{self._submission.lab[:60]}', asked for is '{wanted}'. Hand in that one."
        if not any(self.parts.values()) and not self._submission.lab:
            return f"No answer cell of lab '{wanted}' was found in this notebook. Put your answers into the lab as released."
        return ""


def _answer(stub: NotebookNode, parts: list[Cell]) -> tuple[Answer, list[str]]:
    """Return the answer made of ``parts`` and the sources of the cells to run for it."""
    sources = list(dict.fromkeys(neutralise(part.source) for part in parts))
    written = [source for source in sources if _has_code(source) and plain(source) != plain(stub.source)]
    if not parts:
        return Answer("missing", ""), []
    if not written:
        return Answer("blank", stub.source), []
    text = "\n\n".join(written)
    left = len(_LEFTOVER.findall(text))
    notes = (
        ("A 'raise NotImplementedError()' of the empty lab is still in your answer. Remove it.",)
        if left
        else ()
    )
    return Answer("answered", text, notes), written


def _has_code(source: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in source.splitlines())


def _text_key(kind: str, source: str) -> tuple[str, str]:
    return kind, plain(source)


def _extra_cell(previous: str, number: int, source: str) -> NotebookNode:
    return v4.new_code_cell(
        source, id=f"{previous[:50]}-{number}", metadata={"tags": ["extra", "nbval-ignore-output"]}
    )


def _report(
    pristine: NotebookNode, submission: Submission, sorted_out: _Sorted, answers: dict[str, Answer]
) -> Report:
    flags, notes = set(), []
    sources = {cell.id: cell.source for cell in pristine.cells}
    for name, parts in sorted_out.parts.items():
        if len(parts) > 1:
            flags.add("duplicate_cell")
            notes.append(
                f"{name}: {len(parts)} cells of the notebook carry this name; all are run, in their order."
            )
        if any(part.kind != "code" for part in parts):
            flags.add("not_code")
            notes.append(f"{name}: the answer is in a text cell; it was run as code.")
        if parts and not any(anchored_id(part.source) for part in parts):
            flags.add("marker_removed")
        if not parts:
            flags.add("missing_answer")
            notes.append(f"{name}: this cell is not in the notebook.")
    for name, copies in sorted_out.checks.items():
        if any(plain(text) != plain(sources[name]) for text in copies):
            flags.add("edited_check")
    if any(sorted_out.extras.values()):
        flags.add("extra_cells")
    version = pristine.metadata.get("course", {}).get("lab_version", "")
    if submission.lab_version and submission.lab_version != version:
        flags.add("old_version")
        notes.append(
            "The notebook was made from another version of the lab; your answers were put into the current one."
        )
    status = "ok" if any(answer.state == "answered" for answer in answers.values()) else "blank"
    return Report(status, answers, tuple(sorted(flags)), tuple(notes))
