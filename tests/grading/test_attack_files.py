"""The rows of the attack table that are not one notebook: files beside it, names, archives, dates, and the grader's own time.

The table itself is in ``attacks.py``; what is called a row here is a row there.
"""

import csv
import json
import os
import re
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from utils.checks import all_reduce
from utils.grading import graft as graft_module
from utils.grading import plain_data, routed, suspicion
from utils.grading.graft import graft
from utils.grading.messages import StudentError
from utils.grading.plain_data import BadData
from utils.grading.student import Student
from utils.grading.verify import cases_from_checks

from . import corpus
from .grading_run import grade, table
from .test_attacks import VERIFY
from .test_graft import LAB

ROOT = Path(__file__).resolve().parents[2]
LONG = (
    "def add(left, right):\n    total = left\n    for _ in range(abs(right)):\n"
    "        total += 1 if right > 0 else -1\n    something = [total]\n    for value in something:\n"
    "        total = value\n    return total\n"
)
EVIL = "import utils.checks.tiny as t\nt.q1 = t.q2 = lambda *a: 1 / 0\nopen({mark!r}, 'w').close()\n"


def course(root: Path) -> Path:
    """Write the tiny course with a verify stage; return the lab."""
    from .course_fixture import write_course

    solution = write_course(root)
    (root / "solutions" / "verify").mkdir()
    (root / "solutions" / "verify" / "01_tiny.py").write_text(VERIFY)
    return __import__("utils.grading.release", fromlist=["release"]).release(solution, execute=False).path


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """One run over a folder that holds far more than notebooks, in which nobody's work is wrong but for the formula's."""
    root = tmp_path_factory.mktemp("course")
    lab, place, mark = course(root), root / "in", root / "mark"
    place.mkdir()
    evil = EVIL.format(mark=str(mark))
    for name in (
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "torch.py",
        "utils.py",
        "json.py",
        "nbval.py",
    ):
        for folder in (place, place / "eve"):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(evil)
    (place / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (place / "setup.cfg").write_text("[tool:pytest]\naddopts = --collect-only\n")
    (place / "evil.pth").write_text(f"import os; open({str(mark)!r}, 'w')\n")
    right = corpus.answers()
    for name in ("ann.ipynb", "eve/ann_1_2_01_tiny.ipynb", "=cmd|'c calc'!A0.ipynb", 'a,"b"\nc.ipynb'):
        (place / name).write_bytes(right)
    (place / "copy1.ipynb").write_bytes(corpus.answers(LONG))
    (place / "copy2.ipynb").write_bytes(corpus.answers(LONG.replace("total", "summe").replace("value", "x")))
    (place / "liar.ipynb").symlink_to(place / "ann.ipynb")
    early = time.mktime((2020, 1, 1, 0, 0, 0, 0, 0, 0))
    os.utime(place / "copy1.ipynb", (early, early))
    code = grade(root, lab, place, root / "out", "--due", "2021-01-01T00:00Z", "--late", "zero")
    return root, code, table(root / "out"), mark


def test_row_30_files_that_steer_python_or_pytest_mean_nothing(graded):
    _, code, rows, mark = graded
    assert code == 1 and not mark.exists()  # 1: the link cannot be read
    assert (rows["ann"]["q1"], rows["ann"]["q2"], rows["eve"]["q1"]) == ("3", "2", "3")


def test_row_31_files_named_like_modules_mean_nothing(graded):
    _, _, rows, _ = graded
    assert rows["eve"]["status"] == "ok" and rows["eve"]["raw_score"] == "5"


def test_row_46_a_copied_answer_is_flagged_for_a_human(graded):
    root, _, rows, _ = graded
    for name in ("copy1", "copy2"):
        assert "identical_answers" in rows[name]["flags"] and rows[name]["q1"] == "3"
    assert "identical_answers" not in rows["ann"]["flags"]
    students = {
        one["student"]: one for one in json.loads((root / "out" / "results.json").read_text())["students"]
    }
    assert students["copy1"]["identical_to"] == ["q1-answer as in copy2"]


def test_row_48_names_are_safe_in_tables_and_as_files(graded):
    root, _, rows, _ = graded
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) for name in rows)
    text = (root / "out" / "grades.csv").read_text()
    assert not [cell for row in csv.reader(text.splitlines()) for cell in row if cell[:1] in tuple("=+-@\t")]
    assert len(rows) == 7 and len(list((root / "out" / "feedback").iterdir())) == 14


def test_row_49_links_are_not_followed(graded):
    _, _, rows, _ = graded
    assert (rows["liar"]["status"], rows["liar"]["score"]) == ("unreadable", "0")
    assert "link_or_unreadable" in rows["liar"]["flags"]


def test_row_49_archives_are_read_in_memory_and_within_limits(tmp_path):
    lab = course(tmp_path)
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped.ipynb", corpus.answers())
        archive.writestr("bomb.ipynb", b"0" * 30_000_000)
        archive.writestr("conftest.py", "1 / 0")
    assert grade(tmp_path, lab, tmp_path / "all.zip", tmp_path / "out", "--nbval-only") == 1
    rows = table(tmp_path / "out")
    assert {name: row["status"] for name, row in rows.items()} == {"bomb": "too_large", "escaped": "ok"}
    assert not [
        path
        for place in (tmp_path, tmp_path.parent, tmp_path.parent.parent)
        for path in place.glob("escaped*")
    ]


def test_row_51_a_date_that_a_student_can_set_is_marked(graded):
    _, _, rows, _ = graded
    assert float(rows["copy1"]["score"]) == 5 and rows["copy1"]["late_seconds"] == "0"
    assert "time_untrusted" in rows["copy1"]["flags"]  # early enough, if it is true
    assert rows["ann"]["score"] == "0" and {"late", "time_untrusted"} <= set(rows["ann"]["flags"].split())


def test_row_45_a_library_call_is_no_answer(server):
    source = "import torch.distributed as dist\ndef all_reduce(tensor):\n    dist.all_reduce(tensor)\n"
    student = Student(server, [["q3-answer", source, True]], ROOT)
    for case in cases_from_checks(all_reduce)["q3"](student, np.random.default_rng(1)):
        with pytest.raises(AssertionError, match="'all_reduce' is not part of this exercise"):
            case.run()


# Beyond the table: a text that costs the grader itself time or memory stops the whole class.


def test_a_million_empty_lines_are_read_at_once():
    data = corpus.answers("\n" * 1_000_000 + corpus.WRONG)
    assert graft(LAB, data)[1].status == "ok"
    assert (
        r"\s" not in graft_module._LEFTOVER.pattern
    )  # from each blank line it would search to the end: for hours


def test_a_huge_answer_is_not_parsed_by_the_grader(monkeypatch):
    def refuse(source):
        raise AssertionError("a syntax tree of this would take gigabytes")

    monkeypatch.setattr(suspicion.ast, "parse", refuse)
    assert suspicion.fingerprint("x = 1\n" * 100_000) == suspicion.fingerprint("x=1\n" * 100_000)


def test_a_message_of_many_small_things_is_refused(monkeypatch):
    import socket
    import struct

    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = b'{"a": [' + b"[]," * 40 + b"1]}"
        for limit, refused in ((1000, False), (50, True)):
            monkeypatch.setattr(plain_data, "MOST_ITEMS", limit)
            theirs.sendall(struct.pack("!I", len(data)) + data)
            if refused:
                with pytest.raises(BadData, match="more than 50 items"):
                    plain_data.receive(ours)
            else:
                assert len(plain_data.receive(ours)["a"]) == 41


def test_ranks_cannot_fill_the_graders_memory(server, monkeypatch):
    source = (
        "import torch, torch.distributed as dist\ndef floods(x):\n    if dist.get_rank():\n"
        "        works = [dist.isend(torch.zeros(100_000), 0) for _ in range(20)]\n"
        "    dist.recv(x, 1 - dist.get_rank(), tag=9)\n"
    )
    student = Student(server, [["q1-answer", source, True]], ROOT)
    monkeypatch.setattr(routed, "MOST_BYTES", 1_000_000)
    with pytest.raises(StudentError, match="the ranks sent more than 1 MB"):
        student.on_ranks("floods", [[np.zeros(1, "float32")]] * 2)


def test_an_empty_array_is_not_close_to_everything(server):
    source = (
        "import torch, torch.distributed as dist\ndef server_round(weights, gradient, learning_rate):\n"
        "    weights.data = torch.empty(0, weights.shape[-1], dtype=weights.dtype)\n"
        "    if dist.get_rank():\n        gradient(weights)\n"
        "def elements_through_server(p, w):\n    return 0\ndef elements_through_ring_rank(p, n):\n    return 0\n"
    )
    assert np.allclose(np.empty((0, 3)), np.ones(3))  # numpy's opinion
    student = Student(server, [["q6-answer", source, True]], ROOT)
    for case in cases_from_checks(all_reduce)["q6"](student, np.random.default_rng(1)):
        with pytest.raises(AssertionError):
            case.run()
