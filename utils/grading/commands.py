"""The instructor's and the student's commands: for each, ``add_…_arguments(parser)`` and ``run_…(args) -> exit code``.

Importing this module is cheap; a command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

USAGE, SELF_CHECK_FAILED = 2, 3


def add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``course release`` to ``parser``."""
    parser.add_argument(
        "lab", nargs="*", help="a lab's name (01_all_reduce) or the path of its lab or solution; default: all"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a lab differs from what its solution gives",
    )
    parser.add_argument(
        "--stored",
        action="store_true",
        help="take the check cells' outputs as stored in the solution instead of running it twice",
    )
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="also run the blank lab, the solution and every mutant, and fail if a check cannot tell them apart",
    )
    parser.add_argument(
        "--bundle", metavar="ZIP", help="also write the archive for students: no solutions, mutants or tests"
    )
    parser.add_argument("--root", default=".", help="the course's folder (default: the current one)")


def run_release(args: argparse.Namespace) -> int:
    """Run ``course release``; return 0 if all is well, 1 if a lab is out of step or cannot be made, 2 for a wrong
    call, 3 if a self-check fails."""
    from utils.grading.bundle import write_bundle
    from utils.grading.errors import GradingError
    from utils.grading.release import check_release, release
    from utils.grading.selfcheck import self_check

    root, status = Path(args.root).resolve(), 0
    try:
        solutions = find_solutions(root, args.lab)
    except GradingError as error:
        print(error, file=sys.stderr)
        return USAGE
    for solution in solutions:
        try:
            if args.check:
                difference = check_release(solution, root=root, execute=not args.stored)
                if difference:
                    print(
                        f"labs/{solution.name}: differs from its solution. Run 'course release {solution.stem}'.\n{difference}"
                    )
                    status = status or 1
                else:
                    print(f"labs/{solution.name}: in step with its solution")
            else:
                made = release(solution, root=root, execute=not args.stored)
                for warning in made.warnings:
                    print(f"warning: {warning}", file=sys.stderr)
                print(f"labs/{solution.name}: {'written' if made.changed else 'unchanged'}")
            if args.self_check:
                result = self_check(solution, root=root)
                print(
                    "\n".join(result.problems)
                    or f"labs/{solution.name}: blank fails, the solution passes, "
                    f"{result.mutants} wrong answers rejected ({result.questions} questions)"
                )
                status = SELF_CHECK_FAILED if result.problems else status
        except GradingError as error:
            print(error, file=sys.stderr)
            status = status or 1
    if args.bundle and not status:
        try:
            names = write_bundle(args.bundle, root, solutions)
        except GradingError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{args.bundle}: {len(names)} files")
    return status


def find_solutions(root: Path, labs: list[str]) -> list[Path]:
    """Return the solution notebooks that ``labs`` name, or all of them if it is empty.

    Raises ``GradingError`` if there is none for a name, or none at all.
    """
    from utils.grading.errors import GradingError

    known = {path.stem: path for path in sorted((root / "solutions").glob("*.ipynb"))}
    if not known:
        raise GradingError(
            f"{root / 'solutions'} holds no notebook. Run this in the course's folder, or give --root."
        )
    missing = [lab for lab in labs if Path(lab).name.removesuffix(".ipynb") not in known]
    if missing:
        raise GradingError(f"there is no solution for {missing[0]!r}. There are: {', '.join(known)}.")
    return [known[Path(lab).name.removesuffix(".ipynb")] for lab in labs] or list(known.values())


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``course check`` to ``parser``."""
    parser.add_argument("lab", help="the notebook you work in, for example labs/01_all_reduce.ipynb (saved)")
    parser.add_argument(
        "--against", metavar="LAB", help="a released lab to put the answers into before running"
    )
    parser.add_argument("--root", default=".", help="the course's folder (default: the current one)")


def run_check(args: argparse.Namespace) -> int:
    """Run ``course check``; return 0 if every question passes, 1 if one does not, 2 if the file is not a lab."""
    from utils.grading.check import check_lab, report_text
    from utils.grading.errors import GradingError

    try:
        results = check_lab(args.lab, against=args.against, root=args.root)
    except GradingError as error:
        print(error, file=sys.stderr)
        return USAGE
    print(report_text(results))
    return 0 if all(result.state == "passed" for result in results) else 1


def add_grade_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``course grade`` to ``parser``."""
    import os

    parser.add_argument("lab", help="the released lab, for example labs/01_all_reduce.ipynb")
    parser.add_argument(
        "submissions", help="a folder (also of Canvas, Moodle, Gradescope or nbgrader) or a zip file"
    )
    parser.add_argument(
        "-o", "--output", required=True, help="folder for grades.csv, results.json and feedback/"
    )
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="submissions at a time"
    )
    parser.add_argument("--cell-timeout", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--total-timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--memory", default="4G", help="address space of each process (default: 4G)")
    parser.add_argument("--sandbox", choices=("auto", "userns", "none", "container"), default="auto")
    parser.add_argument(
        "--i-know", action="store_true", help="allow root to run students' code without a sandbox"
    )
    parser.add_argument("--due", metavar="ISO", help="due date, for example 2026-03-01T23:59+01:00")
    parser.add_argument(
        "--late", default="none", help="none, zero or linear:10%%/day:max50%% (default: none)"
    )
    parser.add_argument(
        "--roster", metavar="CSV", help="ids of the class; who handed in nothing gets a row too"
    )
    parser.add_argument(
        "--student", action="append", default=[], metavar="ID", help="grade only this one (may be repeated)"
    )
    parser.add_argument("--regrade", action="store_true", help="grade again although nothing changed")
    parser.add_argument("--overrides", metavar="CSV", help="student_id,question,score,comment: applied last")
    parser.add_argument(
        "--extra-cells", choices=("keep", "drop"), default="keep", help="code cells that students added"
    )
    parser.add_argument("--also", type=lambda text: text.split(","), default=[], metavar="gradescope,canvas")
    parser.add_argument(
        "--points-row", action="store_true", help="first row of grades.csv: the points possible"
    )
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="first see that the solution gets everything and a blank lab 0",
    )
    parser.add_argument(
        "--nbval-only",
        action="store_true",
        help="skip the verify stage: a student's code could fool the checks",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the verify stage's inputs (default: a new one, kept in results.json)",
    )
    parser.add_argument("--root", default=".", help="the course's folder (default: the current one)")


def run_grade(args: argparse.Namespace) -> int:
    """Run ``course grade``; return 0 if every submission was graded, 1 if some are broken, 2 for a wrong call, 3 if the
    self-check fails, 4 if files changed meanwhile, 130 if interrupted."""
    from utils.grading.errors import GradingError
    from utils.grading.gradebook import grade_class

    try:
        return grade_class(args)
    except GradingError as error:
        print(error, file=sys.stderr)
        return USAGE
