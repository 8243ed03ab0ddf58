"""The instructors' container as far as it can be judged without building it: its files, its lines, what is not in it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker" / "Dockerfile").read_text()
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def arguments(word: str) -> list[str]:
    return [rest for name, rest in LINES if name == word]


def copied() -> list[str]:
    return [source for line in arguments("COPY") for source in line.split()[:-1]]


def test_what_it_copies_exists_and_nothing_of_it_is_a_solution():
    assert copied() == ["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "utils", "labs"]
    assert all((ROOT / name).exists() for name in copied())
    assert not [path for name in copied() for path in (ROOT / name).rglob("*") if "solutions" in path.parts]


def test_it_installs_as_the_makefile_does():
    (run,) = arguments("RUN")
    words = shlex.split(run)
    assert words[:4] == ["python", "-m", "pip", "install"] and "$PIP_ARGS" in words
    extras = re.fullmatch(r"\.\[(.*)\]", words[words.index("--editable") + 1])[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert (ROOT / words[words.index("--constraint") + 1]).exists()
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r'pip install \$\(PIP_ARGS\) --editable "\.\$\(EXTRAS\)" --constraint', makefile)


def test_the_copied_files_are_enough_to_install(tmp_path):
    """pip reads the metadata from these files alone; it installs nothing and asks no index."""
    for name in copied():
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (run,) = arguments("RUN")
    words = [word for word in shlex.split(run)[1:] if word != "$PIP_ARGS"]
    offline = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    command = [sys.executable, *words[:3], *offline, *words[3:]]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_its_python_and_its_command_are_the_projects():
    (base,) = arguments("FROM")
    version = re.fullmatch(r"python:(\d+)\.(\d+)-slim", base)
    least = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert tuple(map(int, version.groups())) >= tuple(map(int, least.groups()))
    (entry,) = arguments("ENTRYPOINT")
    command, subcommand = json.loads(entry)
    assert command in PROJECT["scripts"]
    help_text = subprocess.run(
        [sys.executable, "-m", "utils.cli", subcommand, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for option in ("--sandbox", "-o"):
        assert option in help_text and option in TEXT


def test_the_line_that_runs_it_takes_everything_away():
    for option in (
        "--network none",
        "--read-only",
        "--pids-limit",
        "--memory",
        "--cap-drop ALL",
        "no-new-privileges",
    ):
        assert option in TEXT
    assert "solutions" not in " ".join(rest for _, rest in LINES)
