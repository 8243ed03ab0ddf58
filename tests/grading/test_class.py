"""A whole class in one run: every case of the corpus gets what its name says."""

import argparse
import hashlib
import html.parser
import json
import os
import warnings
from pathlib import Path

import psutil
import pytest

from utils.grading import box
from utils.grading.commands import add_grade_arguments, run_grade
from utils.grading.release import release

from . import corpus
from .course_fixture import write_course
from .grading_run import grade, table
from .test_graft import LAB

VERIFY = """
from utils.grading.verify import Case

def q1(student, random):
    def pair(low, high):
        left, right = (int(number) for number in random.integers(low, high, 2))
        def check():
            total = student.call("add", left, right)
            assert type(total) is int and total == left + right, f"add({left}, {right}) gave {total}"
        return check
    return [Case("small numbers", pair(20, 40)), Case("negative numbers", pair(-40, -20)),
            Case("large numbers", pair(1000, 2000)), Case("huge numbers", pair(10**6, 10**7), hidden=True)]

def q2(student, random):
    number = int(random.integers(20, 40))
    def check():
        assert student.call("double", number) == 2 * number
    return [Case("a number", check)]
"""
LEVEL, REASON = box.level()
pytestmark = pytest.mark.slow
if LEVEL != "userns":  # the class has real attacks in it: outside a box they would meet this machine
    UNTESTED = f"NOT TESTED: whole classes with attacks, because there is no box on this machine ({REASON})"
    warnings.warn(UNTESTED, stacklevel=1)
    pytest.skip(UNTESTED, allow_module_level=True)


def course_with_verify(root: Path) -> Path:
    solution = write_course(root)
    (root / "solutions" / "verify").mkdir()
    (root / "solutions" / "verify" / "01_tiny.py").write_text(VERIFY)
    return release(solution, execute=False).path


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


CASES = corpus.HONEST | corpus.MISTAKES | corpus.BROKEN | corpus.RUNAWAY


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The results of one run over the whole corpus, and the course's files before and after."""
    root = tmp_path_factory.mktemp("course")
    lab = course_with_verify(root)
    assert json.loads(lab.read_text())["metadata"]["course"]["lab_version"] == LAB.metadata.course.lab_version
    submissions = root / "submissions"
    submissions.mkdir()
    for name, case in CASES.items():
        (submissions / f"{name}.ipynb").write_bytes(case[0])
    before = tree(root)
    code = grade(root, lab, submissions, root / "out", "--self-check")
    after = {path: value for path, value in tree(root).items() if not path.startswith(str(root / "out"))}
    return root, code, before, after


def test_the_run_says_that_some_are_broken_and_changes_nothing(graded):
    _, code, before, after = graded
    assert code == 1 and before == after


@pytest.mark.parametrize("name", CASES)
def test_a_case_gets_what_its_name_says(graded, name):
    row, (status, q1, q2, flags) = table(graded[0] / "out")[name], CASES[name][1]
    assert (row["status"], float(row["q1"]), float(row["q2"])) == (status, q1, q2), row
    assert flags <= set(row["flags"].split()), row


def test_no_daemon_was_left(graded):
    marked = [
        p for p in psutil.process_iter(["cmdline"]) if "time.sleep(93)" in " ".join(p.info["cmdline"] or [])
    ]
    assert not marked


def test_each_student_has_feedback_that_runs_nothing(graded):
    class Active(html.parser.HTMLParser):
        found = []

        def handle_starttag(self, tag, attrs):
            if tag in ("script", "iframe", "object", "svg", "img", "link") or any(
                key.startswith("on") for key, _ in attrs
            ):
                self.found.append(tag)

    folder = graded[0] / "out" / "feedback"
    assert (
        len(list(folder.glob("*.html"))) == len(list(folder.glob("*.txt"))) == len(table(graded[0] / "out"))
    )
    for path in folder.glob("*.html"):
        parser = Active()
        parser.feed(path.read_text())
        assert not parser.found, path


def test_feedback_says_what_failed_but_not_what_is_hidden(graded):
    text = (graded[0] / "out" / "feedback" / "fails_q1.txt").read_text()
    assert "q1: add(1, 2) gave 0, expected 3" in text and "Hint: add means plus" in text
    partly = (graded[0] / "out" / "feedback" / "partly_q1.txt").read_text()
    assert "passed  small numbers" in partly and "failed  large numbers: add(" in partly
    assert "failed  huge numbers\n" in partly and "q1: 1.5 of 3" in partly


def test_the_results_say_how_they_came_about(graded):
    content = json.loads((graded[0] / "out" / "results.json").read_text())
    assert content["sandbox"] == "userns"
    assert content["verified"] and type(content["seed"]) is int and not content["interrupted"]
    assert set(content["tools"]) == {"nbval", "nbclient", "nbformat", "ipykernel", "pytest"}


@pytest.fixture
def small(tmp_path):
    """A course with three good submissions."""
    lab = course_with_verify(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("ann", "ben"):
        (folder / f"{name}.ipynb").write_bytes(corpus.answers())
    return tmp_path, lab, folder


def test_a_regrade_takes_what_is_known_and_gives_the_same_bytes(small, monkeypatch):
    root, lab, folder = small
    assert grade(root, lab, folder, root / "out") == 0
    first = (root / "out" / "grades.csv").read_bytes()
    monkeypatch.setattr("utils.grading.batch.grade_submission", lambda *a: pytest.fail("graded again"))
    assert grade(root, lab, folder, root / "out") == 0
    assert (root / "out" / "grades.csv").read_bytes() == first


def test_a_bad_neighbour_changes_nothing_for_the_others(small):
    root, lab, folder = small
    grade(root, lab, folder, root / "alone")
    for name in ("cut_off", "sleeps_q1", "crash_q1_others_ok"):
        (folder / f"z_{name}.ipynb").write_bytes(CASES[name][0])
    assert grade(root, lab, folder, root / "together") == 1
    alone, together = table(root / "alone"), table(root / "together")
    assert {name: together[name] for name in alone} == alone
    for name in ("ann.html", "ann.txt"):
        assert (root / "alone" / "feedback" / name).read_bytes() == (
            root / "together" / "feedback" / name
        ).read_bytes()


REPLACES_THE_CHECK = f"""
from utils.checks import tiny
tiny.q1 = lambda *a: print("q1: 3/3 checks passed")
try:
    open(tiny.__file__, "w").write("def q1(add): pass")
except OSError:
    pass
{corpus.WRONG}"""


def test_of_ten_students_three_bad_ones_change_nothing_for_the_other_seven(tmp_path):
    """A runaway, a damaged file and an attacker beside seven others, whose every byte is as without them."""
    lab = course_with_verify(tmp_path)
    good = ["passes_all", "blank", "fails_q1", "blank_q2", "partly_q1", "helper_cell", "warns"]
    bad = {
        "a_runaway": CASES["swallows_interrupt_q1"][0],
        "m_damaged": CASES["cut_off"][0],
        "z_attacker": corpus.answers(REPLACES_THE_CHECK),
    }
    for folder, names in (("seven", []), ("ten", list(bad)), ("one", [])):
        (tmp_path / folder).mkdir()
        for name in good if folder != "one" else good[4:5]:
            (tmp_path / folder / f"{name}.ipynb").write_bytes(CASES[name][0])
        for name in names:
            (tmp_path / folder / f"{name}.ipynb").write_bytes(bad[name])
        code = grade(tmp_path, lab, tmp_path / folder, tmp_path / f"out-{folder}", "--seed", "7")
        assert code == (1 if names else 0)
    for alone in ("seven", "one"):
        expected, found = results(tmp_path / f"out-{alone}"), results(tmp_path / "out-ten")
        assert len(expected) == (7 if alone == "seven" else 1)
        assert {name: found[name] for name in expected} == expected
    rows = table(tmp_path / "out-ten")
    assert {name: rows[name]["status"] for name in bad} == {
        "a_runaway": "timeout",
        "m_damaged": "unreadable",
        "z_attacker": "ok",
    }
    assert {rows[name]["q1"] for name in bad} == {"0"}


def results(out: Path) -> dict[str, tuple]:
    """All that is written about each student, as bytes; of ``results.json`` without the seconds that it took."""
    lines = (out / "grades.csv").read_bytes().splitlines()
    entries = json.loads((out / "results.json").read_text())["students"]
    return {
        entry["student"]: (
            next(line for line in lines if line.startswith(entry["student"].encode() + b",")),
            *((out / "feedback" / f"{entry['student']}{end}").read_bytes() for end in (".txt", ".html")),
            json.dumps(entry | {"seconds": None}, sort_keys=True),
        )
        for entry in entries
    }


def test_roster_lateness_overrides_and_platforms(small):
    root, lab, folder = small
    os.utime(folder / "ben.ipynb", (2_000_000_000, 2_000_000_000))
    (root / "roster.csv").write_text("name,student_id\nAnn,ann\nZoe,zoe\n")
    (root / "overrides.csv").write_text(
        'student_id,question,score,comment\nann,q1,1,"half, seen in the lab"\n'
    )
    assert (
        grade(
            root,
            lab,
            folder,
            root / "out",
            "--nbval-only",
            "--due",
            "2033-05-17T00:00+00:00",
            "--late",
            "linear:10%/day:max50%",
            "--roster",
            str(root / "roster.csv"),
            "--overrides",
            str(root / "overrides.csv"),
            "--points-row",
            "--also",
            "canvas,gradescope",
        )
        == 0
    )
    rows = table(root / "out")
    assert rows["_points"]["q1"] == "3" and rows["zoe"]["status"] == "missing"
    assert (
        rows["ann"]["score"] == "3"
        and "q1: 1 of 3 set by hand. half, seen in the lab"
        in (root / "out" / "feedback" / "ann.txt").read_text()
    )
    assert (rows["ben"]["raw_score"], rows["ben"]["penalty"]) == ("5", "0.2")
    assert rows["ben"]["score"] == "4" and rows["ben"]["flags"] == "late not_on_roster time_untrusted"
    assert json.loads((root / "out" / "gradescope" / "ann.json").read_text())["score"] == 3
    assert (root / "out" / "canvas.csv").read_text().splitlines()[1] == "Points Possible,,,,5"


@pytest.mark.parametrize(
    "more, words",
    [
        (("--due", "tomorrow"), "--due tomorrow: not a date"),
        (("--late", "harsh"), "--late harsh: expected none, zero"),
        (("--memory", "much"), "--memory much: not a size"),
        (("--memory", "inf"), "--memory inf: not a size"),
        (("--memory", "0G"), "--memory 0G: not a size"),
        (("--jobs", "0"), "--jobs 0: at least one"),
        (("--total-timeout", "nan"), "numbers of seconds, greater than 0"),
        (("--also", "moodle"), "--also moodle: there are gradescope and canvas"),
        (("--overrides", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--student", "nobody"), "no submission of nobody"),
        (("--roster", "nowhere.csv"), "nowhere.csv: No such file"),
    ],
)
def test_a_wrong_call_is_a_sentence_and_writes_nothing(small, more, words, capsys):
    root, lab, folder = small
    assert grade(root, lab, folder, root / "out", *more) == 2
    assert words in capsys.readouterr().err and not (root / "out").exists()


def test_a_lab_that_its_own_solution_fails_is_not_graded(small, capsys):
    root, lab, folder = small
    solution = root / "solutions" / "01_tiny.ipynb"
    solution.write_text(solution.read_text().replace("left + right", "left - right"))
    assert grade(root, lab, folder, root / "out", "--self-check") == 3
    assert "the solution gets 0 of 3 in q1" in capsys.readouterr().err and not (root / "out").exists()


def test_a_change_while_grading_is_noticed(small, monkeypatch):
    root, lab, folder = small
    real = __import__("utils.grading.batch", fromlist=["grade_all"]).grade_all

    def meddled(*args, **options):
        (folder / "ann.ipynb").write_bytes(b"{}")
        return real(*args, **options)

    monkeypatch.setattr("utils.grading.batch.grade_all", meddled)
    assert grade(root, lab, folder, root / "out", "--nbval-only") == 4


def test_an_interrupt_keeps_what_is_done(small, monkeypatch):
    root, lab, folder = small
    for name in ("cal", "dan", "eva", "fay"):
        (folder / f"{name}.ipynb").write_bytes(corpus.answers())
    with monkeypatch.context() as patch:
        patch.setattr("utils.grading.batch.as_completed", _interrupting)
        assert grade(root, lab, folder, root / "out", "--nbval-only") == 130
    assert json.loads((root / "out" / "results.json").read_text())["interrupted"] is True
    rows = table(root / "out")
    assert "ann" in rows and len(rows) < 6 and {row["score"] for row in rows.values()} == {"5"}
    assert grade(root, lab, folder, root / "out", "--nbval-only") == 0 and len(table(root / "out")) == 6


def _interrupting(futures):
    """Stands for ``as_completed``: the first result comes, then the interrupt."""
    first = next(iter(futures))
    first.result()
    yield first
    raise KeyboardInterrupt


def test_root_does_not_grade_without_walls_unless_told(small, capsys, monkeypatch):
    root, lab, folder = small
    parser = argparse.ArgumentParser()
    add_grade_arguments(parser)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert (
        run_grade(
            parser.parse_args(
                [str(lab), str(folder), "-o", str(root / "out"), "--root", str(root), "--sandbox", "none"]
            )
        )
        == 2
    )
    assert "would run as root without a box" in capsys.readouterr().err
