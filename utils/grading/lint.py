"""The rules that a solution notebook must keep so that its lab can be released and graded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from utils.grading.kernel import CellRun
from utils.grading.markers import HIDDEN, SOLUTION, find_regions
from utils.grading.notebook import anchor, anchored_id, grade_id, is_answer, is_check
from utils.grading.questions import question_of

_NAMES = {True: re.compile(r"[a-z][a-z0-9]*-check"), False: re.compile(r"[a-z][a-z0-9]*-answer")}
_UNSTABLE_CODE = {
    r";\s*$": "a semicolon at the end does not hide output when the cell is compared; assign the value to '_'",
    r"^\s*[!%]": "shell commands and magics print what differs between machines; call Python functions",
    r"\bclear_output\b": "cleared output comes back when the cell is compared; print only the final line",
    r"\bNBVAL_\w+": "nbval reads this comment and it outranks the cell's tags; remove it",
}
_UNSTABLE_OUTPUT = {
    r"\d\.\d": "a decimal number",
    r"0x[0-9a-fA-F]{4,}": "a memory address",
    r"(?<!\w)/\w+/\w": "a path",
    r"\b\d{1,2}:\d\d\b": "a time",
    r"\bpid\b": "a process number",
    r"\bport\b": "a port number",
    r"\x1b|\r": "a control code",
}


def lint(notebook: NotebookNode, name: str) -> tuple[list[str], list[str]]:
    """Return ``(errors, warnings)`` about a solution notebook that was not run yet, each with file, cell and line.

    Arguments:
        notebook: the solution.
        name: how to call its file in the sentences.
    """
    errors, warnings = [], []
    for number, cell in enumerate(notebook.cells, start=1):
        where = place(name, number, cell)
        regions, remarks = find_regions(cell.source)
        for remark in remarks:
            (errors if remark.fatal else warnings).append(f"{where}, line {remark.line}: {remark.sentence}")
        rules = _answer_rules if is_answer(cell) else _check_rules if is_check(cell) else _given_rules
        errors += [f"{where}, line {line}: {sentence}" for line, sentence in rules(cell, regions)]
    errors += [f"{name}: {sentence}" for sentence in _notebook_rules(notebook)]
    return errors, warnings


def place(name: str, number: int, cell: NotebookNode) -> str:
    """Return how to call a cell in a sentence: file, position from 1, and ``grade_id`` where it has one."""
    return f"{name}, cell {number}" + (f" ({grade_id(cell)})" if grade_id(cell) else "")


def _answer_rules(cell, regions) -> Iterator[tuple[int, str]]:
    identifier = grade_id(cell)
    if not _NAMES[False].fullmatch(identifier):
        yield (
            1,
            f"an answer's grade_id is like 'q1-answer' (a small letter, then letters and digits), not '{identifier}'.",
        )
    elif anchored_id(cell.source) != identifier:
        yield (
            1,
            f"an answer cell starts with the line '{anchor(identifier)}'. Add it (after the magic, if there is one).",
        )
    if cell.cell_type != "code":
        yield 1, f"an answer is a code cell, this is a {cell.cell_type} cell. Change its type."
    if cell.metadata.nbgrader.get("grade"):
        yield (
            1,
            "a cell is either an answer or a check, this one has both 'solution' and 'grade'. Split it in two.",
        )
    if not any(region.kind == SOLUTION for region in regions):
        yield (
            1,
            (
                "this answer has no '### BEGIN SOLUTION' … '### END SOLUTION' region, so the lab would show all of "
                "it. Mark what the student is to write."
            ),
        )
    for region in regions:
        if region.kind == HIDDEN:
            yield region.first, "hidden tests belong in a check cell. Move the region."
    stubs = cell.metadata.get("course", {}).get("stub", "")
    if isinstance(stubs, list) and len(stubs) != len(regions):
        yield (
            1,
            f"'stub' names {len(stubs)} stubs for {len(regions)} regions. Give one for each, or a single text for all.",
        )


def _check_rules(cell, regions) -> Iterator[tuple[int, str]]:
    meta, identifier = cell.metadata.nbgrader, grade_id(cell)
    if not _NAMES[True].fullmatch(identifier):
        yield (
            1,
            f"a check's grade_id is like 'q1-check' (a small letter, then letters and digits), not '{identifier}'.",
        )
    points = meta.get("points")
    if isinstance(points, bool) or not isinstance(points, (int, float)) or not points > 0:
        yield (
            1,
            f"'points' of a check is a number above 0, here it is {points!r}. Set it in the nbgrader metadata.",
        )
    if cell.cell_type != "code":
        yield 1, f"a check is a code cell, this is a {cell.cell_type} cell. Change its type."
    if not meta.get("locked"):
        yield 1, "a check cell has 'locked': true in its nbgrader metadata. Set it."
    for region in regions:
        if region.kind == SOLUTION:
            yield (
                region.first,
                "a solution region belongs in an answer cell, this is a check. Move the region.",
            )
    for number, line in enumerate(cell.source.splitlines(), start=1):
        for pattern, reason in _UNSTABLE_CODE.items():
            if re.search(pattern, line):
                yield number, f"'{line.strip()}': {reason}."


def _given_rules(cell, regions) -> Iterator[tuple[int, str]]:
    for region in regions:
        yield (
            region.first,
            (
                f"a region '{region.kind}' in a cell that is neither answer nor check. Give the cell its "
                "nbgrader metadata (grade_id, and 'solution' or 'grade': true) or remove the region."
            ),
        )
    marked = sorted({"answer", "check"} & set(cell.metadata.get("tags", [])))
    if marked:
        yield (
            1,
            f"this cell is tagged '{marked[0]}' but has no nbgrader metadata with a grade_id. Add it or drop the tag.",
        )
    if anchored_id(cell.source):
        yield 1, "this cell starts like an answer but has no nbgrader metadata with 'solution': true. Add it."


def _notebook_rules(notebook) -> Iterator[str]:
    seen: dict[str, int] = {}
    used: set[str] = set()
    checks = [cell for cell in notebook.cells if is_check(cell)]
    if not checks:
        yield "no check cell. A lab has at least one cell with 'grade': true in its nbgrader metadata."
    for number, cell in enumerate(notebook.cells, start=1):
        identifier = grade_id(cell)
        if identifier in seen:
            yield f"cells {seen[identifier]} and {number} have the same grade_id '{identifier}'. Rename one."
        if is_check(cell):
            question = question_of(cell)
            if f"{question.name}-check" != identifier:
                yield f"check '{identifier}' calls its question '{question.name}'. Call the cell '{question.name}-check'."
            for answer in question.answers:
                if answer not in seen:
                    yield f"check '{identifier}' (cell {number}) looks at '{answer}', but no cell above has that grade_id."
            used |= set(question.answers)
        if identifier:
            seen.setdefault(identifier, number)
    for cell in notebook.cells:
        if is_answer(cell) and grade_id(cell) not in used:
            yield f"answer '{grade_id(cell)}' is looked at by no check. Name it in the 'answers' of a check."


def lint_output(run: CellRun, question: str) -> Iterator[str]:
    """Yield what is wrong with the output of a check cell whose answers are right.

    It must be one line on stdout that starts with the question's name and is the same on every machine.
    """
    if run.stderr:
        yield f"wrote to stderr: '{run.stderr.strip()[:200]}'. Silence the warning at its cause."
    others = sorted(set(run.kinds) - {"stdout", "stderr"})
    if others:
        yield f"has output other than printed text ({', '.join(others)}). Print one line and return nothing."
    lines = run.stdout.splitlines()
    if len(lines) != 1 or not lines[0].startswith(f"{question}: "):
        yield (
            f"prints {run.stdout[:200]!r}. A check prints one line that starts with '{question}: ', "
            f"for example '{question}: 3/3 checks passed'."
        )
    for pattern, what in _UNSTABLE_OUTPUT.items():
        if re.search(pattern, run.stdout):
            yield f"prints {what} ({run.stdout.strip()[:200]!r}), which differs between machines. Print fixed words only."
