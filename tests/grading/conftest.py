"""Every test of this folder leaves no temporary file and no process behind."""

import tempfile

import psutil
import pytest

from .course_fixture import write_course


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
