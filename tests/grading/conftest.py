"""Every test of this folder leaves no temporary file and no process behind."""

import tempfile
from pathlib import Path

import psutil
import pytest

from utils.grading import sandbox
from utils.grading.student import Server

from .course_fixture import write_course

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path_factory, monkeypatch):
    folder, children = tmp_path_factory.mktemp("temporary"), set(psutil.Process().children(recursive=True))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    left = set(psutil.Process().children(recursive=True)) - children
    _, alive = psutil.wait_procs(left, timeout=3)
    assert not alive, f"processes left behind: {alive}"
    assert not list(folder.iterdir())


@pytest.fixture
def course(tmp_path):
    """The path of the solution of a tiny course in a fresh folder."""
    return write_course(tmp_path)


@pytest.fixture(scope="module")
def server():
    """The verify stage's server behind the strongest wall that there is."""
    chosen, _ = sandbox.choose("auto", ROOT, at_own_risk=True)
    made = Server(ROOT, chosen)
    made.worker().end()
    yield made
    made.close()
