"""The README's lines for Google Colab, and lessons below them, in an environment that has its own PyTorch.

`make test` uses the packages that are installed here; the environment, the clone and the kernel are new. `make matrix`
makes an environment with the packages of `colab.txt` and names its Python in COURSE_COLAB_PYTHON.
"""
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from utils.grading.notebook import read, text_of
from utils.widgets.frame import LIVE_VIEW

from . import colab

ROOT = Path(__file__).parents[2]
COLAB_PYTHON = os.environ.get("COURSE_COLAB_PYTHON")
LESSONS = ["00_start_here", "01_all_reduce"] if COLAB_PYTHON else ["00_start_here"]
COURSE = "distributed-training-course"
WHERE = "import torch, utils\nprint(utils.__file__)\nprint(torch.__version__)"
WIDGETS = ("predict(", "ring_steps(", "compare_algorithms(")      # calls of lessons 00 and 01 that show one
CELL_SECONDS = 600
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has what a lesson needs, but not the course."""
    if COLAB_PYTHON:
        return Path(COLAB_PYTHON)
    folder = tmp_path_factory.mktemp("colab") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "installed-here.pth").write_text(sysconfig.get_path("purelib"))     # links in there are not followed
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def before(python):
    return colab.packages(python)


@pytest.fixture(scope="module", params=LESSONS)
def played(request, python, before, tmp_path_factory):
    """A lesson with its outputs, the same as it is stored, and the folder that stood for /content."""
    folder = tmp_path_factory.mktemp(request.param)
    content = folder / "content"
    content.mkdir()
    lines = colab.readme_lines((ROOT / "README.md").read_text("utf-8"))
    assert colab.ADDRESS in lines
    lines = lines.replace(colab.ADDRESS, str(colab.repository(ROOT, folder / "repository")))
    lesson = read(ROOT / "lessons" / f"{request.param}.ipynb")
    return colab.play(python, lesson, lines, [WHERE, "!course doctor"], content, CELL_SECONDS), lesson, content


def test_a_lesson_runs_below_the_readmes_lines(played):
    notebook, _, content = played
    first, *cells, where, doctor = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "ERROR" not in text_of(first.outputs, "stdout") + text_of(first.outputs, "stderr")
    for cell in [*cells, where, doctor]:
        assert text_of(cell.outputs, "stderr") == "", cell.source
    assert text_of(where.outputs, "stdout").splitlines()[0] == str(content / "course" / "utils" / "__init__.py")
    assert "The course runs here" in text_of(doctor.outputs, "stdout")


def test_a_lesson_prints_what_is_stored(played):
    notebook, lesson, _ = played
    compared = 0
    for cell, stored in zip(notebook.cells[1:], lesson.cells):
        if cell.cell_type == "code" and "NBVAL_IGNORE_OUTPUT" not in cell.source:
            assert text_of(cell.outputs, "stdout") == text_of(stored.outputs, "stdout"), cell.source
            compared += 1
    assert compared


def test_no_package_that_was_there_is_replaced(python, before, played):
    notebook, _, _ = played
    after = colab.packages(python)
    assert {name: after.get(name) for name in before if name != COURSE} == {n: v for n, v in before.items() if n != COURSE}
    assert text_of(notebook.cells[-2].outputs, "stdout").splitlines()[1].startswith(before["torch"])    # "2.11.0+cu130"
    assert {COURSE, "nbval", "cloudpickle"} <= set(after)


def test_widgets_are_live(played):
    notebook, _, _ = played
    shown = [cell for cell in notebook.cells if any(call in cell.source for call in WIDGETS) and cell.cell_type == "code"]
    assert shown
    for cell in shown:
        assert any(LIVE_VIEW in output.get("data", ()) for output in cell.outputs), cell.source
