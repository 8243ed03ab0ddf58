import argparse
import copy

import pytest

from utils.grading.check import check_lab, report_text, show_check
from utils.grading.commands import add_check_arguments, run_check
from utils.grading.errors import GradingError
from utils.grading.notebook import dumps, read
from utils.grading.release import release

from .course_fixture import Q1, Q2
from .test_graft import ANCHORED_COMMENT, MY_ADD, answering, strip_metadata


@pytest.fixture
def lab(course):
    """The path of the released lab of the tiny course."""
    return release(course, execute=False).path


def work(lab, add=None, double=None, change=lambda notebook: None, name=None):
    """Save the lab as a student does after working in it; return its path."""
    notebook = copy.deepcopy(read(lab))
    for cell_name, source in (("q1-answer", add), ("q2-answer", double)):
        if source:
            answering(cell_name, source)(notebook)
    change(notebook)
    path = lab.parent / (name or lab.name)
    path.write_text(dumps(notebook))
    return path


def states(results):
    return [result.state for result in results]


def test_a_blank_lab_is_not_answered_yet(lab):
    results = check_lab(lab, root=lab.parent.parent)
    assert states(results) == ["blank", "blank"]
    assert report_text(results) == "– q1  not answered yet\n– q2  not answered yet\n0 of 2 questions pass."


def test_right_answers_pass(lab):
    results = check_lab(work(lab, Q1, Q2), root=lab.parent.parent)
    assert (
        report_text(results)
        == "✓ q1  3/3 checks passed\n✓ q2  2/2 checks passed\n2 of 2 questions pass. Well done."
    )


def test_a_wrong_answer_gets_the_reason_and_the_hint(lab):
    results = check_lab(work(lab, MY_ADD.replace("sum", "min"), Q2), root=lab.parent.parent)
    assert report_text(results).splitlines()[:2] == [
        "✗ q1  add(1, 2) gave 1, expected 3",
        "      hint: add means plus",
    ]


def test_an_answer_that_does_not_run_shows_its_line(lab):
    results = check_lab(work(lab, MY_ADD.replace("def add", "1 / 0\ndef add")), root=lab.parent.parent)
    assert report_text(results).splitlines()[:2] == [
        "✗ q1  the cell of q1-answer does not run: ZeroDivisionError: division by zero",
        "      ----> 2 1 / 0",
    ]


def test_what_the_last_run_stored_is_not_what_counts(lab):
    def stale(notebook):
        for cell in notebook.cells:
            if cell.id == "q1-check":
                cell.outputs, cell.execution_count = [], None

    assert states(check_lab(work(lab, MY_ADD, change=stale), root=lab.parent.parent)) == ["passed", "blank"]


def test_a_copy_is_put_into_the_released_lab(lab):
    def cheat(notebook):
        next(
            cell for cell in notebook.cells if cell.id == "q1-check"
        ).source = "print('q1: 3/3 checks passed')"

    path = work(lab, MY_ADD.replace("sum", "min"), change=cheat, name="copy.ipynb")
    assert states(check_lab(path, root=lab.parent.parent)) == ["failed", "blank"]


def test_a_copy_without_metadata_is_found_by_its_first_lines(lab):
    path = work(lab, MY_ADD, change=strip_metadata, name="copy.ipynb")
    assert states(check_lab(path, against=lab, root=lab.parent.parent)) == ["passed", "blank"]


def test_a_leftover_stub_line_is_the_hint(lab):
    results = check_lab(
        work(lab, MY_ADD.replace("    return", "    raise NotImplementedError()\n    return")),
        root=lab.parent.parent,
    )
    assert "still in your answer" in results[0].hint


def test_a_notebook_that_is_no_lab_is_a_sentence(lab, course):
    lesson = lab.parent / "lesson.ipynb"
    lesson.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    with pytest.raises(GradingError, match="has no check cells"):
        check_lab(lesson, root=lab.parent.parent)
    other = work(lab, change=lambda n: n.metadata.course.update(lab="02_other"), name="other.ipynb")
    with pytest.raises(GradingError, match="'02_other'"):
        check_lab(other, against=lab, root=lab.parent.parent)


def test_a_lab_may_check_itself(lab, capsys, monkeypatch):
    from nbformat import v4

    cell = v4.new_code_cell(f"from utils.grading.check import show_check\nshow_check({str(lab)!r})")
    assert states(
        check_lab(work(lab, Q1, Q2, change=lambda n: n.cells.append(cell)), root=lab.parent.parent)
    ) == ["passed", "passed"]
    show_check(lab, root=lab.parent.parent)
    assert capsys.readouterr().out.endswith("2 of 2 questions pass. Well done.\n")
    monkeypatch.setenv("COURSE_RUNNING", "1")
    show_check(lab, root=lab.parent.parent)
    assert capsys.readouterr().out == ""


def test_the_commands_exit_code(lab, capsys):
    parser = argparse.ArgumentParser()
    add_check_arguments(parser)
    root = ["--root", str(lab.parent.parent)]
    assert run_check(parser.parse_args([*root, str(work(lab, Q1, Q2))])) == 0
    assert run_check(parser.parse_args([*root, str(work(lab, ANCHORED_COMMENT, Q2))])) == 1
    assert run_check(parser.parse_args([*root, "nowhere.ipynb"])) == 2
    assert "nowhere.ipynb: there is no such file" in capsys.readouterr().err
