"""Write what was graded: a table, everything as JSON, and a page of feedback for each student."""

from __future__ import annotations

import csv
import io
import json
import re

from utils.grading.batch import Row
from utils.grading.collect import safe_id

COLUMNS_BEFORE = ("student_id", "status", "score", "max_score", "raw_score", "late_seconds", "penalty")
# control characters move the cursor of the terminal that shows a file; marks of direction make text look like another
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLUMNS_AFTER = ("flags", "submission", "sha256", "lab_version")


def grades_csv(rows: list[Row], names: list[str], points: list[float], *, points_row: bool = False) -> str:
    """Return ``grades.csv``; the same grades give the same bytes.

    Arguments:
        rows: the students.
        names: the questions, in order.
        points: what each of them is worth.
        points_row: put the points possible in a first row, under the id ``_points``.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*COLUMNS_BEFORE, *names, *COLUMNS_AFTER])
    total = f"{sum(points):g}"
    if points_row:
        table.writerow(
            ["_points", "", total, total, total, 0, 0, *(f"{p:g}" for p in points), "", "", "", ""]
        )
    for row in rows:
        scores = [f"{question.score:g}" for question in row.grade.questions]
        table.writerow(
            [
                _cell(text)
                for text in (
                    row.student,
                    row.grade.status,
                    f"{row.score:g}",
                    total,
                    f"{row.grade.score:g}",
                    str(row.late_seconds),
                    f"{row.penalty:g}",
                    *scores,
                    " ".join(row.grade.flags),
                    row.source,
                    row.sha256,
                    row.lab_version,
                )
            ]
        )
    return out.getvalue()


def _cell(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it instead of running it."""
    text = printable(text.replace("\r", " ").replace("\n", " "))
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def feedback_text(row: Row, lab: str) -> str:
    """Return a student's feedback as plain text."""
    possible = sum(question.points for question in row.grade.questions)
    lines = [f"{lab}: {row.student}", f"Score: {row.score:g} of {possible:g}"]
    if row.penalty:
        lines.append(f"Before the deduction of {row.penalty:.0%} for handing in late: {row.grade.score:g}")
    if row.grade.status not in ("ok", "blank"):
        lines.append(f"Status: {row.grade.status}")
    lines += [*row.grade.notes, *row.comments]
    for question in row.grade.questions:
        lines += ["", f"{question.name}: {question.score:g} of {question.points:g}  ({question.state})"]
        lines += [f"  {line}" for line in question.message.splitlines()]
        if question.hint:
            lines.append(f"  Hint: {question.hint}")
        lines += [
            f"  {'passed' if check.passed else 'failed'}  {check.name}"
            + (f": {check.message}" if check.message and not check.hidden and not check.passed else "")
            for check in question.checks
        ]
    return printable("\n".join(lines)) + "\n"


def printable(text: str) -> str:
    """Return ``text`` with a mark in the place of each character that would steer a terminal.

    >>> printable("a\\x1b[2Jb\\n")
    'a\ufffd[2Jb\\n'
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def gradescope_json(row: Row) -> str:
    """Return a student's ``results.json`` for Gradescope."""
    tests = [
        {
            "name": question.name,
            "score": question.score,
            "max_score": question.points,
            "output": question.message,
            "visibility": "after_published",
        }
        for question in row.grade.questions
    ]
    return (
        json.dumps(
            {"score": row.score, "tests": tests, "output": " ".join(row.grade.notes)},
            indent=1,
            sort_keys=True,
        )
        + "\n"
    )


def canvas_csv(rows: list[Row], lab: str, possible: float) -> str:
    """Return a gradebook that Canvas imports; ids go into the column of login ids."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["Student", "ID", "SIS Login ID", "Section", lab])
    table.writerow(["Points Possible", "", "", "", f"{possible:g}"])
    for row in rows:
        table.writerow([_cell(row.student), "", _cell(row.student), "", f"{row.score:g}"])
    return out.getvalue()


def file_name(student: str, suffix: str) -> str:
    """Return the name of a student's file."""
    return f"{safe_id(student)}{suffix}"
