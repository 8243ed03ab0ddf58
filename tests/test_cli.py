"""The `course` command: what it offers, what it loads, and the exit codes it gives."""
import subprocess
import sys
from pathlib import Path

import pytest

from utils import cli, doctor
from utils.grading import commands

ROOT = Path(__file__).parents[1]


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("doctor", "check", "grade", "release"))


def test_without_a_command_it_shows_the_help(capsys):
    assert cli.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: course")


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["teach"])
    assert end.value.code == 2
    assert "teach" in capsys.readouterr().err


@pytest.mark.parametrize("memory_bytes, code", [(int(16e9), 0), (int(1e9), 1)])
def test_doctor_exits_with_what_it_found(monkeypatch, capsys, memory_bytes, code):
    facts = doctor.Facts(python=(3, 12, 0), platform="linux", machine="x86_64", cores=2, memory_bytes=memory_bytes,
                         versions={name: "2.13" for name in doctor.PACKAGES}, trial=doctor.Trial(1, 1))
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    assert cli.main(["doctor"]) == code
    assert ("cannot run here" in capsys.readouterr().out) == (code == 1)


@pytest.mark.parametrize("command, arguments", [
    ("release", ["01_all_reduce", "--check"]),
    ("check", ["labs/01_all_reduce.ipynb"]),
    ("grade", ["labs/01_all_reduce.ipynb", "submissions", "-o", "out"]),
])
def test_commands_of_grading_get_their_arguments_and_give_their_exit_code(monkeypatch, command, arguments):
    seen = []
    monkeypatch.setattr(commands, f"run_{command}", lambda chosen: seen.append(chosen) or 7)
    assert cli.main([command, *arguments]) == 7
    assert arguments[0] in (seen[0].lab if command == "release" else [seen[0].lab])


def test_help_loads_no_torch():
    program = "import sys, utils.cli\ntry: utils.cli.main(['--help'])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
