"""Every test of this folder leaves no temporary folder and no process behind."""

import tempfile
from pathlib import Path

import psutil
import pytest

from .course_fixture import write_course


def _folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("course-*"))


@pytest.fixture(autouse=True)
def nothing_left_behind():
    folders, children = _folders(), set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - children
    _, alive = psutil.wait_procs(left, timeout=3)
    assert not alive, f"processes left behind: {alive}"
    assert _folders() <= folders


@pytest.fixture
def course(tmp_path):
    """The path of the solution of a tiny course in a fresh folder."""
    return write_course(tmp_path)
