"""A tiny course, built by script: two questions about adding and doubling numbers, no torch."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode, v4

from utils.grading.notebook import dumps

CHECKS = '''
"""Checks of the tiny lab."""

def q1(add):
    for left, right in ((1, 2), (-3, 3), (10, 5)):
        total = add(left, right)
        if total != left + right:
            raise AssertionError(f"q1: add({left}, {right}) gave {total}, expected {left + right}")
    print("q1: 3/3 checks passed")

def q2(double, add):
    for number in (0, 4):
        if double(number) != 2 * number:
            raise AssertionError(f"q2: double({number}) gave {double(number)}, expected {2 * number}")
    print("q2: 2/2 checks passed")
'''

Q1 = """# === q1: answer (keep this line) ===
def add(left, right):
    \"\"\"Return left + right.\"\"\"
    ### BEGIN SOLUTION
    the_sum_of_both = left + right
    return the_sum_of_both
    ### END SOLUTION"""

Q2 = """# === q2: answer (keep this line) ===
def double(number):
    ### BEGIN SOLUTION
    twice_the_number = add(number, number)
    return twice_the_number
    ### END SOLUTION"""


def answer(identifier: str, source: str, **course) -> NotebookNode:
    """Return an answer cell as an author writes it."""
    meta = {
        "nbgrader": {
            "schema_version": 3,
            "grade_id": identifier,
            "grade": False,
            "solution": True,
            "locked": False,
            "task": False,
        },
        "tags": ["answer"],
    }
    return v4.new_code_cell(source, metadata=meta | ({"course": course} if course else {}))


def check(identifier: str, source: str, points: float = 1, printed: str = "", **course) -> NotebookNode:
    """Return a check cell as an author writes it, with its stored output."""
    meta = {
        "nbgrader": {
            "schema_version": 3,
            "grade_id": identifier,
            "grade": True,
            "solution": False,
            "locked": True,
            "task": False,
            "points": points,
        },
        "tags": ["check"],
    }
    outputs = [v4.new_output("stream", name="stdout", text=printed)] if printed else []
    return v4.new_code_cell(
        source,
        metadata=meta | ({"course": course} if course else {}),
        outputs=outputs,
        execution_count=1 if printed else None,
    )


def solution() -> NotebookNode:
    """Return the tiny lab's solution."""
    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell("# Tiny lab\nWrite two functions."),
            v4.new_code_cell("from utils.checks import tiny"),
            v4.new_markdown_cell("**q1** Add two numbers."),
            answer("q1-answer", Q1),
            check("q1-check", "tiny.q1(add)", 3, "q1: 3/3 checks passed\n", hint="add means plus"),
            v4.new_markdown_cell("**q2** Double a number with your `add`."),
            answer("q2-answer", Q2),
            check(
                "q2-check",
                "tiny.q2(double, add)\n### BEGIN HIDDEN TESTS\nassert double(7) == 14\n### END HIDDEN TESTS",
                2,
                "q2: 2/2 checks passed\n",
                answers=["q1-answer", "q2-answer"],
            ),
        ]
    )


MUTANTS = {
    "q1_minus.py": '"""expected 3"""\n\ndef add(left, right):\n    return left - right\n',
    "q2_forgets_zero.py": '"""double(0) gave 1"""\ndef double(number):\n    return 2 * number or 1\n',
}


def write_course(
    root: Path,
    notebook: NotebookNode | None = None,
    name: str = "01_tiny",
    checks: str = CHECKS,
    mutants: dict[str, str] = MUTANTS,
) -> Path:
    """Write a course with one lab under ``root``; return the path of its solution."""
    for folder in ("utils/checks", "solutions", f"solutions/mutants/{name}", "labs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "utils" / "__init__.py").write_text("")
    (root / "utils" / "checks" / "__init__.py").write_text("")
    (root / "utils" / "checks" / "tiny.py").write_text(checks)
    for file, text in mutants.items():
        (root / "solutions" / "mutants" / name / file).write_text(text)
    path = root / "solutions" / f"{name}.ipynb"
    path.write_text(dumps(notebook or solution()), encoding="utf-8")
    return path
