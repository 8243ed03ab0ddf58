"""The commands that README, CONTRIBUTING and the docs tell a reader to type: they are there and do what is said."""
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from utils import cli

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = r"^```(\w*)\n(.*?)^```$"


def commands(path):
    """What a text tells to type: the lines of its code blocks and its words in backticks, without remarks."""
    text = path.read_text(encoding="utf-8")
    blocks = [block for language, block in re.findall(FENCED, text, re.MULTILINE | re.DOTALL) if not language]
    rest = re.sub(FENCED, "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in [*blocks, *re.findall(r"^ {4,}(.+)$", rest, re.MULTILINE)] for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", rest)
    return [re.sub(r"\s+#.*", "", line).strip().removeprefix("!") for line in lines]


def starting_with(pattern):
    return [pytest.param(command, id=command) for command in
            dict.fromkeys(command for path in TEXTS for command in commands(path)) if re.match(pattern, command)]


@pytest.mark.parametrize("command", starting_with(r"make( |$)"))
def test_make_knows_its_targets_and_variables(command):
    makefile = (ROOT / "Makefile").read_text()
    for word in command.split()[1:2]:
        assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE)
    for variable in re.findall(r" ([A-Z_]+)=", command):
        assert re.search(rf"^{variable} =", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", starting_with(r"(\.venv/bin/)?course \w"))
def test_course_knows_its_commands_and_options(command):
    name, *words = command.removeprefix(".venv/bin/").split()[1:]
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()) as said:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(^|[\s,]){option}\b", said.getvalue())
    for file in (word for word in words if word.startswith("labs/") and "NN" not in word):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("command", starting_with(r"python "))
def test_what_python_shall_run_is_there(command):
    module = re.match(r"python -m ([\w.]+)", command)
    file = re.match(r"python ([\w/]+\.py)", command)
    if module:
        path = ROOT.joinpath(*module[1].split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    elif file[1] != "all_reduce.py":                   # the file that README writes; the next test runs it
        text = (ROOT / file[1]).read_text(encoding="utf-8")
        assert all(option in text for option in re.findall(r"--[\w-]+", command))


@pytest.mark.parametrize("start", [[], ["-m", "torch.distributed.run", "--nproc-per-node=4"]], ids=["python", "torchrun"])
def test_the_readme_s_script_runs_as_it_says(tmp_path, start):
    blocks = re.findall(FENCED, TEXTS[0].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (script,) = [block for language, block in blocks if language == "python"]
    (tmp_path / "all_reduce.py").write_text(script)
    done = subprocess.run([sys.executable, *start, "all_reduce.py"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=300, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[10.0, 10.0, 10.0, 10.0]") == (4 if start else 1)
