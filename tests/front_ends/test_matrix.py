"""What `make matrix` decides; the runs themselves take long and are not in `make test`."""
import sys
from pathlib import Path

import pytest

from utils.doctor import TORCH_CEILING, TORCH_FLOOR

from . import matrix


@pytest.fixture
def made(monkeypatch):
    """No environment is made and nothing runs; returns what was asked for: {environment: (its Python, its packages)}."""
    asked = {}

    def environment(name, python, *packages):
        asked[name] = python, packages
        return Path(name) / "bin" / "python"

    monkeypatch.setattr(matrix, "environment", environment)
    monkeypatch.setattr(matrix.subprocess, "run", lambda *arguments, **options: type("Done", (), {"stdout": "3.12 2.9"}))
    monkeypatch.setattr(matrix, "outcome", lambda own, name, *arguments, **variables: (True, "1 passed"))
    return asked


@pytest.mark.parametrize("pythons, taken", [
    ([], [sys.executable] * 3), (["a"], ["a", "a", "a"]), (["a", "b"], ["a", "b", "b"]), (["a", "b", "c"], ["a", "c", "b"])])
def test_each_environment_gets_its_python_and_its_torch(made, capsys, pythons, taken):
    assert matrix.main(pythons) == 0
    assert [made[name][0] for name in ("floor", "newest", "colab")] == taken
    assert f"torch=={TORCH_FLOOR}" in made["floor"][1]
    assert f"torch>={TORCH_FLOOR},<{TORCH_CEILING}" in made["newest"][1]
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(matrix.LESSONS) + 1 + 2


def test_one_failure_fails_the_matrix(made, monkeypatch, capsys):
    monkeypatch.setattr(matrix, "outcome", lambda own, name, *rest, **variables: (name != "newest-01_all_reduce", "as it went"))
    assert matrix.main([]) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "FAILED" in line]
    assert "newest" in line and "01_all_reduce" in line
    assert f"{2 * len(matrix.LESSONS)} of {2 * len(matrix.LESSONS) + 1} passed" in printed


def test_a_run_tells_how_it_went_and_keeps_what_was_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "BUILD", tmp_path)
    (tmp_path / "test_x.py").write_text("import os\ndef test_x(): assert os.environ['SECRET'] == '1'\n")
    for value in ("1", "2"):
        passed, last = matrix.outcome(Path(sys.executable), "x", tmp_path / "test_x.py", SECRET=value)
        assert passed == (value == "1") and f"1 {'passed' if passed else 'failed'}" in last
        assert last in (tmp_path / "x.txt").read_text()
