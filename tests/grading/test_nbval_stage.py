import subprocess
import sys
import time

import psutil
import pytest
from nbformat import v4

from utils.grading.box import level
from utils.grading.graft import graft
from utils.grading.nbval_stage import judged_part, run_nbval
from utils.grading.notebook import dumps
from utils.grading.release import lab_notebook
from utils.grading.sandbox import choose
from utils.grading.warm import warm_for

from .course_fixture import Q1, Q2, solution, write_course
from .test_graft import LAB, answering, submitted

LEVEL, REASON = level()
ANCHOR = "# === q1: answer (keep this line) ===\n"
RIGHT_ADD = ANCHOR + "def add(left, right):\n    return left + right\n"
RIGHT_DOUBLE = Q2


def handed_in(add=RIGHT_ADD, double=RIGHT_DOUBLE):
    """Return the lab with two answers, grafted as the grader does it."""

    def change(notebook):
        answering("q1-answer", add)(notebook)
        answering("q2-answer", double)(notebook)

    return graft(LAB, submitted(change))[0]


@pytest.fixture(scope="module", params=["each run loads everything", "warm"])
def stage(request, tmp_path_factory):
    """The stage as a function of an answer to q1, or of a lab: without a box, and from a warm process in one."""
    root = tmp_path_factory.mktemp("course")
    write_course(root)
    warm = None
    options = {}
    if request.param == "warm":
        if LEVEL != "userns":
            pytest.skip(f"a warm process needs the box, and there is none on this machine: {REASON}")
        warm = warm_for(LAB, root, nbval=True, verify=False)
        options = {"sandbox": choose("userns", root)[0], "warm": warm}

    def run(add=RIGHT_ADD, lab=None, **more):
        return run_nbval(lab or handed_in(add), root, **options, **more)

    run.root = root
    assert run().passed("q1-check")  # the warm process is there before any test counts processes
    yield run
    if warm is not None:
        warm.close()


def test_right_answers_pass(stage):
    result = stage(Q1)
    assert (result.status, result.left_behind) == ("ok", 0)
    assert result.passed("q1-check") and result.passed("q2-check")
    assert result.cells["q1-check"].stdout == "q1: 3/3 checks passed\n"


def test_a_blank_lab_fails_every_check_with_its_error(stage):
    result = stage(lab=LAB)
    assert {name: result.cells[name].outcome for name in ("q1-check", "q2-check")} == {
        "q1-check": "failed",
        "q2-check": "failed",
    }
    assert result.cells["q1-check"].message == "NotImplementedError: "
    assert (
        "raise NotImplementedError()" in result.cells["q1-check"].traceback
        and "\x1b" not in result.cells["q1-check"].traceback
    )


def test_a_wrong_answer_gets_the_checks_own_sentence(stage):
    result = stage(ANCHOR + "def add(left, right):\n    return left - right")
    assert result.cells["q1-check"].message == "AssertionError: q1: add(1, 2) gave -1, expected 3"
    assert not result.passed("q2-check")


def test_what_an_answer_prints_does_not_matter(stage):
    noisy = RIGHT_ADD.replace(
        "    return",
        "    print('adding', left, right)\n    import sys; print('x', file=sys.stderr)\n    return",
    )
    result = stage(noisy)
    assert result.passed("q1-check") and "adding 1 2" in result.cells["q1-check"].stdout


def test_the_line_must_be_the_labs(stage):
    lab = lab_notebook(
        solution(), {"q1-check": "q1: 9/9 checks passed\n", "q2-check": "q2: 2/2 checks passed\n"}, "01_tiny"
    )
    result = stage(lab=graft(lab, dumps(handed_in()).encode())[0])
    assert result.cells["q1-check"].outcome == "failed"
    assert (
        result.cells["q1-check"].message
        == "the cell printed 'q1: 3/3 checks passed', not what the lab expects"
    )
    assert result.passed("q2-check")


SLOW = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\n"


@pytest.mark.parametrize("trouble", ["import time; time.sleep(60)\n", SLOW])
def test_a_cell_over_its_limit_is_stopped_and_later_cells_are_judged(stage, trouble):
    result = stage(ANCHOR + trouble + RIGHT_ADD, cell_timeout=1)
    assert result.cells["q1-answer"].outcome == "stopped"
    assert result.cells["q1-answer"].message == "the cell ran longer than its limit of 1 s"
    assert result.status == "ok" and result.seconds < 50


def test_plain_nbval_lets_the_same_cell_through(tmp_path):
    """The guard is there because of this: an interrupt that is swallowed makes every check an expected failure."""
    (tmp_path / "lab.ipynb").write_text(
        dumps(handed_in(ANCHOR + SLOW + "def add(left, right):\n    return 0"))
    )
    write_course(tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-cell-timeout",
        "1",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        "lab.ipynb",
    ]
    finished = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0 and "xfailed" in finished.stdout


def test_a_check_has_its_own_limit(stage):
    lab = handed_in(ANCHOR + "import time\ndef add(left, right):\n    time.sleep(60)")
    next(cell for cell in lab.cells if cell.id == "q1-check").metadata.course.timeout = 1
    next(cell for cell in lab.cells if cell.id == "q2-check").metadata.course.timeout = 1
    result = stage(lab=lab, cell_timeout=50)
    assert result.cells["q1-check"].message == "the cell ran longer than its limit of 1 s"


@pytest.mark.parametrize(
    "trouble",
    [
        "while True:\n    try:\n        while True:\n            print('still here', flush=True); time.sleep(0.01)\n"
        "    except BaseException: pass\n",
        "while True:\n    try:\n        time.sleep(60)\n    except BaseException: pass\n",
    ],
)
def test_a_cell_that_cannot_be_interrupted_is_ended(stage, trouble):
    result = stage(ANCHOR + "import time\n" + trouble, cell_timeout=1)
    assert result.cells["q1-answer"].outcome == "stopped" and result.seconds < 50
    assert result.cells["q1-check"].message.startswith("not run: an earlier cell ended")


@pytest.mark.parametrize(
    "trouble, words",
    [
        ("import os; os._exit(0)", "the Python process of the notebook ended while this cell"),
        ("import ctypes; ctypes.string_at(0)", "the Python process of the notebook ended while this cell"),
        ("import os; os.kill(os.getpid(), 9)", "the Python process of the notebook ended while this cell"),
        ("exit()", "the cell called exit() or quit()"),
    ],
)
def test_a_dead_kernel_is_noticed_and_blamed_on_its_cell(stage, trouble, words):
    result = stage(ANCHOR + trouble, cell_timeout=40)
    assert result.cells["q1-answer"].outcome == "stopped" and words in result.cells["q1-answer"].message
    assert result.cells["q1-check"].outcome == "stopped"
    assert result.status == "ok" and result.seconds < 40


@pytest.mark.parametrize("trouble", ["print('x' * 50_000_000)", "while True: print('x' * 1000)"])
def test_endless_output_is_cut(stage, trouble):
    result = stage(ANCHOR + trouble, cell_timeout=40)
    assert result.cells["q1-answer"].message == "the cell printed more than 2 MB"
    assert result.seconds < 40


def test_sys_exit_is_an_ordinary_failure(stage):
    result = stage(ANCHOR + "print('q1: 3/3 checks passed')\nimport sys; sys.exit(0)")
    assert result.cells["q1-answer"].outcome == "failed" and not result.passed("q1-check")


def test_input_does_not_wait(stage):
    result = stage(ANCHOR + "input('name? ')")
    assert "StdinNotImplementedError" in result.cells["q1-answer"].message


DAEMON = """import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 200)
        os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep({seconds})'], {{}})
    os._exit(0)
"""


def sleepers(seconds: int) -> list:
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if f"import time; time.sleep({seconds})" in " ".join(p.info["cmdline"] or [])
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="finding a daemon that hides needs Linux")
def test_a_daemon_is_found_and_ended(stage):
    result = stage(ANCHOR + DAEMON.format(seconds=91) + RIGHT_ADD)
    assert result.passed("q1-check") and result.left_behind == 1
    assert not sleepers(91)


@pytest.mark.skipif(sys.platform != "linux", reason="finding a daemon that hides needs Linux")
def test_the_whole_run_has_a_limit_and_everything_ends_with_it(stage):
    start = time.monotonic()
    result = stage(ANCHOR + DAEMON.format(seconds=92) + "time.sleep(100)", total_timeout=4)
    assert result.status == "timeout" and time.monotonic() - start < 60
    assert not result.passed("q1-check") and not sleepers(92)


def test_children_print_as_they_do_in_jupyterlab(stage):
    result = stage(ANCHOR + "import subprocess\n_ = subprocess.run(['echo', 'from a child'])")
    assert "from a child" in result.cells["q1-answer"].stdout


def test_files_beside_a_submission_mean_nothing(stage):
    files = {
        "conftest.py": "import pytest\ndef pytest_runtest_makereport(): 1 / 0",
        "pytest.ini": "[pytest]\naddopts = --collect-only\n",
    }
    for name, text in files.items():
        (stage.root / name).write_text(text)
    try:
        assert stage().passed("q1-check")
    finally:
        for name in files:
            (stage.root / name).unlink()


def test_the_environment_cannot_steer_pytest(stage, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    monkeypatch.setenv("PYTEST_PLUGINS", "nowhere")
    assert stage().passed("q1-check")


def test_what_follows_the_last_check_is_not_run():
    lab = handed_in()
    lab.cells.append(v4.new_code_cell("import time; time.sleep(99)"))
    part = judged_part(lab)
    assert part.cells[-1].id == "q2-check" and len(part.cells) == len(lab.cells) - 1
