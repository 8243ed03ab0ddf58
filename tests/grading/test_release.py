import json
import re
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from utils.grading.bundle import write_bundle
from utils.grading.errors import GradingError, ReleaseError
from utils.grading.notebook import digest, dumps, grade_id, is_answer, is_check, read
from utils.grading.release import build, check_release, release

from .course_fixture import CHECKS, Q1, answer, check, solution, write_course

ROOT = Path(__file__).parents[2]


def problems(path, **options) -> str:
    with pytest.raises(ReleaseError) as caught:
        build(path, **options)
    return "\n".join(caught.value.problems)


def changed(tmp_path, change, **options):
    """Write the tiny course after ``change(notebook)``."""
    notebook = solution()
    change(notebook)
    return write_course(tmp_path, notebook, **options)


def test_a_lab_has_stubs_for_answers_and_outputs_on_checks_only(course, tmp_path):
    made = release(course)
    assert made.changed and made.path == tmp_path / "labs" / "01_tiny.ipynb"
    lab = nbformat.read(made.path, as_version=4)
    nbformat.validate(lab)
    answers, checks = [c for c in lab.cells if is_answer(c)], [c for c in lab.cells if is_check(c)]
    assert (
        answers[0].source
        == Q1.split("    ### BEGIN")[0] + "    # YOUR CODE HERE\n    raise NotImplementedError()"
    )
    assert [c.execution_count for c in checks] == [1, 2]
    assert [c.outputs[0].text for c in checks] == ["q1: 3/3 checks passed\n", "q2: 2/2 checks passed\n"]
    others = [c for c in lab.cells if c.cell_type == "code" and not is_check(c)]
    assert others and all(c.execution_count is None and not c.outputs for c in others)
    assert [c.id for c in lab.cells if grade_id(c)] == ["q1-answer", "q1-check", "q2-answer", "q2-check"]
    assert checks[0].metadata.tags == ["check", "nbval-check-output"]
    assert answers[0].metadata.tags == ["answer", "nbval-ignore-output"]
    assert "double(7)" not in made.text


def test_the_version_is_the_hash_of_everything_else(course):
    lab = nbformat.reads(build(course, execute=False).text, as_version=4)
    version = lab.metadata.course.pop("lab_version")
    assert version == digest(dumps(lab))


def test_running_and_taking_stored_outputs_give_the_same_bytes(course):
    assert build(course).text == build(course, execute=False).text


def test_what_an_editor_changes_does_not_change_the_lab(tmp_path):
    plain = build(write_course(tmp_path / "plain"), execute=False).text

    def edited(notebook):
        notebook.metadata.update(
            kernelspec={"name": "conda-env", "display_name": "x"},
            widgets={"state": {}},
            language_info={"name": "python", "version": "3.12.1"},
            jupytext={"formats": "ipynb"},
        )
        for number, cell in enumerate(notebook.cells):
            cell.id = f"random-{number}"
            cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
            cell.metadata["collapsed"] = True
            if cell.cell_type == "code":
                cell.execution_count = 40 + number
            cell.source = cell.source.replace("\n", "\r\n")
        notebook.cells[1].outputs = [v4.new_output("stream", text="noise\n")]

    assert build(changed(tmp_path / "edited", edited), execute=False).text == plain


def test_the_file_has_unix_lines_and_one_newline_at_the_end(course):
    release(course, execute=False)
    data = (course.parent.parent / "labs" / course.name).read_bytes()
    assert b"\r" not in data and data.endswith(b"}\n") and not data.endswith(b"\n\n")
    assert json.loads(data)["nbformat_minor"] == 5


def test_an_unchanged_lab_is_left_alone(course):
    first = release(course, execute=False)
    before = first.path.stat().st_mtime_ns
    assert not release(course, execute=False).changed
    assert first.path.stat().st_mtime_ns == before


def test_check_says_what_differs(course):
    assert "+   " in check_release(course, execute=False)
    lab = release(course, execute=False).path
    assert check_release(course, execute=False) == ""
    lab.write_text(lab.read_text().replace("Write two functions", "Write 2 functions"))
    assert "Write 2 functions" in check_release(course, execute=False)
    lab.write_bytes(release(course, execute=False).text.replace("\n", "\r\n").encode())
    assert check_release(course, execute=False)


def test_a_region_may_name_its_own_stub(tmp_path):
    def two_regions(notebook):
        notebook.cells[3] = answer(
            "q1-answer",
            Q1 + "\n### BEGIN SOLUTION\nspare_value = 12345\n### END SOLUTION",
            stub=["return ...", "spare_value = None"],
        )

    lab = nbformat.reads(build(changed(tmp_path, two_regions), execute=False).text, as_version=4)
    assert lab.cells[3].source.endswith('right."""\n    return ...\nspare_value = None')
    assert "stub" not in lab.cells[3].metadata.get("course", {})


def test_an_error_names_file_cell_and_line(tmp_path):
    def stray(notebook):
        notebook.cells[3].source += "\n### END SOLUTION"

    assert problems(changed(tmp_path, stray)).startswith(
        "solutions/01_tiny.ipynb, cell 4 (q1-answer), line 8: '### END SOLUTION' has no"
    )


def test_all_errors_come_at_once(tmp_path):
    def two(notebook):
        notebook.cells[3].source += "\n### END SOLUTION"
        notebook.cells[6].source += "\n### END SOLUTION"

    assert len(problems(changed(tmp_path, two)).splitlines()) == 2


def edit_meta(index, **fields):
    return lambda notebook: notebook.cells[index].metadata.nbgrader.update(fields)


def edit_source(index, old, new):
    def change(notebook):
        assert old in notebook.cells[index].source
        notebook.cells[index].source = notebook.cells[index].source.replace(old, new)

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (
            edit_source(3, "### BEGIN SOLUTION", "pass"),
            "cell 4 (q1-answer), line 7: '### END SOLUTION' has no",
        ),
        (
            lambda n: n.cells.__setitem__(
                3, answer("q1-answer", "# === q1: answer (keep this line) ===\nadd = max")
            ),
            "cell 4 (q1-answer), line 1: this answer has no '### BEGIN SOLUTION'",
        ),
        (
            edit_source(3, "# === q1: answer (keep this line) ===\n", ""),
            "starts with the line '# === q1: answer (keep this line) ==='",
        ),
        (
            edit_source(3, "q1: answer", "q2: answer"),
            "starts with the line '# === q1: answer (keep this line) ==='",
        ),
        (edit_meta(3, grade_id="Q1 answer"), "an answer's grade_id is like 'q1-answer'"),
        (edit_meta(3, grade=True), "either an answer or a check"),
        (edit_meta(4, points=0), "'points' of a check is a number above 0, here it is 0"),
        (
            lambda n: n.cells[4].metadata.nbgrader.pop("points"),
            "'points' of a check is a number above 0, here it is None",
        ),
        (edit_meta(4, points=True), "'points' of a check is a number above 0"),
        (edit_meta(4, locked=False), "'locked': true"),
        (edit_meta(6, grade_id="q1-answer"), "cells 4 and 7 have the same grade_id 'q1-answer'"),
        (edit_meta(4, grade_id="q9-check"), "looks at 'q9-answer', but no cell above has that grade_id"),
        (
            lambda n: n.cells.insert(1, check("q3-check", "pass", answers=["q1-answer"])),
            "cell 2) looks at 'q1-answer', but no cell above",
        ),
        (
            lambda n: n.cells[4].metadata.update(course={"question": "q7", "answers": ["q1-answer"]}),
            "Call the cell 'q7-check'",
        ),
        (
            lambda n: (
                n.cells.__delitem__(slice(4, 5)) or n.cells[-1].metadata.course.update(answers=["q2-answer"])
            ),
            "answer 'q1-answer' is looked at by no check",
        ),
        (
            edit_source(1, "tiny", "tiny\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION"),
            "neither answer nor check",
        ),
        (lambda n: n.cells[1].metadata.update(tags=["check"]), "tagged 'check' but has no nbgrader metadata"),
        (
            lambda n: (
                n.cells[3].metadata.pop("nbgrader")
                and n.cells[3].update(source="# === q1: answer (keep this line) ===")
            ),
            "starts like an answer but has no nbgrader metadata",
        ),
        (
            edit_source(4, "tiny.q1(add)", "### BEGIN SOLUTION\ntiny.q1(add)\n### END SOLUTION"),
            "belongs in an answer cell",
        ),
        (
            edit_source(
                3,
                "    ### BEGIN SOLUTION",
                "    ### BEGIN HIDDEN TESTS\n    x = 1\n    ### END HIDDEN TESTS\n    ### BEGIN SOLUTION",
            ),
            "hidden tests belong in a check cell",
        ),
        (edit_source(4, "tiny.q1(add)", "tiny.q1(add);"), "a semicolon at the end does not hide output"),
        (edit_source(4, "tiny.q1(add)", "!ls\ntiny.q1(add)"), "line 1: '!ls': shell commands"),
        (edit_source(4, "tiny.q1(add)", "# NBVAL_SKIP\ntiny.q1(add)"), "nbval reads this comment"),
        (edit_source(4, "tiny.q1(add)", "clear_output()"), "cleared output comes back"),
        (lambda n: n.cells.__delitem__(slice(2, None)), "no check cell"),
        (
            lambda n: n.cells[3].metadata.update(course={"stub": ["a", "b"]}),
            "'stub' names 2 stubs for 1 regions",
        ),
    ],
)
def test_a_broken_rule_is_an_error(tmp_path, change, words):
    assert words in problems(changed(tmp_path, change), execute=False)


@pytest.mark.parametrize(
    "old, new, words",
    [
        (
            'print("q1: 3/3 checks passed")',
            'import random; print("q1:", random.random() > 2, hash(object()))',
            "Print the same line",
        ),
        (
            'print("q1: 3/3 checks passed")',
            'import sys; print("q1: passed"); print("beware", file=sys.stderr)',
            "wrote to stderr",
        ),
        ('print("q1: 3/3 checks passed")', 'print("q1: done in 0.31 s")', "prints a decimal number"),
        ('print("q1: 3/3 checks passed")', 'print("q1: see /tmp/x")', "prints a path"),
        ('print("q1: 3/3 checks passed")', 'print("well done")', "prints one line that starts with 'q1: '"),
        (
            'print("q1: 3/3 checks passed")',
            'print("q1: a"); print("q1: b")',
            "prints one line that starts with 'q1: '",
        ),
        (
            'print("q1: 3/3 checks passed")',
            'print("q1: passed"); return 3',
            "has output other than printed text (execute_result)",
        ),
        (
            "for left, right in",
            "1 / 0\n    for left, right in",
            "cell 5 (q1-check): the solution fails here with ZeroDivisionError",
        ),
    ],
)
def test_a_check_that_is_not_the_same_everywhere_is_an_error(tmp_path, old, new, words):
    assert old in CHECKS
    assert words in problems(write_course(tmp_path, checks=CHECKS.replace(old, new)))


def test_a_lab_that_shows_a_line_of_the_solution_is_an_error(tmp_path):
    def hint(notebook):
        notebook.cells[4].metadata.course["hint"] = "try: the_sum_of_both = left + right"

    assert "labs/01_tiny.ipynb: shows the solution's line 'the_sum_of_both = left + right'" in problems(
        changed(tmp_path, hint), execute=False
    )


def test_a_line_with_quotes_is_found_behind_the_escapes_of_the_file(tmp_path):
    def quoted(notebook):
        notebook.cells[3].source = Q1.replace(
            "    return the_sum", '    label = "a\\tsecret"\n    return the_sum'
        )
        notebook.cells[2].source = 'Hint: `label = "a\\tsecret"`.'

    assert "shows the solution's line 'label = \"a\\tsecret\"'" in problems(
        changed(tmp_path, quoted), execute=False
    )


def test_an_old_copy_with_the_solution_is_an_error(course):
    copies = course.parent.parent / "labs" / ".ipynb_checkpoints"
    copies.mkdir()
    (copies / "01_tiny-checkpoint.ipynb").write_text(course.read_text())
    assert "labs/.ipynb_checkpoints/01_tiny-checkpoint.ipynb: shows the solution's line" in problems(
        course, execute=False
    )


def test_support_code_that_holds_an_answer_is_an_error_unless_it_is_taught_there(tmp_path):
    path = write_course(tmp_path)
    (tmp_path / "utils" / "adding.py").write_text(
        "def add(left, right):\n    the_sum_of_both = left + right\n    return the_sum_of_both\n"
    )
    assert "utils/adding.py: holds a piece of the solution" in problems(path, execute=False)
    notebook = read(path)
    notebook.metadata["course"] = {"taught_in": ["utils/adding.py"]}
    path.write_text(dumps(notebook))
    assert "taught_in" not in build(path, execute=False).text


def test_one_common_line_in_support_code_is_no_leak(tmp_path):
    path = write_course(tmp_path)
    (tmp_path / "utils" / "adding.py").write_text("the_sum_of_both = left + right\n")
    assert build(path, execute=False).text


def test_the_authors_settings_do_not_reach_the_run(course, tmp_path, monkeypatch):
    profile = tmp_path / "home" / "profile_default" / "startup"
    profile.mkdir(parents=True)
    (profile / "0.py").write_text("print('noise from a start-up file'); import utils.checks.nowhere")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "home"))
    assert build(course).text


def test_a_file_that_is_no_notebook_is_a_sentence(tmp_path):
    (tmp_path / "x.ipynb").write_text("{")
    with pytest.raises(GradingError, match="is not a notebook that can be read"):
        read(tmp_path / "x.ipynb")
    with pytest.raises(GradingError, match="there is no such file"):
        read(tmp_path / "y.ipynb")


def test_the_bundle_has_no_solutions_and_is_the_same_every_time(course, tmp_path):
    release(course, execute=False)
    (tmp_path / "utils" / "__pycache__").mkdir()
    (tmp_path / "utils" / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "README.md").write_text("# Course\n")
    names = write_bundle(tmp_path / "a.zip", tmp_path, [course])
    assert names == [
        "README.md",
        "labs/01_tiny.ipynb",
        "utils/__init__.py",
        "utils/checks/__init__.py",
        "utils/checks/tiny.py",
    ]
    write_bundle(tmp_path / "b.zip", tmp_path, [course])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert "course/labs/01_tiny.ipynb" in archive.namelist()


def test_the_readme_in_the_bundle_tells_only_of_what_is_in_it(tmp_path):
    names = write_bundle(tmp_path / "course.zip", ROOT)
    with zipfile.ZipFile(tmp_path / "course.zip") as archive:
        text = archive.read("course/README.md").decode()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert "lessons/00_start_here.ipynb" in links and set(links) <= set(names)
    for absent in ("solutions", "make test", "tests/", "course grade", "course release", "make bench", "clone:begin"):
        assert absent not in text
    assert "make lab" in text and "## Lessons" in text


def test_the_bundle_refuses_a_file_with_the_solution(course, tmp_path):
    (tmp_path / "README.md").write_text("    the_sum_of_both = left + right\n    return the_sum_of_both\n")
    with pytest.raises(ReleaseError, match="README.md: holds a piece of the solution"):
        write_bundle(tmp_path / "a.zip", tmp_path, [course])
    assert not (tmp_path / "a.zip").exists()
