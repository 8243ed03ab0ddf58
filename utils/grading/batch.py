"""Grade a class: every submission on its own, several at a time, with what a previous run already knows."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from utils.grading.collect import Submitted
from utils.grading.grade import (
    Assignment,
    Grade,
    QuestionGrade,
    SubCheck,
    cache_key,
    grade_submission,
    no_grade,
)
from utils.grading.graft import graft
from utils.grading.late import LatePolicy
from utils.grading.suspicion import fingerprint

TOOLS = ("nbval", "nbclient", "nbformat", "ipykernel", "pytest")
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Row:
    """One student's line in the results."""

    student: str
    grade: Grade
    late_seconds: int
    penalty: float
    score: float
    source: str
    sha256: str
    lab_version: str
    superseded: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    identical_to: tuple[str, ...] = ()
    key: str = ""
    seconds: float = 0.0


def grade_all(
    assignment: Assignment,
    submitted: list[Submitted],
    *,
    jobs: int,
    known: dict[str, tuple[str, Grade]],
    extra_key: str,
    progress: bool = True,
) -> tuple[dict[str, tuple[str, Grade, float]], bool]:
    """Grade each submission; return ``student -> (key, grade, seconds)`` and whether it was interrupted.

    Arguments:
        assignment: the lab and how it is run.
        submitted: the files.
        jobs: how many at a time.
        known: grades of an earlier run by student, each with its key; those whose key is still right are kept.
        extra_key: what else a grade depends on.
        progress: show how far it is, on stderr.
    """
    done: dict[str, tuple[str, Grade, float]] = {}
    waiting = []
    for one in submitted:
        key = cache_key(assignment, one.data, extra_key)
        if one.student in known and known[one.student][0] == key:
            done[one.student] = (key, known[one.student][1], 0.0)
        else:
            waiting.append((one, key))
    pool = ThreadPoolExecutor(max_workers=jobs)
    start = time.monotonic()
    futures = {pool.submit(_timed, assignment, one.data): (one.student, key) for one, key in waiting}
    try:
        for number, future in enumerate(as_completed(futures), start=1):
            student, key = futures[future]
            done[student] = (key, *future.result())
            if progress:
                left = (time.monotonic() - start) / number * (len(waiting) - number)
                print(
                    f"\r{number}/{len(waiting)} graded, about {left:.0f} s left  ",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
    except KeyboardInterrupt:
        print("\nfinishing what is being graded; interrupt again to stop at once", file=sys.stderr)
        pool.shutdown(wait=True, cancel_futures=True)
        for future, (student, key) in futures.items():
            if not future.cancelled() and student not in done:
                done[student] = (key, *future.result())
        return done, True
    finally:
        if progress and waiting:
            print(file=sys.stderr)
    pool.shutdown()
    return done, False


def _timed(assignment: Assignment, data: bytes) -> tuple[Grade, float]:
    start = time.monotonic()
    try:
        grade = grade_submission(assignment, data)
    except Exception as error:  # noqa: BLE001  one submission never stops the batch
        grade = no_grade(
            assignment.lab, "crashed", (f"The grader itself failed: {type(error).__name__}: {error}",)
        )
    return grade, time.monotonic() - start


def make_rows(
    assignment: Assignment,
    submitted: list[Submitted],
    graded: dict[str, tuple[str, Grade, float]],
    *,
    policy: LatePolicy,
    roster: Iterable[str] | None = None,
    overrides: Iterable[dict[str, str]] = (),
) -> list[Row]:
    """Return one row per student, sorted, with lateness, the roster and overrides taken into account."""
    alike = identical_answers(assignment, submitted)
    by_student = {one.student: one for one in submitted if one.student in graded}
    names = sorted(set(by_student) | set(roster or ()))
    changes = list(overrides)
    rows = []
    for name in names:
        if name not in by_student:
            grade, key, seconds, one = (
                no_grade(assignment.lab, "missing", ("Nothing was handed in.",)),
                "",
                0.0,
                None,
            )
        else:
            (key, grade, seconds), one = graded[name], by_student[name]
        late = policy.late_seconds(one.modified) if one else 0
        flags = set(grade.flags) | set(one.flags if one else ()) | ({"late"} if late else set())
        if one and policy.due is not None:  # also when it is early enough: a file's date can be set
            flags |= {"time_untrusted"}
        flags |= {"identical_answers"} if alike.get(name) else set()
        flags |= {"not_on_roster"} if roster is not None and one and name not in set(roster) else set()
        grade, comments = _overridden(replace(grade, flags=tuple(sorted(flags))), name, changes)
        penalty = policy.penalty(late)
        rows.append(
            Row(
                name,
                grade,
                late,
                penalty,
                round(grade.score * (1 - penalty), 4),
                one.source if one else "",
                hashlib.sha256(one.data).hexdigest() if one else "",
                assignment.version,
                one.superseded if one else (),
                comments,
                tuple(f"{answer} as in {', '.join(others)}" for answer, others in alike.get(name, ())),
                key,
                round(seconds, 2),
            )
        )
    return rows


def identical_answers(
    assignment: Assignment, submitted: list[Submitted]
) -> dict[str, list[tuple[str, list[str]]]]:
    """Return for each student the answers whose code is that of others: ``[(answer, [other students])]``."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in submitted:
        report = graft(assignment.lab, one.data)[1]
        for name, answer in report.answers.items():
            if answer.state == "answered" and len(answer.source) > 200:  # short answers are alike by nature
                groups.setdefault((name, fingerprint(answer.source)), []).append(one.student)
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for (name, _), students in sorted(groups.items()):
        for student in students:
            if len(students) > 1:
                found.setdefault(student, []).append(
                    (name, [other for other in students if other != student])
                )
    return found


def _overridden(grade: Grade, student: str, overrides: list[dict[str, str]]) -> tuple[Grade, tuple[str, ...]]:
    comments, changed = [], {question.name: question for question in grade.questions}
    for line in overrides:
        if line["student_id"] == student and line["question"] in changed:
            question = changed[line["question"]]
            score = min(max(float(line["score"]), 0.0), question.points)
            changed[question.name] = replace(question, score=score, state="set by hand")
            comments.append(
                f"{question.name}: {score:g} of {question.points:g} set by hand. {line['comment']}".strip()
            )
    return replace(grade, questions=tuple(changed[question.name] for question in grade.questions)), tuple(
        comments
    )


def to_json(
    rows: list[Row], assignment: Assignment, graded: dict[str, tuple[str, Grade, float]], *, interrupted: bool
) -> str:
    """Return the results as JSON: everything that is known, also what a later run needs."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "lab": assignment.lab.metadata.get("course", {}).get("lab", ""),
        "lab_version": assignment.version,
        "sandbox": assignment.sandbox.level,
        "verified": assignment.verify is not None,
        "seed": getattr(assignment.verify, "seed", None),
        "interrupted": interrupted,
        "tools": {name: version(name) for name in TOOLS},
        "students": [
            asdict(row) | {"graded": asdict(graded[row.student][1]) if row.student in graded else None}
            for row in rows
        ],
    }
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def known_grades(path: Path) -> dict[str, tuple[str, Grade]]:
    """Return the grades in an earlier ``results.json``, by student with their keys; none if it cannot be used."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            return {}
        return dict(_known(content["students"]))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _known(students: list[dict]) -> Iterator[tuple[str, tuple[str, Grade]]]:
    for row in students:
        if row["graded"] is not None:
            fields = row["graded"]
            asked = tuple(
                QuestionGrade(**{**q, "checks": tuple(SubCheck(**check) for check in q["checks"])})
                for q in fields["questions"]
            )
            yield (
                row["student"],
                (
                    row["key"],
                    Grade(
                        fields["status"],
                        asked,
                        *(tuple(fields[name]) for name in ("flags", "notes", "suspicious")),
                    ),
                ),
            )
