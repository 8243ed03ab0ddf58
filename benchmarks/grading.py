"""How long grading takes: submissions of a lab a minute, beside ``nbgrader autograde`` where nbgrader is installed.

    python benchmarks/grading.py [--lab 01_all_reduce] [--submissions 6] [--jobs 2]

The submissions are the solution and its known wrong answers. Both tools get the same notebooks.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.grading.notebook import dumps, grade_id, read  # noqa: E402
from utils.grading.selfcheck import mutants_of  # noqa: E402


def write_submissions(folder: Path, lab: str, count: int) -> None:
    """Write ``count`` submissions: the solution, then the solution with one wrong answer each, in turn."""
    solution = ROOT / "solutions" / f"{lab}.ipynb"
    wrong = mutants_of(solution)
    for number in range(count):
        notebook = read(solution)
        if number and wrong:
            mutant = wrong[(number * 7) % len(wrong)]
            next(cell for cell in notebook.cells if grade_id(cell) == mutant.answer).source = mutant.source
        (folder / f"student{number:02d}.ipynb").write_text(dumps(notebook), encoding="utf-8")


def time_course(lab: str, submissions: Path, out: Path, jobs: int, *more: str) -> float:
    """Return the seconds of ``course grade``."""
    command = [
        sys.executable,
        "-m",
        "utils.cli",
        "grade",
        f"labs/{lab}.ipynb",
        str(submissions),
        "-o",
        str(out),
        "--jobs",
        str(jobs),
        *more,
    ]
    start = time.perf_counter()
    finished = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if finished.returncode not in (0, 1):
        sys.exit(f"course grade ended with code {finished.returncode}: {finished.stderr.strip()}")
    return time.perf_counter() - start


def time_nbgrader(lab: str, submissions: Path, folder: Path) -> float:
    """Return the seconds of ``nbgrader autograde`` on the same notebooks."""
    source = folder / "source" / lab
    source.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / f"{lab}.ipynb", source)
    for path in submissions.glob("*.ipynb"):
        target = folder / "submitted" / path.stem / lab
        target.mkdir(parents=True)
        shutil.copy(path, target / f"{lab}.ipynb")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    nbgrader = [sys.executable, "-m", "nbgrader"]
    subprocess.run(
        [*nbgrader, "generate_assignment", lab],
        cwd=folder,
        check=True,
        capture_output=True,
        env=environment,
    )
    start = time.perf_counter()
    subprocess.run(
        [*nbgrader, "autograde", lab, "--ExecutePreprocessor.timeout=120"],
        cwd=folder,
        check=False,
        capture_output=True,
        env=environment,
    )
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="01_all_reduce")
    parser.add_argument("--submissions", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="course-") as name:
        folder = Path(name)
        submissions = folder / "in"
        submissions.mkdir()
        write_submissions(submissions, chosen.lab, chosen.submissions)
        whole = time_course(chosen.lab, submissions, folder / "out", chosen.jobs)
        first_stage = time_course(chosen.lab, submissions, folder / "first", chosen.jobs, "--nbval-only")
        rows = [("course grade", whole), ("course grade --nbval-only", first_stage)]
        if importlib.util.find_spec("nbgrader"):
            (folder / "nbgrader").mkdir()
            rows.append(("nbgrader autograde", time_nbgrader(chosen.lab, submissions, folder / "nbgrader")))
    print(f"{chosen.submissions} submissions of {chosen.lab}, --jobs {chosen.jobs}")
    for title, seconds in rows:
        print(
            f"{title:28} {seconds:7.1f} s  {60 * chosen.submissions / seconds:6.1f} a minute  ratio {seconds / rows[-1][1]:.2f}"
        )
    if len(rows) == 2:
        print("nbgrader is not installed, so there is nothing to compare with: pip install nbgrader")


if __name__ == "__main__":
    main()
