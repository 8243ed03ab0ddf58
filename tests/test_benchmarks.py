"""The benchmarks measure what they say, and their tables can be read. Figures are not tested."""
import os
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from benchmarks import course, first_picture, grading, launch, measure, summary
from utils.grading.notebook import read

ROOT = Path(__file__).parents[1]


# ---- measuring ----------------------------------------------------------------------------------------------------

def test_ways_take_turns_and_none_always_comes_after_the_same_one():
    called = []
    ways = {name: lambda name=name: called.append(name) for name in "ab"}
    taken = measure.in_turns(ways, 4, before=lambda name: called.append(f"before {name}"))
    assert called[1::2] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert called[::2] == [f"before {name}" for name in called[1::2]]
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 4, "b": 4}


def test_quartiles_are_those_of_the_values():
    assert measure.quartiles([4, 1, 3, 2, 5]) == (2, 3, 4)
    assert measure.quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_a_ratio_is_that_of_pairs_and_not_of_medians():
    assert measure.ratios([1, 10, 100], [1, 5, 10]) == "2.00 (1.50 – 6.00)"
    assert measure.ratios([1, 10], [1, 5, 10]) == "1.50 (1.25 – 1.75)"  # fewer rounds: the first ones are pairs


@pytest.mark.parametrize("value, text", [(0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")])
def test_numbers_have_three_digits_that_count(value, text):
    assert measure.digits(value) == text


@pytest.mark.parametrize("seconds, text", [(2.5, "2.50 s"), (0.0025, "2.50 ms"), (2.5e-6, "2.50 µs")])
def test_seconds_are_shown_in_the_unit_that_fits(seconds, text):
    assert measure.spread_of_seconds([seconds]).startswith(text + " (")


def test_a_table_is_markdown():
    assert measure.Table("T", ("what", "n"), [("x", 1)], "Note.").markdown() == (
        "### T\n\nNote.\n\n| what | n |\n| --- | ---: |\n| x | 1 |")


# ---- the benchmarks, with few repetitions -------------------------------------------------------------------------

def rows_of(tables):
    """{title: rows} of tables, each of which has as many cells per row as columns."""
    tables = list(tables)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    return {table.title: table.rows for table in tables}


def test_the_written_file_has_every_table_and_neither_hosts_nor_folders(tmp_path):
    output = tmp_path / "results.md"
    names = ["theory", "recorder", "all_reduce", "pipeline"]
    subprocess.run([sys.executable, "-m", "benchmarks", "--quick", "--output", output, *names], cwd=ROOT, check=True)
    text = output.read_text()
    titles = [line for line in text.splitlines() if line.startswith("### ")]
    assert [title.split()[1].strip(":") for title in titles] == ["Machine", "Theory", "Recorder", "All-reduce", "Pipeline"]
    assert text.count("while other programs used") == len(names)
    assert not any(name in text for name in (socket.gethostname(), str(ROOT), os.path.expanduser("~/")))


def test_a_benchmark_that_fails_says_so_in_its_place(tmp_path):
    output = tmp_path / "results.md"
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--output", output, "nothing"], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 1 and "No module named benchmarks.nothing" in done.stderr
    assert "### nothing\n\n**Not measured: it failed.**" in output.read_text()


def test_every_way_to_have_ranks_does_the_same_work():
    rows = rows_of(launch.tables(quick=True, ways=("Launch", "Fork", "IPyParallel")))
    (first, second, third) = rows["Launch: cold and warm"]
    assert first[2] == first[4] == "1.00 (1.00 – 1.00)" and second[-1] == "1, 2"
    if not launch.installed(launch.WAYS["IPyParallel"]):
        assert third == ("2, `ipyparallel`", *["not installed"] * 4, "0, 0")
    assert len(rows) == 3 + (sys.platform == "linux")
    ((pause, *times, n),) = rows["Launch: the first one in a notebook"]
    assert pause == "0 s" and n == 1 and all(time.endswith((" s", ")")) for time in times)


def test_a_way_that_gives_wrong_sums_is_no_figure():
    starter = launch.Starter("Fork", 2)
    starter._expected = [1.0, 2.0]
    with pytest.raises(RuntimeError, match=r"Fork.*\[1\.0, 1\.0\]"):
        starter.run()
    starter.close()


def test_the_readme_says_what_was_measured():
    readme, results = summary.README.read_text("utf-8"), summary.RESULTS.read_text("utf-8")
    assert summary.with_table(readme, results) == readme
    assert "other programs used" in results and "quick" not in results.lower().splitlines()[2]


def test_what_could_not_be_measured_stands_so_in_the_readme():
    lines = summary.table("### Course: running the notebooks\n\n| together | 1 | 2.5 s (2 – 3) | 1 |\n").splitlines()
    assert "| all lessons and solutions, run one after the other | 2.5 s |" in lines
    assert sum(line.endswith("not measured |") for line in lines) == len(summary.ROWS) - 1


def test_the_greeting_and_the_first_picture_are_found_in_lesson_00():
    lesson = read(ROOT / first_picture.LESSON)
    greeting, picture = first_picture.greeting(), first_picture.picture()
    assert "launch(hello, world_size=4)" in lesson.cells[greeting].source
    assert ".timeline()" in lesson.cells[picture].source and greeting < picture


def test_notebooks_are_run_as_copies(tmp_path):
    path = tmp_path / "lessons" / "one.ipynb"
    path.parent.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")]), path)
    before = path.read_bytes()
    ((_, *row), together) = rows_of(course.tables(paths=[path]))["Course: running the notebooks"]
    assert row[0] == 1 and together[1:] == tuple(row)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_every_kind_of_submission_is_written_and_a_wrong_grade_is_told(tmp_path):
    written = grading.write_submissions(tmp_path, "01_all_reduce", 6)
    assert {kind for kind, _ in written.values()} == {"right", "wrong", "attacker", "blank"}
    assert {path.stem for path in tmp_path.iterdir()} == set(written)
    rows = [f"{student},{4 if kind == 'attacker' else 0},4," for student, (kind, _) in written.items()]
    (tmp_path / "grades.csv").write_text("\n".join(["student_id,score,max_score,flags", *rows]))
    told = " ".join(grading.wrong_grades(tmp_path, written))
    assert {student for student, (kind, _) in written.items() if student in told} == {
        student for student, (kind, _) in written.items() if kind in ("right", "attacker")}
