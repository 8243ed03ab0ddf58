"""``course grade`` from end to end: read everything, grade, look whether anything changed meanwhile, write the results."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import stat
import sys
from pathlib import Path

from utils.grading import batch, outputs
from utils.grading.collect import Submitted, collect, read_roster, safe_id
from utils.grading.errors import GradingError
from utils.grading.feedback import feedback_html
from utils.grading.grade import Assignment, grade_submission
from utils.grading.late import LatePolicy, read_policy
from utils.grading.notebook import digest, dumps, grade_id, is_check, read, write
from utils.grading.questions import questions
from utils.grading.sandbox import choose
from utils.grading.tables import read_rows
from utils.grading.unboxed import installed, modules_of, snapshot
from utils.grading.warm import warm_for

TOOL_VERSION = "1"
ALL_GRADED, SOME_BROKEN, USAGE, SELF_CHECK_FAILED, INPUTS_CHANGED, INTERRUPTED = 0, 1, 2, 3, 4, 130
BROKEN = ("unreadable", "crashed", "timeout", "too_large", "wrong_lab")


def grade_class(args: argparse.Namespace) -> int:
    """Grade the submissions of ``course grade``'s arguments and return its exit code.

    Raises ``GradingError`` for a wrong call; nothing has been written then.
    """
    if args.jobs < 1:
        raise GradingError(f"--jobs {args.jobs}: at least one submission at a time.")
    if not (0 < args.cell_timeout < math.inf and 0 < args.total_timeout < math.inf):
        raise GradingError("--cell-timeout and --total-timeout are numbers of seconds, greater than 0.")
    if unknown := set(args.also) - {"gradescope", "canvas"}:
        raise GradingError(f"--also {','.join(sorted(unknown))}: there are gradescope and canvas.")
    root, out = Path(args.root).resolve(), Path(args.output)
    lab = read(args.lab)
    if not questions(lab) or "lab_version" not in lab.metadata.get("course", {}):
        raise GradingError(
            f"{args.lab}: this is not a released lab. Give the file that 'course release' wrote into labs/."
        )
    name = lab.metadata.course.lab
    policy, roster = read_policy(args.due, args.late), read_roster(args.roster) if args.roster else None
    overrides = read_overrides(args.overrides, [q.name for q in questions(lab)]) if args.overrides else []
    submitted = [
        one for one in collect(args.submissions, name) if not args.student or one.student in args.student
    ]
    if not submitted:
        raise GradingError(f"no submission of {', '.join(args.student)}. Ids are those in grades.csv.")
    hide = [Path(args.submissions).resolve(), out.resolve()]
    sandbox, warning = choose(
        args.sandbox,
        root,
        hide=[path for path in hide if path.is_dir()],
        memory_bytes=read_size(args.memory),
        at_own_risk=args.i_know,
    )
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    boxed = sandbox.level == "userns"
    warm = warm_for(lab, root, nbval=boxed, verify=not args.nbval_only)
    if not boxed and not args.nbval_only:
        warm.begin(modules_of(root))
    verifier = None
    if not args.nbval_only:
        from utils.grading.verify import verifier_of

        verifier = verifier_of(lab, root, sandbox, args.seed, warm)
    assignment = Assignment(
        lab,
        root,
        sandbox,
        args.cell_timeout,
        args.total_timeout,
        args.extra_cells,
        verifier,
        warm if boxed else None,
        None if boxed else snapshot(root),
    )
    try:
        if args.self_check and (
            problems := self_check_problems(assignment, root / "solutions" / f"{name}.ipynb")
        ):
            print("\n".join(problems), file=sys.stderr)
            return SELF_CHECK_FAILED
        return _grade(args, assignment, submitted, policy, roster, overrides, out)
    finally:
        if verifier is not None:
            verifier.close()
        warm.close()


def _grade(
    args: argparse.Namespace,
    assignment: Assignment,
    submitted: list[Submitted],
    policy: LatePolicy,
    roster: list[str] | None,
    overrides: list[dict[str, str]],
    out: Path,
) -> int:
    name = assignment.lab.metadata.course.lab
    watched = [Path(args.lab), *_files(assignment.root / "utils"), *_files(assignment.root / "solutions")]
    before = fingerprint_files([*watched, *_files(Path(args.submissions))])
    loaded = installed(assignment.root) if assignment.support else ""
    extra_key = digest(repr((TOOL_VERSION, fingerprint_files(watched), args.seed, args.nbval_only)), 24)
    earlier = batch.known_grades(out / "results.json")
    again = {one.student for one in submitted} if args.regrade else set()
    known = {student: value for student, value in earlier.items() if student not in again}
    graded, interrupted = batch.grade_all(
        assignment, submitted, jobs=args.jobs, known=known, extra_key=extra_key, progress=sys.stderr.isatty()
    )
    if args.student:  # the others keep what an earlier run gave them
        everybody = collect(args.submissions, name)
        graded |= {
            one.student: (*earlier[one.student], 0.0)
            for one in everybody
            if one.student not in graded and one.student in earlier
        }
        submitted = [one for one in everybody if one.student in graded]
    rows = batch.make_rows(assignment, submitted, graded, policy=policy, roster=roster, overrides=overrides)
    write_results(
        out, rows, assignment, graded, interrupted=interrupted, points_row=args.points_row, also=args.also
    )
    summary(rows, out, assignment.sandbox.level)
    if interrupted:
        return INTERRUPTED
    changed = fingerprint_files([*watched, *_files(Path(args.submissions))]) != before
    if changed or (assignment.support and installed(assignment.root) != loaded):
        print(
            "course files or submissions changed while they were graded"
            if changed
            else "installed packages, or Python files in the course's folder, changed while submissions were graded",
            "Compare them with your own copy; do not trust these results.",
            sep=". ",
            file=sys.stderr,
        )
        return INPUTS_CHANGED
    return SOME_BROKEN if any(row.grade.status in BROKEN for row in rows) else ALL_GRADED


def write_results(
    out: Path,
    rows: list[batch.Row],
    assignment: Assignment,
    graded: dict,
    *,
    interrupted: bool,
    points_row: bool = False,
    also: list[str] | None = None,
) -> None:
    """Write ``grades.csv``, ``results.json`` and the feedback into the folder ``out``."""
    asked = questions(assignment.lab)
    names, points = [q.name for q in asked], [q.points for q in asked]
    lab = assignment.lab.metadata.course.lab
    sources = {grade_id(cell): cell.source for cell in assignment.lab.cells if is_check(cell)}
    visible = {q.name: sources[q.check] for q in asked}
    write(out / "results.json", batch.to_json(rows, assignment, graded, interrupted=interrupted))
    for row in rows:
        write(out / "feedback" / outputs.file_name(row.student, ".txt"), outputs.feedback_text(row, lab))
        write(out / "feedback" / outputs.file_name(row.student, ".html"), feedback_html(row, lab, visible))
        if "gradescope" in (also or ()):
            write(out / "gradescope" / outputs.file_name(row.student, ".json"), outputs.gradescope_json(row))
    if "canvas" in (also or ()):
        write(out / "canvas.csv", outputs.canvas_csv(rows, lab, sum(points)))
    write(out / "grades.csv", outputs.grades_csv(rows, names, points, points_row=points_row))


def summary(rows: list[batch.Row], out: Path, level: str) -> None:
    """Print what an instructor wants to know at once."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.grade.status] = counts.get(row.grade.status, 0) + 1
    print(
        f"{len(rows)} students ({', '.join(f'{count} {status}' for status, count in sorted(counts.items()))}), "
        f"sandbox {level}: {out / 'grades.csv'}"
    )


def self_check_problems(assignment: Assignment, solution: Path) -> list[str]:
    """Return why the lab must not be graded: the solution is not full marks or the blank lab is not 0."""
    if not solution.exists():
        return [f"{solution}: --self-check needs the solution, and there is none."]
    full = grade_submission(assignment, solution.read_bytes())
    blank = grade_submission(assignment, dumps(assignment.lab).encode())
    return [
        f"the solution gets {q.score:g} of {q.points:g} in {q.name}: {q.message}"
        for q in full.questions
        if q.score != q.points
    ] + [f"the blank lab gets {q.score:g} points in {q.name}" for q in blank.questions if q.score]


def read_overrides(path: str, asked: list[str]) -> list[dict[str, str]]:
    """Return the lines of a CSV file with ``student_id,question,score,comment``.

    Arguments:
        path: the file.
        asked: the lab's questions.

    Raises ``GradingError`` if a column is missing, a score is not a number, or there is no such question.
    """
    columns = ["student_id", "question", "score", "comment"]
    header, *rows = read_rows(path, f"the columns {','.join(columns)}") or [[]]
    if not set(columns) <= set(header):
        raise GradingError(f"{path}: the first line must be {','.join(columns)}.")
    lines = []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        line = dict.fromkeys(columns, "") | dict(zip(header, row, strict=False))
        line["student_id"], line["question"] = safe_id(line["student_id"].strip()), line["question"].strip()
        if line["question"] not in asked:
            raise GradingError(
                f"{path}, line {number}: there is no question {line['question']!r}. There are: {', '.join(asked)}."
            )
        if not _is_number(line["score"]):
            raise GradingError(f"{path}, line {number}: the score {line['score']!r} is not a number.")
        lines.append(line)
    return lines


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_size(text: str) -> int:
    """Return the number of bytes in a size such as ``"4G"``.

    >>> read_size("512M")
    536870912
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in units else (text, "")
    try:
        size = int(float(number) * units.get(unit, 1))
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise GradingError(f"--memory {text}: not a size. Write it like 4G or 800M.")
    return size


def fingerprint_files(paths: list[Path]) -> str:
    """Return a hash of the names and contents of files; a file that is gone counts as changed.

    Links are not followed, and what is no file is not read: a pipe or a device would have no end.
    """
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        total.update(str(path).encode("utf-8", "surrogateescape"))
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                total.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    while piece := file.read(1 << 20):
                        total.update(piece)
        except OSError:
            total.update(b"unreadable")
    return total.hexdigest()


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [
        Path(parent, name)
        for parent, _, names in os.walk(place)
        for name in names
        if not parent.endswith("__pycache__") and ".ipynb_checkpoints" not in parent
    ]
