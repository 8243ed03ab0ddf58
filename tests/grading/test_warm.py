"""The warm process: a run forked from it is as fresh as one that starts from nothing, and nobody can reach it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from utils.grading import box, sandbox
from utils.grading.nbval_stage import run_nbval
from utils.grading.notebook import read
from utils.grading.student import Server, Student
from utils.grading.warm import Warm, imports_of, warm_for
from utils.grading.warm_process import VERIFY_MODULES

from .corpus import RIGHT, WRONG
from .course_fixture import Q1, write_course
from .test_graft import LAB
from .test_nbval_stage import ANCHOR, RIGHT_ADD, handed_in

LEVEL, REASON = box.level()
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(LEVEL != "userns", reason=f"no box on this machine: {REASON}")


@pytest.fixture(scope="module")
def course_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    write_course(root)
    return root


@pytest.fixture(scope="module")
def walls(course_root):
    return sandbox.choose("userns", course_root)[0]


@pytest.fixture(scope="module")
def warm(course_root, walls):
    made = warm_for(LAB, course_root, nbval=True, verify=False)
    run_nbval(handed_in(), course_root, sandbox=walls, warm=made)
    yield made
    made.close()


@pytest.fixture
def run(course_root, walls, warm):
    """Run the tiny lab with this text in q1's answer cell; return its results."""

    def run_answer(source: str):
        return run_nbval(handed_in(ANCHOR + source), course_root, sandbox=walls, warm=warm)

    return run_answer


def printed(result) -> str:
    assert result.cells["q1-answer"].outcome == "passed", result.cells["q1-answer"]
    return result.cells["q1-answer"].stdout.strip()


@pytest.mark.parametrize(
    "answer", [Q1, ANCHOR + WRONG, ANCHOR + "import os; os._exit(3)", ANCHOR + "print('x' * 9000)"]
)
def test_a_warm_run_says_what_a_run_from_nothing_says(answer, course_root, walls, warm):
    lab = handed_in(answer)
    cold = run_nbval(lab, course_root, sandbox=walls)
    warm_ = run_nbval(lab, course_root, sandbox=walls, warm=warm)
    without_time = [
        {name: (c.outcome, c.message, c.stdout, c.stderr, c.cut) for name, c in result.cells.items()}
        for result in (cold, warm_)
    ]
    assert without_time[0] == without_time[1]
    assert (cold.status, cold.left_behind) == (warm_.status, warm_.left_behind)


SPOILS = """
import builtins, math, os, pathlib, sys, tempfile
from utils.checks import tiny
tiny.q1 = lambda add: print('q1: 3/3 checks passed')
builtins.spoiled = True
math.pi = 3
sys.path.insert(0, '/tmp')
os.environ['SPOILED'] = 'yes'
for place in {pathlib.Path.home(), pathlib.Path(tempfile.gettempdir()), pathlib.Path('/dev/shm')}:
    (place / 'spoiled.txt').write_text('yes')
"""
LOOKS = """
import builtins, math, os, pathlib, tempfile
found = [str(place) for place in (pathlib.Path.home(), pathlib.Path(tempfile.gettempdir()), pathlib.Path('/dev/shm'))
         if (place / 'spoiled.txt').exists()]
print(found, 'SPOILED' in os.environ, hasattr(builtins, 'spoiled'), math.pi)
"""


def test_what_a_student_spoils_is_whole_for_the_next_one(run):
    """The first has replaced a check, built-in functions and files; the second's wrong answer gets its sentence."""
    assert run(SPOILS + WRONG).cells["q1-check"].outcome == "passed"  # it works, for the one who did it
    result = run(LOOKS + WRONG)
    assert printed(result) == "[] False False 3.141592653589793"
    assert result.cells["q1-check"].message == "AssertionError: q1: add(1, 2) gave 0, expected 3"


def test_each_run_has_folders_and_random_numbers_of_its_own(run):
    look = "import os, random, numpy\nprint(os.environ['HOME'], os.environ['TMPDIR'], random.random(), numpy.random.rand())\n"
    first, second = (printed(run(look + RIGHT)).split() for _ in range(2))
    assert not set(first) & set(second)


def test_a_run_sees_its_own_processes_and_cannot_take_hold_of_the_grader(run):
    look = (
        "import ctypes, os\n"
        "pids = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n"
        "libc = ctypes.CDLL(None)\n"
        "print(len(pids) < 6, [libc.ptrace(16, pid, 0, 0) for pid in (1, 2)], os.getuid(), os.getppid() in pids)\n"
        "print([name for pid in (1, 2) for name in ('mem', 'environ') if os.access(f'/proc/{pid}/{name}', os.R_OK)])\n"
    )
    assert printed(run(look + RIGHT)) == "True [-1, -1] 0 True\n[]"


def test_no_descriptor_of_the_graders_is_open_in_the_kernel(run):
    """The kernel writes a verdict into everything that it holds open; none of it is the grader's pipe or socket."""
    forged = json.dumps({"id": "q1-check", "outcome": "passed"})
    attack = (
        "import os\n"
        f"line = {forged!r}.encode() + b'\\n'\n"
        "for number in range(3, 200):\n"
        "    try:\n"
        "        if not os.readlink(f'/proc/self/fd/{number}').startswith(('socket:', 'anon_inode')):\n"
        "            os.write(number, line)\n"
        "    except OSError: pass\n"
    )
    result = run(attack + WRONG)
    assert not result.passed("q1-check") and result.status == "ok"
    sockets = "import psutil\nprint({c.family.name for c in psutil.Process().net_connections('unix')})\n"
    assert printed(run(sockets + RIGHT)) in ("set()", "{'AF_UNIX'}")


def test_the_warm_process_is_started_again_when_it_was_killed(course_root, walls):
    warm = warm_for(LAB, course_root, nbval=True, verify=False)
    try:
        for _ in range(2):
            assert run_nbval(handed_in(), course_root, sandbox=walls, warm=warm).passed("q1-check")
            warm._process.kill()
            warm._process.wait()
    finally:
        warm.close()


def test_runs_end_with_the_warm_process(course_root, walls):
    warm = Warm(course_root, VERIFY_MODULES)
    server = Server(course_root, walls, warm)
    worker = server.worker()
    family = [worker.process, *worker.process.children(recursive=True)]
    warm._process.kill()
    warm._process.wait()
    assert not psutil.wait_procs(family, timeout=10)[1]
    worker.channel.close()
    warm.close()


def test_the_lab_says_what_to_load():
    statements = imports_of(read(ROOT / "labs" / "01_all_reduce.ipynb"))
    assert "import torch" in statements and "from utils.checks import all_reduce as check" in statements
    assert imports_of(LAB) == ["from utils.checks import tiny"]


def test_a_wrong_module_is_no_obstacle(course_root, walls):
    warm = Warm(
        course_root, ("no_such_module", "nbval_guard", "warm_kernel"), ["import nothing_like_it", "1 / 0"]
    )
    try:
        assert run_nbval(handed_in(), course_root, sandbox=walls, warm=warm).passed("q1-check")
    finally:
        warm.close()


def test_a_private_temporary_folder_is_no_obstacle(course_root, tmp_path, monkeypatch):
    """As many systems have it: TMPDIR is a folder that only its owner may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    walls = sandbox.choose("userns", course_root)[0]
    assert run_nbval(handed_in(), course_root, sandbox=walls).passed("q1-check")
    warm = warm_for(LAB, course_root, nbval=True, verify=True)
    try:
        assert run_nbval(handed_in(), course_root, sandbox=walls, warm=warm).passed("q1-check")
        student = Student(Server(course_root, walls, warm), [["q1-answer", RIGHT_ADD, True]], course_root)
        assert student.call("add", 2, 3) == 5
    finally:
        warm.close()
    assert private.stat().st_mode & 0o777 == 0o700 and not list(private.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_an_ordinary_user_grades_a_class_behind_the_same_walls(tmp_path):
    """Root runs the tests here; most instructors are ordinary users: walls and a class, started as one."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    command = [sys.executable, str(Path(__file__).with_name("ordinary_user.py")), str(folder), sys.executable]
    ten = "test_of_ten_students_three_bad_ones_change_nothing_for_the_other_seven"
    tests = ["tests/grading/test_box.py", "tests/grading/test_warm.py", f"tests/grading/test_class.py::{ten}"]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t"]
    ran = subprocess.run(
        [*command, "-m", "pytest", *options, *tests], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout[-4000:] + ran.stderr[-1000:]
