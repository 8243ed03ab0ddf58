"""The project's shell: its lists of packages agree, its commands say what is wrong, and it installs from nothing."""
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from utils import doctor, notebooks

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = {requirement.name: requirement.specifier for requirement in map(Requirement, PROJECT["dependencies"])}
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


# ---- lists of packages --------------------------------------------------------------------------------------------

def test_the_project_asks_for_ranges_and_the_pins_lie_in_them():
    assert all("==" not in str(specifier) for specifier in NEEDED.values())
    assert {pin.name for pin in PINS} == {"torch", "nbval"}
    for pin in PINS:
        (exact,) = pin.specifier
        assert exact.operator == "==" and exact.version in NEEDED[pin.name]


def test_the_doctor_knows_the_range_of_torch_and_of_python():
    assert NEEDED["torch"] == SpecifierSet(f">={doctor.TORCH_FLOOR},<{doctor.TORCH_CEILING}")
    assert PROJECT["requires-python"] == ">={}.{}".format(*doctor.PYTHON_FLOOR)
    assert set(doctor.PACKAGES) <= set(NEEDED)


def test_conda_gets_python_pip_and_this_project():
    *names, pip = CONDA
    assert [Requirement(name).name for name in names] == ["python", "pip"]
    assert PROJECT["requires-python"] in str(Requirement(names[0]).specifier).split(",")
    assert pip == {"pip": ["--constraint constraints.txt", "--editable ."]}


# ---- the two commands ---------------------------------------------------------------------------------------------

def make(folder, *arguments, **environment):
    environment = os.environ | environment
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@pytest.fixture
def course(tmp_path):
    """The files that make reads, in a folder of their own."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


# A Python that has torch 2.10.0 and writes down what it is told to run.
PRETENDER = """case "$*" in
  "-m pip --version") ;;
  *version*torch*) echo 2.10.0+cu126 ;;
  *) echo "$*" >>calls ;;
esac
"""


def test_make_alone_lists_the_commands(course):
    printed = make(course).stdout
    assert re.findall(r"^  make (\S+)", printed, re.M)[:2] == ["lab", "test"]


@pytest.mark.parametrize("python, sentence", [
    ("", "The course needs Python 3.10 or newer, and there is none on the PATH."),
    ("exit 1", "The course needs Python 3.10 or newer; "),
    ('case "$*" in *ensurepip*) exit 1 ;; esac', "On Debian and Ubuntu: sudo apt install python3-venv"),
])
def test_a_python_that_will_not_do_is_refused_with_a_sentence(course, python, sentence):
    name = str(program(course / "python", python)) if python else ""
    done = make(course, "lab", f"PYTHON={name}")
    assert done.returncode != 0
    assert sentence in done.stdout
    assert not (course / ".venv").exists()


def test_the_first_python_that_runs_and_is_new_enough_is_taken(course):
    program(course / "bin" / "python3", "exit 1")  # too old, or a name that leads nowhere
    program(course / "bin" / "python3.14", "exit 127")
    program(course / "bin" / "python3.13", "exit 0")
    with (course / "Makefile").open("a") as file:
        file.write("\nshow:\n\t@echo $(PYTHON)\n")
    shown = make(course, "show", PATH=f"{course / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert shown.stdout.strip() == "python3.13"


def test_an_installed_torch_is_kept_and_a_second_call_installs_nothing(course):
    program(course / ".venv" / "bin" / "python", PRETENDER)
    for _ in range(2):
        assert make(course, "lab").returncode == 0
    install, *opened = (course / "calls").read_text().splitlines()
    assert install.startswith("-m pip install") and install.endswith("--editable . --constraint build/constraints.txt")
    assert (course / "build" / "constraints.txt").read_text().splitlines() == ["torch==2.10.0+cu126", "nbval==0.11.0"]
    assert len(opened) == 2 and all("jupyterlab" in call and "lessons/00_start_here.ipynb" in call for call in opened)


def test_a_changed_list_of_packages_is_installed_again(course):
    program(course / ".venv" / "bin" / "python", PRETENDER)
    make(course, "lab")
    later = (course / ".venv" / ".ready-lab").stat().st_mtime + 10
    os.utime(course / "pyproject.toml", (later, later))
    make(course, "lab")
    assert sum("pip install" in call for call in (course / "calls").read_text().splitlines()) == 2


def test_the_active_python_is_used_without_an_environment(course):
    name = program(course / "python", PRETENDER)
    assert make(course, "lab", "VENV=", f"PYTHON={name}").returncode == 0
    assert not (course / ".venv").exists()
    assert "torch==2.10.0+cu126" in (course / "build" / "constraints.txt").read_text()


def test_only_root_asks_jupyterlab_to_allow_root(course):
    for user in ("0", "1000"):
        program(course / "bin" / "id", f"echo {user}")
        program(course / ".venv" / "bin" / "python", PRETENDER)
        (course / "calls").unlink(missing_ok=True)
        make(course, "lab", PATH=f"{course / 'bin'}{os.pathsep}{os.environ['PATH']}")
        assert ("--allow-root" in (course / "calls").read_text()) == (user == "0")


@pytest.mark.parametrize("step", ["-m pytest -n", "release --check", "--nbval"])
def test_a_step_that_fails_fails_make_test(course, step):
    python = PRETENDER.replace('*) echo "$*" >>calls', f'*"{step}"*) exit 3 ;;\n  *) echo "$*" >>calls')
    program(course / ".venv" / "bin" / "python", python)
    done = make(course, "test")
    assert done.returncode != 0 and "All tests passed" not in done.stdout


def test_make_test_runs_everything(course):
    program(course / ".venv" / "bin" / "python", PRETENDER)
    assert make(course, "test").stdout.splitlines()[-1] == "All tests passed."
    calls = (course / "calls").read_text()
    assert "--editable .[dev,grading]" in calls
    assert "--self-check" in calls and re.search("--nbval .*lessons solutions", calls)


def test_ci_calls_make_test_and_nothing_else(tmp_path):
    program(tmp_path / "make", 'echo "$PWD: $*"')
    done = subprocess.run([ROOT / ".ci" / "run"], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert done.stdout.splitlines() == [f"{ROOT}: test"]


# ---- installing from nothing --------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What the installation needs, in a folder of its own, so that the working tree stays as it is."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "utils", folder / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def pip(python, *arguments, cwd):
    done = subprocess.run([python, "-m", "pip", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_holds_every_file_of_utils(sources, tmp_path):
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ".", cwd=sources)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("utils/")}
    assert packed == {path.relative_to(sources).as_posix() for path in (sources / "utils").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_condas_pip_part_gives_a_course_that_runs(sources, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (sources / "requirements.txt").write_text("\n".join(CONDA[-1]["pip"]))  # conda hands them to pip like this
    pip(python, "install", "--quiet", "--no-compile", "--requirement", "requirements.txt", cwd=sources)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for arguments, words in [
        (["course", "doctor"], "The course runs here"),
        (["python", "-c", notebooks.BOOTSTRAP + "\nprint(utils.__file__)"], str(sources / "utils" / "__init__.py")),
    ]:
        done = subprocess.run([python.parent / arguments[0], *arguments[1:]], cwd=elsewhere, env=environment,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and words in done.stdout, done.stdout + done.stderr
    for pin in PINS:
        shown = subprocess.run([python, "-c", f"import importlib.metadata as m; print(m.version({pin.name!r}))"],
                               capture_output=True, text=True, check=True).stdout.strip()
        assert pin.specifier.contains(shown.split("+")[0])
