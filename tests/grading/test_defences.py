"""What each defence is for: with it switched off, the attack that it stops succeeds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest

from utils.checks import all_reduce
from utils.grading import box, gradebook, outputs, sandbox
from utils.grading.messages import StudentError
from utils.grading.nbval_stage import run_nbval
from utils.grading.release import release
from utils.grading.sandbox import choose
from utils.grading.student import Student
from utils.grading.verify import cases_from_checks

from . import attacks, corpus, test_attacks
from .attacks import BY_NOTEBOOK
from .course_fixture import write_course
from .test_attacks import BOXED, Graded, needs_box

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def chosen(*names: str) -> list:
    return [attack for attack in BY_NOTEBOOK if attack.name in names]


def test_without_the_verify_stage_the_kernels_word_is_all_there_is(tmp_path):
    cheats = chosen("replaces_the_check", "is_equal_to_everything", "patches_the_session", "knows_the_inputs")
    run = Graded(tmp_path, cheats, "--nbval-only")
    assert {run.row(attack)[1] for attack in cheats} == {3.0}


def test_with_inputs_that_are_known_the_answers_can_be_too(tmp_path, monkeypatch):
    known = test_attacks.VERIFY.replace(
        "(int(number) for number in random.integers(1000, 2000, 2))", "(10, 5)"
    )
    monkeypatch.setattr(test_attacks, "VERIFY", known)
    (attack,) = chosen("knows_the_inputs")
    assert Graded(tmp_path, [attack]).row(attack)[1] == 3.0


def test_without_the_graft_a_check_says_what_the_student_wrote(tmp_path):
    write_course(tmp_path)
    raw = nbformat.reads(corpus.MISTAKES["check_edited"][0].decode(), as_version=4)
    assert run_nbval(raw, tmp_path).passed("q1-check")


def test_without_a_list_of_calls_the_library_is_an_answer(server, monkeypatch):
    source = "import torch.distributed as dist\ndef all_reduce(tensor):\n    dist.all_reduce(tensor)\n"
    student = Student(server, [["q3-answer", source, True]], ROOT)
    cases = cases_from_checks(all_reduce)["q3"](student, np.random.default_rng(1))
    with pytest.raises(AssertionError, match="not part of this exercise"):
        cases[0].run()
    monkeypatch.delattr(all_reduce, "MAY_CALL")
    cases_from_checks(all_reduce)["q3"](student, np.random.default_rng(1))[0].run()


def test_without_the_routers_own_list_a_student_writes_the_list(server, monkeypatch):
    source = (
        "import torch.distributed as dist\ndef total(x):\n    group = dist.distributed_c10d._get_default_group()\n"
        "    group._line.allowed = ('all_reduce',)\n    dist.all_reduce(x)\n    return x\n"
    )
    student, given = Student(server, [["q1-answer", source, True]], ROOT), [[np.ones(2, "float32")]] * 2
    with pytest.raises(StudentError, match="not part of this exercise"):
        student.on_ranks("total", given)
    monkeypatch.setattr("utils.grading.routed_calls._check_allowed", lambda *a: None)
    assert student.on_ranks("total", given).values[0].tolist() == [2, 2]


@needs_box
def test_without_hiding_the_other_folders_a_socket_there_is_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "_elsewhere", list)
    run = Graded(tmp_path, chosen("calls_out"))
    assert run.calls == [b"run this outside"]


def test_without_a_copy_for_each_run_one_student_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(gradebook, "snapshot", lambda root: None)
    (attack,) = chosen("plants_code_in_the_course")
    run = Graded(tmp_path, [attack], "--sandbox", "none", "--jobs", "1")  # so that zoe comes after the attacker
    assert run.rows["zoe"]["score"] == "0"


ENDS_THE_GRADER = """
import glob, os, signal
for place in glob.glob('/proc/[0-9]*/cmdline'):
    try:
        words = open(place, 'rb').read().split(b'\\0')
        if b'grade' in words and b'{root}' in words:
            os.kill(int(place.split('/')[2]), signal.SIGKILL)
    except OSError:
        pass
"""


@pytest.mark.parametrize("level", ["userns", "none"])
def test_only_the_box_keeps_the_grader_alive(tmp_path, level):
    """Row 22 to its end: nothing can save a process from its own account, and then nothing is written."""
    if level == "userns" and not BOXED:
        pytest.skip("no box on this machine")
    lab = release(write_course(tmp_path), execute=False).path
    (tmp_path / "in").mkdir()
    code = ENDS_THE_GRADER.replace("{root}", str(tmp_path)) + corpus.WRONG
    (tmp_path / "in" / "eve.ipynb").write_bytes(corpus.answers(code))
    command = [
        sys.executable,
        "-m",
        "utils.cli",
        "grade",
        str(lab),
        str(tmp_path / "in"),
        "-o",
        str(tmp_path / "out"),
    ]
    command += ["--root", str(tmp_path), "--sandbox", level, "--i-know", "--nbval-only"]
    (tmp_path / "tmp").mkdir()  # a grader that was ended leaves its folders
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120, env=environment)
    survived = level == "userns"
    assert (ran.returncode == 0) == survived == (tmp_path / "out" / "grades.csv").exists(), ran.stderr


PLANTS_ONE_FILE = "open('{root}/sitecustomize.py', 'w').write('')\n" + corpus.WRONG


@pytest.mark.parametrize("alarm", [True, False])
def test_without_the_alarm_planted_code_goes_unnoticed(tmp_path, monkeypatch, alarm, capsys):
    if not alarm:
        monkeypatch.setattr(gradebook, "installed", lambda root: "")
    run = Graded(tmp_path, [attacks.Attack(32, "plants_one_file", PLANTS_ONE_FILE)], "--sandbox", "none")
    assert run.code == (4 if alarm else 0) and run.rows["zoe"]["score"] == "5"
    assert ("Python files in the course's folder" in capsys.readouterr().err) == alarm


INSIDE = """
import json, os, pty
print(json.dumps({
    "terminals": os.listdir("/dev/pts"), "own terminal": os.ttyname(pty.openpty()[1]),
    "first to go": open("/proc/self/oom_score_adj").read().strip(),
    "data": [top for top in ("/run", "/var", "/srv", "/opt", "/mnt", "/home") if os.path.isdir(top) and os.listdir(top)],
}))
"""


@needs_box
def test_the_box_has_no_service_of_the_machine_and_no_terminal_but_its_own(tmp_path):
    walls, _ = choose("userns", ROOT)
    (tmp_path / "work").mkdir()
    command = walls.wrap([sys.executable, "-S", "-c", INSIDE], tmp_path / "work")
    somebodys = os.openpty()  # there is at least one terminal outside
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for handle in somebodys:
        os.close(handle)
    kept = {"/" + place.split("/")[1] for place in walls.keep} | {"/" + str(tmp_path).split("/")[1]}
    said = json.loads(ran.stdout)
    assert (said["terminals"], said["own terminal"], said["first to go"]) == (["ptmx"], "/dev/pts/0", "1000")
    assert set(said["data"]) <= kept


@pytest.mark.skipif(shutil.which("unshare") is None, reason="nothing to ask")
def test_a_box_is_made_where_the_system_allows_one():
    """Without this a box that does not work would only skip its tests."""
    asked = subprocess.run(["unshare", "-Urmnpif", "true"], capture_output=True, text=True, check=False)
    assert (asked.returncode == 0) == BOXED, asked.stderr or box.level()


def test_text_for_a_terminal_holds_no_commands_for_it():
    assert outputs.printable("a\x1b[2J\x9b1m\u202eb\n\t") == "a\ufffd[2J\ufffd1m\ufffdb\n\t"
