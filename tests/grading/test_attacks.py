"""Every row of the attack table in one grading run behind the box, and in one without it.

Behind the box nothing is earned, the grader lives, and other students' grades and files stay as they are.  Without it
that holds too, except for what one account cannot keep from itself; those rows raise their flag.
"""

import csv
import hashlib
import json
import os
import re
import socket
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from utils.grading import box
from utils.grading.release import release

from . import attacks, corpus
from .attacks import BY_NOTEBOOK, BY_OWN_TEST
from .course_fixture import write_course
from .grading_run import grade

BOXED = box.level()[0] == "userns"
ROWS = 51
pytestmark = pytest.mark.slow
needs_box = pytest.mark.skipif(not BOXED, reason="these attacks are only let loose in a box")

VERIFY = """
from utils.grading.verify import Case

def q1(student, random):
    left, right = (int(number) for number in random.integers(1000, 2000, 2))
    def fresh():
        total = student.call("add", left, right, seconds=4)
        assert type(total) is int and total == left + right, f"add({left}, {right}) gave {total}"
    return [Case("fresh numbers", fresh)]
"""


class Outside:
    """What an attack must not reach: a port and a socket that listen outside of the box."""

    def __init__(self, folder: Path):
        self.calls, self.path = [], folder / f"course-{os.getpid()}.sock"
        self._listening = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self.path.unlink(missing_ok=True)
        self._listening[1].bind(str(self.path))
        self.path.chmod(0o777)
        self._listening[1].listen()
        self.port = self._listening[0].getsockname()[1]
        for one in self._listening:
            threading.Thread(target=self._listen, args=(one,), daemon=True).start()

    def _listen(self, listening: socket.socket) -> None:
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(2)
                self.calls.append(caller.recv(100))

    def close(self) -> None:
        for one in self._listening:
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.path.unlink()
        self.planted = Path(f"{self.path}.planted").exists()
        Path(f"{self.path}.planted").unlink(missing_ok=True)


class Graded:
    """One run over ``chosen`` attacks between two honest students, ann who comes first and zoe who comes last."""

    def __init__(self, root: Path, chosen: list, *more: str):
        solution = write_course(root)
        (root / "solutions" / "verify").mkdir()
        (root / "solutions" / "verify" / "01_tiny.py").write_text(VERIFY)
        lab = release(solution, execute=False).path
        submissions = root / "submissions"
        submissions.mkdir()
        outside = Outside(Path("/var/tmp"))
        for attack in chosen:
            data = attack.submission(root, outside.port, outside.path)
            (submissions / f"{attack.student}.ipynb").write_bytes(data)
        for name in ("ann", "zoe"):
            (submissions / f"{name}.ipynb").write_bytes(corpus.answers())
        self.root, self.out, self.before = root, root / "out", tree(root)
        children = set(psutil.Process().children(recursive=True))
        try:
            self.code = grade(root, lab, submissions, self.out, "--regrade", *more)
        finally:
            outside.close()
        self.left = [p for p in psutil.Process().children(recursive=True) if p not in children]
        self.calls, self.planted = outside.calls, outside.planted
        self.after = {path: value for path, value in tree(root).items() if not path.startswith("out/")}
        with open(self.out / "grades.csv", newline="") as file:
            self.rows = {row["student_id"]: row for row in csv.DictReader(file)}
        self.results = json.loads((self.out / "results.json").read_text())

    def row(self, attack) -> tuple:
        row = self.rows[attack.student]
        return row["status"], float(row["q1"]), float(row["q2"]), set(row["flags"].split())


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__"
    }


@pytest.fixture(scope="module")
def boxed(tmp_path_factory):
    return Graded(tmp_path_factory.mktemp("course"), BY_NOTEBOOK)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    chosen = [attack for attack in BY_NOTEBOOK if attack.bare]
    return Graded(tmp_path_factory.mktemp("course"), chosen, "--sandbox", "none")


def test_every_row_has_a_test():
    source = Path(__file__).with_name("test_attack_files.py").read_text()
    own = {int(number) for number in re.findall(r"def test_row_(\d+)_", source)}
    assert own == set(BY_OWN_TEST)
    assert {attack.number for attack in BY_NOTEBOOK} | own == set(range(1, ROWS + 1))


@needs_box
@pytest.mark.parametrize("attack", BY_NOTEBOOK, ids=lambda attack: f"row {attack.number:02} {attack.name}")
def test_behind_the_box_an_attack_earns_nothing(boxed, attack):
    status, q1, q2, flags = boxed.row(attack)
    assert status in attack.boxed[0].split("|") and (q1, q2) == attack.boxed[1:3], boxed.rows[attack.student]
    assert attack.boxed[3] <= flags, boxed.rows[attack.student]


@needs_box
def test_behind_the_box_the_others_and_their_files_stay_as_they_are(boxed):
    assert boxed.results["sandbox"] == "userns" and boxed.code == 1  # some are broken, nothing has changed
    assert boxed.before == boxed.after
    for name in ("ann", "zoe"):
        row = boxed.rows[name]
        assert (row["status"], row["q1"], row["q2"], row["flags"]) == ("ok", "3", "2", "")


@needs_box
def test_behind_the_box_nobody_outside_was_called(boxed):
    assert boxed.calls == []


@needs_box
def test_behind_the_box_nothing_is_left(boxed):
    assert not psutil.wait_procs(boxed.left, timeout=5)[1] and not daemons()
    homes = [Path.home(), Path("/tmp"), Path(tempfile.gettempdir())]
    assert not [home for home in homes if (home / "sitecustomize.py").exists()]


def test_what_was_planted_was_never_run(request):
    for name in ("boxed", "bare") if BOXED else ("bare",):
        assert not request.getfixturevalue(name).planted


@needs_box
def test_feedback_shows_what_a_student_wrote_and_steers_nothing(boxed):
    for path in (boxed.out / "feedback").glob("row47*"):
        text = path.read_text()
        assert not set("\x1b\x9b\x07\u202e") & set(text) or path.suffix == ".html"
        assert "<svg" not in text or path.suffix == ".txt"
        assert "<script" not in text and "<img" not in text


BARE = [attack for attack in BY_NOTEBOOK if attack.bare]


@pytest.mark.parametrize("attack", BARE, ids=lambda attack: f"row {attack.number:02} {attack.name}")
def test_without_the_box_an_attack_that_works_is_flagged(bare, attack):
    status, q1, q2, flags = bare.row(attack)
    assert (status, q2) == (attack.bare[0], attack.bare[2]), bare.rows[attack.student]
    assert attack.bare[1] in (None, q1) and attack.bare[3] <= flags, bare.rows[attack.student]


def test_without_the_box_the_run_says_so_and_the_alarm_is_raised(bare):
    assert bare.results["sandbox"] == "none" and bare.code == 4
    assert bare.calls  # row 42 cannot be stopped
    deleted = [name for name in bare.before if name not in bare.after]
    assert any(name.startswith("submissions/") for name in deleted)  # nor can row 41


def test_without_the_box_the_others_keep_their_grades(bare):
    for name in ("ann", "zoe"):
        row = bare.rows[name]
        assert (row["status"], row["q1"], row["q2"]) == ("ok", "3", "2"), row


def test_without_the_box_no_daemon_is_left(bare):
    assert not psutil.wait_procs(bare.left, timeout=5)[1] and not daemons()


def daemons() -> list[str]:
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if re.search(r"time\.sleep\(9[78]\)", line)]


def test_all_attacks_have_names_of_their_own():
    names = [attack.student for attack in BY_NOTEBOOK]
    assert len(names) == len(set(names)) and attacks.STOPPED[1] == 0
