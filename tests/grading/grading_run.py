"""Run ``course grade`` as the command line does, and read its table."""

import argparse
import csv
from pathlib import Path

from utils.grading.commands import add_grade_arguments, run_grade


def grade(root: Path, lab: Path, submissions: Path, out: Path, *more: str) -> int:
    parser = argparse.ArgumentParser()
    add_grade_arguments(parser)
    return run_grade(
        parser.parse_args(
            [
                str(lab),
                str(submissions),
                "-o",
                str(out),
                "--root",
                str(root),
                "--jobs",
                "2",
                "--cell-timeout",
                "4",
                "--i-know",
                *more,
            ]
        )
    )


def table(out: Path) -> dict[str, dict[str, str]]:
    with open(out / "grades.csv", newline="") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}
