import doctest
import os
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.grading import collect as module
from utils.grading import gradebook, late, suspicion
from utils.grading.collect import collect, read_roster, safe_id, student_of
from utils.grading.errors import GradingError
from utils.grading.late import LatePolicy, read_policy
from utils.grading.submission import LARGEST_BYTES
from utils.grading.suspicion import fingerprint, suspicious_words


@pytest.mark.parametrize("tested", [module, late, suspicion, gradebook])
def test_examples_in_the_docstrings(tested):
    assert doctest.testmod(tested).failed == 0


@pytest.mark.parametrize(
    "path, student",
    [
        ("alice.ipynb", "alice"),
        ("alice/anything.ipynb", "alice"),
        ("submitted/alice/01_lab/01_lab.ipynb", "alice"),
        ("alice_01_lab.ipynb", "alice"),
        ("01_lab_alice (2).ipynb", "alice"),
        ("01_lab - alice.ipynb", "alice"),
        ("doejane_12345_678910_01_lab-3.ipynb", "doejane"),
        ("doejane_LATE_12345_678910_01_lab.ipynb", "doejane"),
        ("Jane Doe_4711_assignsubmission_file_/01_lab.ipynb", "Jane-Doe_4711"),
        ("Jane Doe_4711_assignsubmission_file_01_lab.ipynb", "Jane-Doe_4711"),
        ("assignment_12_export/submission_345/01_lab.ipynb", "submission_345"),
        ("team-1.ipynb", "team-1"),
        ("01_lab_team-1.ipynb", "team-1"),
        ("team-1_01_lab-2.ipynb", "team-1"),
        ("01_lab-2.ipynb", "01_lab-2"),
    ],
)
def test_the_student_is_in_the_path(path, student):
    assert student_of(tuple(path.split("/")), "01_lab") == student


def test_the_table_in_the_docs_says_whose_file_it_is():
    text = (Path(__file__).parents[2] / "docs" / "grading.md").read_text(encoding="utf-8")
    section = text.split("## Whose file it is")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*`.*`.*) \| `(.*)` \|$", section, re.MULTILINE)
    assert len(rows) >= 8
    for files, student in rows:
        for path in re.findall(r"`([^`]+)`", files):
            assert student_of(tuple(path.split("/")), "01_all_reduce") == student, path


@given(st.text(min_size=1, max_size=70))
def test_an_id_is_always_safe_in_a_file_name_and_in_a_table(text):
    made = safe_id(text)
    assert (
        1 <= len(made) <= 64
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in made)
        and made[0].isalnum()
    )


def test_different_names_stay_different():
    assert len({safe_id(text) for text in ("a/b", "a:b", "a?b", "../a", "=a", "한")}) == 6


@pytest.mark.parametrize(
    "names",
    [
        ("team-1", "team-2", "team-3"),
        ("2026-101", "2026-102"),
        ("Jane Doe", "Jane-Doe"),
        ("Jane-Doe", "Jane Doe", "Jane  Doe"),
        ("a" * 60, "a" * 61, "a b" * 30),
        (os.fsdecode(b"jos\xe9"), os.fsdecode(b"jos\xe8")),
    ],
)
def test_no_student_stands_for_another(tmp_path, names):
    for name in names:
        (tmp_path / f"{name}.ipynb").write_text("{}")
    found = collect(tmp_path, "01_lab")
    assert len(found) == len({one.student for one in found}) == len(names)
    assert not [one for one in found if one.superseded]
    for one in found:
        one.source.encode("utf-8")  # every name can be written into the table


def test_a_damaged_archive_is_a_sentence(tmp_path):
    place = tmp_path / "all.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("ann.ipynb", "{}")
    place.write_bytes(place.read_bytes().replace(b"PK\x01\x02", b"XXXX"))
    with pytest.raises(GradingError, match="zip file is damaged"):
        collect(place, "01_lab")


def test_the_newest_file_of_a_student_counts(tmp_path):
    for name, when in (("ann.ipynb", 300), ("ann (1).ipynb", 100), ("ann (2).ipynb", 200)):
        (tmp_path / name).write_bytes(name.encode())
        os.utime(tmp_path / name, (when, when))
    (found,) = collect(tmp_path, "01_lab")
    assert (found.student, found.source, found.modified) == ("ann", "ann.ipynb", 300)
    assert found.superseded == ("ann (1).ipynb", "ann (2).ipynb")


def test_what_is_no_submission_is_passed_over(tmp_path):
    for name in (
        "ann.ipynb",
        ".ipynb_checkpoints/ann-checkpoint.ipynb",
        "__MACOSX/x.ipynb",
        "conftest.py",
        "notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [one.source for one in collect(tmp_path, "01_lab")] == ["ann.ipynb"]


def test_a_link_and_a_pipe_are_not_followed(tmp_path):
    (tmp_path / "ann.ipynb").write_text("ann's work")
    (tmp_path / "bob.ipynb").symlink_to(tmp_path / "ann.ipynb")
    os.mkfifo(tmp_path / "eve.ipynb")
    found = {one.student: one for one in collect(tmp_path, "01_lab")}
    assert found["ann"].data == b"ann's work"
    for name in ("bob", "eve"):
        assert found[name].data == b"" and found[name].flags == ("link_or_unreadable",)


def test_a_zip_file_is_read_in_memory(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("class/ann/lab.ipynb", "ann")
        archive.writestr("../../evil.ipynb", "evil")
        archive.writestr("/abs/olute.ipynb", "absolute")
        archive.writestr("bomb.ipynb", b"0" * (LARGEST_BYTES + 10))
        link = zipfile.ZipInfo("link.ipynb")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    found = {one.student: one for one in collect(tmp_path / "all.zip", "01_lab")}
    assert len(found["bomb"].data) == LARGEST_BYTES + 1 and found["link"].flags == ("link_or_unreadable",)
    assert found["evil"].data == b"evil"
    assert (
        sorted(path.name for path in tmp_path.iterdir()) == ["all.zip"]
        and not (tmp_path.parent / "evil.ipynb").exists()
    )


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("text")])
def test_a_place_without_submissions_is_a_sentence(tmp_path, make):
    make(tmp_path / "in")
    with pytest.raises(GradingError, match="Give the folder that holds the submissions"):
        collect(tmp_path / "in", "01_lab")


def test_rosters(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("\ufeffname,Student_ID\nAnn,a1\nBen,b2\n\n")
    assert read_roster(path) == ["a1", "b2"]
    path.write_text("a1\nb2\n")
    assert read_roster(path) == ["a1", "b2"]
    path.write_text("")
    with pytest.raises(GradingError, match="the roster is empty"):
        read_roster(path)
    path.write_bytes("student_id\nJosé\n".encode("latin-1"))
    with pytest.raises(GradingError, match="not UTF-8 text"):
        read_roster(path)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "the first line must be student_id,question,score,comment"),
        ("student_id,score\nann,1\n", "the first line must be"),
        ("student_id,question,score,comment\nann,q1,much,\n", "line 2: the score 'much' is not a number"),
        ("student_id,question,score,comment\nann,q1,nan,\n", "the score 'nan' is not a number"),
        ("student_id,question,score,comment\nann,q1,inf,\n", "the score 'inf' is not a number"),
        ("student_id,question,score,comment\nann,q1\n", "the score '' is not a number"),
        ("student_id,question,score,comment\n\nann,q9,1,\n", "line 3: there is no question 'q9'. There are: q1, q2"),
    ],
)
def test_overrides_that_cannot_be_meant_are_a_sentence(tmp_path, text, words):
    (tmp_path / "overrides.csv").write_text(text)
    with pytest.raises(GradingError, match=words):
        gradebook.read_overrides(tmp_path / "overrides.csv", ["q1", "q2"])


def test_overrides(tmp_path):
    (tmp_path / "overrides.csv").write_text("comment,student_id,question,score\n,Ann Lee, q1,2.5\n")
    assert gradebook.read_overrides(tmp_path / "overrides.csv", ["q1"]) == [
        {"student_id": "Ann-Lee", "question": "q1", "score": "2.5", "comment": ""}
    ]


def test_what_has_no_end_is_not_read_to_see_whether_it_changed(tmp_path):
    (tmp_path / "ann.ipynb").write_text("ann's")
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "endless.ipynb").symlink_to("/dev/zero")
    paths = list(tmp_path.iterdir())
    before = gradebook.fingerprint_files(paths)
    assert gradebook.fingerprint_files(paths) == before
    (tmp_path / "ann.ipynb").write_text("eve's")
    assert gradebook.fingerprint_files(paths) != before


@pytest.mark.parametrize("seconds, lost", [(0, 0), (1, 0.1), (86_400, 0.1), (86_401, 0.2), (10**7, 0.5)])
def test_a_day_begun_counts(seconds, lost):
    assert LatePolicy(0.0, 0.1, 0.5).penalty(seconds) == pytest.approx(lost)


def test_late_policies():
    assert read_policy(None, "zero").late_seconds(1e12) == 0
    assert read_policy("1970-01-01T00:00:00Z", "zero").penalty(1) == 1
    assert read_policy("1970-01-01T01:00:00+01:00", "none").late_seconds(90) == 90


def test_the_same_code_with_other_names_is_the_same():
    one = (
        "def f(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
    )
    other = "def summe(xs):  # my own\n    s = 0\n    for x in xs:\n\n        s += x\n    return s\n"
    assert fingerprint(one) == fingerprint(other) != fingerprint(one.replace("+=", "-="))
    assert fingerprint("not python(") == fingerprint("not  python (")


@pytest.mark.parametrize(
    "source",
    [
        "x = 1" + "+1" * 2_900,  # parsed, but too deep to be printed
        "x = " + "-" * 2_900 + "1",
        "x = a" + ".b" * 2_900,
        "x = 0x" + "f" * 9_000,  # more digits than Python prints
        "x = '\ud800'",
        "x = 1\0",
        "x = " + "(" * 9_000,
    ],
)
def test_no_code_is_too_odd_to_be_compared(source):
    assert fingerprint(source) == fingerprint(source) != fingerprint("x = 1")


def test_suspicious_words_are_whole_words():
    assert suspicious_words("reopen(x); resolutions = 1; my_socketry = 2") == []
    assert suspicious_words("open('../solutions/x'); os.kill(1, 9)") == ["open(", "os.kill", "solutions/"]


@pytest.mark.parametrize(
    "files, students",
    [
        (["ann/lab.ipynb", "eve/ann_1_2_lab.ipynb"], ["ann", "eve"]),
        (["ann/lab.ipynb", "eve/ann_1_assignsubmission_file_/lab.ipynb"], ["ann", "eve"]),
        (["ann/lab.ipynb", "eve/submitted/ann/01_lab/01_lab.ipynb"], ["ann", "eve"]),
        (["a_7_assignsubmission_file_/x.ipynb", "e_8_assignsubmission_file_/a_7_1_x.ipynb"], ["a_7", "e_8"]),
        (
            [
                "assignment_1_export/submission_3/x.ipynb",
                "assignment_1_export/submission_4/submission_3/x.ipynb",
            ],
            ["submission_3", "submission_4"],
        ),
        (["class/ann/lab.ipynb", "class/eve/ann.ipynb"], ["ann", "eve"]),
        (["class/ann_1_2_lab.ipynb", "class/eve_3_4_lab.ipynb"], ["ann", "eve"]),
        (["class/ann_1_2_lab.ipynb"], ["ann"]),
        (["ann/lab.ipynb", "ann/lab (1).ipynb"], ["ann"]),
    ],
)
def test_nobody_hands_in_for_somebody_else(tmp_path, files, students):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [one.student for one in collect(tmp_path, "01_lab")] == students


def test_what_the_platform_calls_late_is_late(tmp_path):
    for name in ("ann_LATE_1_2_lab.ipynb", "ben_1_2_lab.ipynb"):
        (tmp_path / name).write_text("{}")
    assert [(one.student, one.flags) for one in collect(tmp_path, "01_lab")] == [
        ("ann", ("late",)),
        ("ben", ()),
    ]
