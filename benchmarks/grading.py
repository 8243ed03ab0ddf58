"""How long grading a class takes, beside ``nbgrader autograde`` on the same notebooks where nbgrader is installed.

    python -m benchmarks.grading [--quick] [--lab 01_all_reduce] [--submissions 6] [--jobs 2] [--nbgrader PYTHON]

Of ten submissions three are right, one is blank, four have a wrong answer (one of the lab's known ones), and two have a
wrong answer and replace its check by a line that prints what the check prints.  A figure counts only if the grades are
right too, so the grades are looked at.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import Spent, Stopwatch, adopt_orphans
from benchmarks.measure import Table, digits
from utils.grading.notebook import dumps, grade_id, read, text_of
from utils.grading.selfcheck import mutants_of

ROOT = Path(__file__).resolve().parents[1]
NOTE = """\
Right, wrong, blank and attacking submissions, graded once by each; `course grade` runs both of its stages. The grades were
looked at: {grades}."""
KINDS = ("right", "wrong", "attacker", "wrong", "right", "blank", "wrong", "attacker", "right", "wrong")


def write_submissions(folder: Path, lab: str, count: int) -> dict[str, tuple[str, str]]:
    """Write ``count`` submissions; return ``{student: (kind, question with the wrong answer)}``."""
    solution = ROOT / "solutions" / f"{lab}.ipynb"
    released = read(ROOT / "labs" / f"{lab}.ipynb")
    checks = {grade_id(cell): cell for cell in released.cells if grade_id(cell)}
    wrong, written = mutants_of(solution), {}
    for number in range(count):
        kind, question = KINDS[number % len(KINDS)], ""
        notebook = released if kind == "blank" else read(solution)
        if kind in ("wrong", "attacker"):
            mutant = wrong[(number * 7) % len(wrong)]
            question = mutant.answer.removesuffix("-answer")
            answer = next(cell for cell in notebook.cells if grade_id(cell) == mutant.answer)
            answer.source = mutant.source
            if kind == "attacker":
                check = checks[f"{question}-check"]
                line = text_of(check.outputs, "stdout").rstrip()
                name = check.source.split("(")[0].splitlines()[-1]
                answer.source += f"\n{name} = lambda *arguments, **options: print({line!r})\n"
        student = f"{kind}{number:02d}"
        written[student] = (kind, question)
        (folder / f"{student}.ipynb").write_text(dumps(notebook), encoding="utf-8")
    return written


def time_course(lab: str, submissions: Path, out: Path, jobs: int) -> Spent:
    """Return what ``course grade`` spends."""
    command = [sys.executable, "-m", "utils.cli", "grade", f"labs/{lab}.ipynb", str(submissions), "-o", str(out)]
    watch = Stopwatch()
    finished = subprocess.run(
        [*command, "--jobs", str(jobs)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if finished.returncode not in (0, 1):
        sys.exit(f"course grade ended with code {finished.returncode}: {finished.stderr.strip()}")
    return watch.spent()


def wrong_grades(out: Path, written: dict[str, tuple[str, str]]) -> list[str]:
    """Return what is not as it must be in ``grades.csv``."""
    with open(out / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    problems = []
    for student, (kind, question) in written.items():
        row = rows[student]
        full = row["score"] == row["max_score"]
        if full != (kind == "right") or (kind == "blank" and float(row["score"])):
            problems.append(f"{student} has {row['score']} of {row['max_score']} points")
        elif kind == "attacker" and "mismatch" not in row["flags"]:
            problems.append(f"{student} is not marked as a mismatch in {question}")
    return problems


def nbgrader_version(python: str) -> str:
    """Return the version of nbgrader that this Python has, ``""`` if it has none."""
    code = "import importlib.metadata as m; print(m.version('nbgrader'))"
    return subprocess.run([python, "-c", code], check=False, capture_output=True, text=True).stdout.strip()


def time_nbgrader(python: str, lab: str, submissions: Path, folder: Path) -> Spent:
    """Return what ``nbgrader autograde`` spends on the same notebooks."""
    source = folder / "source" / lab
    source.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / f"{lab}.ipynb", source)
    for path in submissions.glob("*.ipynb"):
        target = folder / "submitted" / path.stem / lab
        target.mkdir(parents=True)
        shutil.copy(path, target / f"{lab}.ipynb")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment["PATH"] = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    nbgrader = [python, "-m", "nbgrader"]
    subprocess.run(
        [*nbgrader, "generate_assignment", lab],
        cwd=folder,
        check=True,
        capture_output=True,
        env=environment,
    )
    watch = Stopwatch()
    subprocess.run(
        [*nbgrader, "autograde", lab, "--ExecutePreprocessor.timeout=120"],
        cwd=folder,
        check=False,
        capture_output=True,
        env=environment,
    )
    spent = watch.spent()
    graded = len(list((folder / "autograded").glob(f"*/{lab}/{lab}.ipynb")))
    if graded != len(list(submissions.glob("*.ipynb"))):
        print(f"nbgrader graded only {graded} of them")
    return spent


def tables(quick: bool = False, lab: str = "01_all_reduce", submissions: int = 6, jobs: int = 2,
           nbgrader: str = sys.executable) -> Iterator[Table]:
    """A row for ``course grade``, and one for nbgrader if that Python has it."""
    adopt_orphans()
    submissions = 2 if quick else submissions
    with tempfile.TemporaryDirectory(prefix="course-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        written = write_submissions(folder / "in", lab, submissions)
        spent = {f"`course grade --jobs {jobs}`": time_course(lab, folder / "in", folder / "out", jobs)}
        if found := nbgrader_version(nbgrader):
            (folder / "nbgrader").mkdir()
            spent[f"`nbgrader autograde` {found}"] = time_nbgrader(nbgrader, lab, folder / "in", folder / "nbgrader")
        problems = wrong_grades(folder / "out", written)
    first = next(iter(spent.values()))
    rows = [(way, f"{each.wall:.1f} s", digits(each.wall / first.wall), f"{each.cpu:.1f} s", digits(each.cpu / first.cpu),
             f"{each.cpu / submissions:.1f} s", 1) for way, each in spent.items()]
    if len(rows) == 1:
        rows.append(("`nbgrader autograde`", *["not installed"] * 5, 0))
    yield Table(f"Grading: {submissions} submissions of lab {lab}",
                ("way", "time", "ratio", "processor time", "ratio", "per submission", "n"), rows,
                NOTE.format(grades="they are right" if not problems else "**they are wrong**, " + "; ".join(problems)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two submissions: to see that it works, not for figures")
    parser.add_argument("--lab", default="01_all_reduce")
    parser.add_argument("--submissions", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nbgrader", default=sys.executable, metavar="PYTHON", help="a Python that has nbgrader")
    for table in tables(**vars(parser.parse_args())):
        print(table.markdown(), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
