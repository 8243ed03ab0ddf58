"""Generated labs are nbgrader's too: it releases and grades one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils.grading.release import release

from .course_fixture import write_course
from .test_graft import answering, submitted

nbgrader = pytest.importorskip("nbgrader", reason="nbgrader is not installed")
pytestmark = pytest.mark.slow


def test_nbgrader_releases_and_grades_a_generated_lab(tmp_path):
    lab = release(write_course(tmp_path / "course"), execute=False).path
    classroom = tmp_path / "class"
    for folder in ("source/01_tiny", "submitted/ann/01_tiny"):
        (classroom / folder).mkdir(parents=True)
    shutil.copy(lab, classroom / "source/01_tiny/01_tiny.ipynb")
    right = "# === q1: answer (keep this line) ===\ndef add(left, right):\n    return left + right"
    (classroom / "submitted/ann/01_tiny/01_tiny.ipynb").write_bytes(submitted(answering("q1-answer", right)))
    env = dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path / "course"), os.environ.get("PYTHONPATH", "")])
    )
    # nbgrader calls alembic by its name
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env |= {
        name: str(tmp_path / "home")
        for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    }
    for command in ("generate_assignment", "autograde"):
        ran = subprocess.run(
            [sys.executable, "-m", "nbgrader", command, "01_tiny"],
            cwd=classroom,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stderr
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as book:
        grades = {
            grade.name: (grade.score, grade.max_score)
            for grade in book.find_submission("01_tiny", "ann").notebooks[0].grades
        }
    assert grades == {"q1-check": (3, 3), "q2-check": (0, 2)}
