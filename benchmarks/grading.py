"""How long grading a class takes, beside ``nbgrader autograde`` on the same notebooks where nbgrader is installed.

    python benchmarks/grading.py [--lab 01_all_reduce] [--submissions 30] [--jobs 2] [--nbgrader PYTHON]

Of ten submissions three are right, one is blank, four have a wrong answer (one of the lab's known ones), and two have a
wrong answer and replace its check by a line that prints what the check prints.  A figure counts only if the grades are
right too, so the grades are looked at.
"""

import argparse
import contextlib
import csv
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.grading.notebook import dumps, grade_id, read, text_of  # noqa: E402
from utils.grading.selfcheck import mutants_of  # noqa: E402

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


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock, and seconds of processor time of all processes together."""

    wall: float
    cpu: float


class Stopwatch:
    """Measures what happens between making it and :meth:`spent`."""

    def __init__(self):
        self._wall, self._cpu = time.perf_counter(), self._children()

    def spent(self) -> Spent:
        """Return what was spent since."""
        wall, patience = time.perf_counter() - self._wall, time.monotonic() + 10
        with contextlib.suppress(ChildProcessError):  # orphans count once they have been seen off
            while time.monotonic() < patience:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.1)
        return Spent(wall, self._children() - self._cpu)

    @staticmethod
    def _children() -> float:
        used = os.times()
        return used.children_user + used.children_system


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


def load() -> str:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "not known"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="01_all_reduce")
    parser.add_argument("--submissions", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nbgrader", default=sys.executable, metavar="PYTHON", help="a Python that has nbgrader")
    chosen = parser.parse_args()
    if sys.platform == "linux":  # processes that outlive their parents become this one's children: their time counts
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    print(f"{chosen.submissions} submissions of {chosen.lab}, --jobs {chosen.jobs}, {os.cpu_count()} cores", flush=True)
    print(f"load average before: {load()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="course-") as name:
        folder = Path(name)
        submissions = folder / "in"
        submissions.mkdir()
        written = write_submissions(submissions, chosen.lab, chosen.submissions)
        rows = [("course grade", time_course(chosen.lab, submissions, folder / "out", chosen.jobs))]
        print(f"load average after course grade: {load()}", flush=True)
        if found := nbgrader_version(chosen.nbgrader):
            (folder / "nbgrader").mkdir()
            spent = time_nbgrader(chosen.nbgrader, chosen.lab, submissions, folder / "nbgrader")
            rows.append((f"nbgrader {found} autograde", spent))
        problems = wrong_grades(folder / "out", written)
    print(f"load average after: {load()}")
    base = rows[-1][1]
    for title, spent in rows:
        ratio = f"  ratio {spent.wall / base.wall:.2f}, of cpu {spent.cpu / base.cpu:.2f}" if len(rows) > 1 else ""
        each = spent.cpu / chosen.submissions
        print(f"{title:28} {spent.wall:7.1f} s  cpu {spent.cpu:7.1f} s, {each:.1f} s a submission{ratio}")
    if len(rows) == 1:
        print("nbgrader is not installed, so there is nothing to compare with: pip install nbgrader")
    print("the grades are right" if not problems else "WRONG GRADES: " + "; ".join(problems))


if __name__ == "__main__":
    main()
