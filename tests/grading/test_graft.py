import copy
import json
import warnings

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat import v4

from utils.grading import graft as module
from utils.grading.graft import NBVAL_MARKERS, graft, neutralise
from utils.grading.notebook import dumps, grade_id
from utils.grading.release import lab_notebook
from utils.grading.submission import LARGEST_BYTES, MOST_CELLS, parse

from .course_fixture import Q1, Q2, solution

OUTPUTS = {"q1-check": "q1: 3/3 checks passed\n", "q2-check": "q2: 2/2 checks passed\n"}
LAB = lab_notebook(solution(), OUTPUTS, "01_tiny")
STUB = {cell.id: cell.source for cell in LAB.cells}
MY_ADD = "# === q1: answer (keep this line) ===\ndef add(left, right):\n    return sum((left, right))"

ANCHORED_COMMENT = "# === q1: answer (keep this line) ===\n# I do not know"


def submitted(change=lambda notebook: None, base=LAB) -> bytes:
    notebook = copy.deepcopy(base)
    change(notebook)
    return nbformat.writes(notebook).encode()


def cell_of(notebook, name):
    return next(cell for cell in notebook.cells if cell.id == name)


def _solved() -> bytes:
    notebook = solution()
    new_ids(notebook)
    return dumps(notebook).encode()


def answering(name, source):
    return lambda notebook: cell_of(notebook, name).update(source=source)


def sources(notebook) -> list[tuple[str, str]]:
    return [(cell.id, cell.source) for cell in notebook.cells if cell.cell_type == "code"]


def test_the_lab_grafted_onto_itself_is_the_lab():
    grafted, report = graft(LAB, submitted())
    assert dumps(grafted) == dumps(LAB)
    assert (report.status, report.flags) == ("blank", ())
    assert {answer.state for answer in report.answers.values()} == {"blank"}


def test_answers_cross_and_everything_else_is_the_courses_own():
    def cheat(notebook):
        answering("q1-answer", MY_ADD)(notebook)
        cell_of(notebook, "q1-check").update(source="print('q1: 3/3 checks passed')")
        cell_of(notebook, "q1-check").metadata.nbgrader.points = 100
        cell_of(notebook, "q1-answer").metadata.tags = ["nbval-skip"]
        notebook.metadata.kernelspec.name = "../../evil"
        notebook.cells[0].source = "<script>"

    grafted, report = graft(LAB, submitted(cheat))
    expected = copy.deepcopy(LAB)
    cell_of(expected, "q1-answer").source = MY_ADD
    assert dumps(grafted) == dumps(expected)
    assert (report.status, report.flags) == ("ok", ("edited_check",))
    assert [answer.state for answer in report.answers.values()] == ["answered", "blank"]


def test_the_solution_grafted_has_both_answers():
    grafted, report = graft(LAB, dumps(solution()).encode())
    assert [cell_of(grafted, name).source for name in ("q1-answer", "q2-answer")] == [Q1, Q2]
    assert len(grafted.cells) == len(LAB.cells)
    assert report.flags == ("edited_check",)  # its check holds the hidden tests


def strip_metadata(notebook):
    for cell in notebook.cells:
        cell.metadata = {}


def new_ids(notebook):
    for number, cell in enumerate(notebook.cells):
        cell.id = f"new-{number}"


SOLVED = _solved()


@pytest.mark.parametrize("edits", [[strip_metadata], [new_ids], [strip_metadata, new_ids]])
def test_an_answer_is_found_when_an_editor_lost_its_names(edits):
    def change(notebook):
        answering("q1-answer", MY_ADD)(notebook)
        for edit in edits:
            edit(notebook)

    grafted, report = graft(LAB, submitted(change))
    assert cell_of(grafted, "q1-answer").source == MY_ADD
    assert len(grafted.cells) == len(LAB.cells) and report.flags == ()


def test_without_its_first_line_it_is_found_by_its_names():
    grafted, report = graft(LAB, submitted(answering("q1-answer", "add = max")))
    assert cell_of(grafted, "q1-answer").source == "add = max"
    assert report.flags == ("marker_removed",)


def test_a_split_answer_is_run_cell_by_cell():
    def split(notebook):
        position = notebook.cells.index(cell_of(notebook, "q1-answer"))
        second = copy.deepcopy(notebook.cells[position])
        notebook.cells[position].source = MY_ADD
        second.update(source="add = add", id="another")
        notebook.cells.insert(position + 1, second)

    grafted, report = graft(LAB, submitted(split))
    assert ("q1-answer", MY_ADD) in sources(grafted) and ("q1-answer-1", "add = add") in sources(grafted)
    assert report.flags == ("duplicate_cell",)
    assert report.answers["q1-answer"].source == MY_ADD + "\n\nadd = add"


def test_an_untouched_copy_of_the_stub_does_not_undo_the_answer():
    def both(notebook):
        notebook.cells.append(copy.deepcopy(cell_of(notebook, "q1-answer")))
        notebook.cells[-1].id = "copy"
        answering("q1-answer", MY_ADD)(notebook)

    grafted, _ = graft(LAB, submitted(both))
    assert [text for _, text in sources(grafted)].count(STUB["q1-answer"]) == 0
    assert len(grafted.cells) == len(LAB.cells)


def test_an_answer_in_a_text_cell_is_run_as_code():
    def change(notebook):
        cell_of(notebook, "q1-answer").update(source=MY_ADD, cell_type="markdown")

    grafted, report = graft(LAB, submitted(change))
    assert (
        cell_of(grafted, "q1-answer").cell_type == "code" and cell_of(grafted, "q1-answer").source == MY_ADD
    )
    assert report.flags == ("not_code",)


def test_a_missing_answer_is_the_stub_and_says_so():
    def change(notebook):
        notebook.cells.remove(cell_of(notebook, "q2-answer"))
        answering("q1-answer", MY_ADD)(notebook)

    grafted, report = graft(LAB, submitted(change))
    assert cell_of(grafted, "q2-answer").source == STUB["q2-answer"]
    assert report.flags == ("missing_answer",) and report.answers["q2-answer"].state == "missing"
    assert "q2-answer: this cell is not in the notebook." in report.notes


def test_added_code_stays_behind_the_cell_that_it_follows():
    def change(notebook):
        notebook.cells.insert(0, v4.new_code_cell("first = 1"))
        notebook.cells.insert(
            notebook.cells.index(cell_of(notebook, "q1-answer")), v4.new_code_cell("import math")
        )
        cell_of(notebook, LAB.cells[1].id).source += "\nimport os"
        notebook.cells.append(v4.new_code_cell("tiny.q1(add)"))  # a copy of a check

    grafted, report = graft(LAB, submitted(change))
    names = [name for name, _ in sources(grafted)]
    imports, question = LAB.cells[1].id, LAB.cells[2].id
    assert names == [
        "start-1",
        imports,
        f"{imports}-1",
        f"{question}-1",
        "q1-answer",
        "q1-check",
        "q2-answer",
        "q2-check",
    ]
    assert cell_of(grafted, f"{imports}-1").source.endswith("import os")
    assert cell_of(grafted, "start-1").metadata.tags == ["extra", "nbval-ignore-output"]
    assert report.flags == ("extra_cells",)
    assert dumps(graft(LAB, submitted(change), extra_cells="drop")[0]) == dumps(LAB)


def test_a_leftover_stub_line_is_pointed_out():
    _, report = graft(LAB, submitted(answering("q1-answer", MY_ADD + "\n    raise NotImplementedError()")))
    assert report.answers["q1-answer"].state == "answered"
    assert "raise NotImplementedError" in report.answers["q1-answer"].notes[0]


def test_comments_alone_are_a_blank_answer():
    _, report = graft(LAB, submitted(answering("q1-answer", ANCHORED_COMMENT)))
    assert (report.status, report.answers["q1-answer"].state) == ("blank", "blank")


def test_another_lab_is_refused():
    other = lab_notebook(solution(), OUTPUTS, "02_other")
    grafted, report = graft(LAB, submitted(base=other))
    assert report.status == "wrong_lab" and "'02_other'" in report.notes[0] and dumps(grafted) == dumps(LAB)
    plain = v4.new_notebook(cells=[v4.new_code_cell("x = 1")])
    assert graft(LAB, submitted(base=plain))[1].status == "wrong_lab"


def test_an_older_version_is_graded_and_flagged():
    _, report = graft(LAB, submitted(lambda n: n.metadata.course.update(lab_version="0123")))
    assert report.flags == ("old_version",)


FORMAT_3 = {
    "nbformat": 3,
    "metadata": {},
    "worksheets": [
        {
            "cells": [
                {
                    "cell_type": "code",
                    "input": MY_ADD.splitlines(keepends=True),
                    "language": "python",
                    "outputs": [],
                }
            ]
        }
    ],
}


@pytest.mark.parametrize(
    "data, status, words",
    [
        (b"", "unreadable", "is empty"),
        (b"  \n", "unreadable", "is empty"),
        (submitted()[:500], "unreadable", "not valid JSON"),
        (submitted().decode().encode("utf-16"), "unreadable", "not UTF-8"),
        ('{"cells": ["\xe9"]}'.encode("latin-1"), "unreadable", "not UTF-8"),
        (b"[" * 100_000, "unreadable", "not valid JSON"),
        (b'{"cells": ' + b"9" * 5000 + b"}", "unreadable", "not valid JSON"),
        (b"{}", "unreadable", "no cells"),
        (b"[]", "unreadable", "not a notebook"),
        (b"null", "unreadable", "not a notebook"),
        (b'{"cells": [], "nbformat": 4}', "unreadable", "no cells"),
        (submitted().replace(b'"nbformat": 4', b'"nbformat": 9'), "unreadable", "has format 9"),
        (b" " * (LARGEST_BYTES + 1), "too_large", "the limit is 20 MB"),
        (b'{"cells": [' + b"{}," * MOST_CELLS + b"{}]}", "too_large", "5001 cells; the limit is 5000"),
        (b'{"cells": [{}], "nbformat": NaN}', "unreadable", "has format nan"),
    ],
)
def test_a_broken_file_is_a_status_and_a_sentence(data, status, words):
    grafted, report = graft(LAB, data)
    assert report.status == status and words in report.notes[0]
    assert dumps(grafted) == dumps(LAB)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + submitted(answering("q1-answer", MY_ADD)),
        submitted(answering("q1-answer", MY_ADD.replace("\n", "\r\n"))),
        json.dumps(FORMAT_3).encode(),
        json.dumps({"cells": [{"source": MY_ADD}]}).encode(),
        json.dumps(
            {
                "nbformat": 4,
                "metadata": 7,
                "cells": [None, {"cell_type": "code", "source": [MY_ADD, 3], "metadata": []}],
            }
        ).encode(),
    ],
)
def test_an_unusual_file_is_read(data):
    assert cell_of(graft(LAB, data)[0], "q1-answer").source == MY_ADD


def test_text_that_utf8_cannot_hold_does_not_stop_the_writer():
    grafted, _ = graft(
        LAB, submitted(answering("q1-answer", "x = '\\ud800'")).replace(b"\\\\ud800", b"\\ud800")
    )
    assert "x = '?'" in cell_of(grafted, "q1-answer").source
    dumps(grafted).encode()


def nbval_reads(source: str) -> list:
    from nbval.plugin import find_comment_markers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(find_comment_markers(source))


def test_the_marker_words_are_nbvals():
    from nbval.plugin import comment_markers

    assert set(comment_markers) == NBVAL_MARKERS


marker_lines = st.builds(
    lambda a, b, c: a + b + c,
    st.sampled_from(["", "x = 1 ", "  #", "# ", "##  ", '"""\n#']),
    st.sampled_from(sorted(NBVAL_MARKERS)),
    st.sampled_from(["", " ", "\x0c", "\u2028", " please", "\n"]),
)


@given(st.lists(st.one_of(marker_lines, st.text(max_size=8)), max_size=6).map("\n".join))
def test_no_text_of_a_student_steers_nbval(source):
    assert nbval_reads(neutralise(source)) == []
    assert neutralise(neutralise(source)) == neutralise(source)


def test_nbval_would_have_obeyed():
    assert nbval_reads("# NBVAL_SKIP") and not nbval_reads(neutralise("# NBVAL_SKIP"))
    grafted, _ = graft(LAB, submitted(answering("q1-answer", MY_ADD + "\n# NBVAL_SKIP")))
    assert nbval_reads(cell_of(grafted, "q1-answer").source) == []


@given(st.permutations(range(len(LAB.cells))))
def test_the_order_of_the_cells_does_not_matter(order):
    answered = copy.deepcopy(LAB)
    answering("q1-answer", MY_ADD)(answered)
    shuffled = copy.deepcopy(answered)
    shuffled.cells = [shuffled.cells[position] for position in order]
    assert dumps(graft(LAB, submitted(base=shuffled))[0]) == dumps(answered)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        [
            "q1-answer",
            "q2-check",
            "markdown",
            "code",
            "raw",
            MY_ADD,
            "# NBVAL_SKIP",
            "tiny.q1(add)",
            *STUB.values(),
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "source", "cell_type", "metadata", "nbgrader", "grade_id", "cells"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


def places(value, at=()):
    """Return the path of every value inside a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] + [path for key, item in inner for path in places(item, (*at, key))]


@st.composite
def mutated_notebooks(draw):
    document = json.loads(draw(st.sampled_from([submitted(answering("q1-answer", MY_ADD)), SOLVED])))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(places(document)[1:] or [()]))
        if not path:
            return document
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["delete", "replace", "copy", "swap"]))
        if action == "delete":
            del holder[path[-1]]
        elif action == "replace":
            holder[path[-1]] = draw(json_values)
        elif isinstance(holder, list) and action == "copy":
            holder.insert(draw(st.integers(0, len(holder))), copy.deepcopy(holder[path[-1]]))
        elif isinstance(holder, list):
            holder.append(holder.pop(path[-1]))
    return document


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated_notebooks())
def test_whatever_happens_to_a_notebook_it_is_grafted_and_stays_so(document):
    data = json.dumps(document).encode()
    grafted, report = graft(LAB, data)
    text = dumps(grafted)
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert [(c.id, c.source) for c in grafted.cells if c.metadata.get("nbgrader", {}).get("grade")] == [
        (c.id, c.source) for c in LAB.cells if c.metadata.get("nbgrader", {}).get("grade")
    ]
    assert len({cell.id for cell in grafted.cells}) == len(grafted.cells)
    assert [grade_id(c) for c in grafted.cells if grade_id(c)] == [
        grade_id(c) for c in LAB.cells if grade_id(c)
    ]
    assert dumps(graft(LAB, text.encode())[0]) == text
    assert report.status in ("ok", "blank", "wrong_lab", "unreadable", "too_large")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(submitted())))
def test_damaged_bytes_never_stop_the_reader(garbage, position):
    data = submitted()
    assert parse(data[:position] + garbage + data[position + len(garbage) :]) is not None


def test_examples_in_the_docstrings():
    import doctest

    assert doctest.testmod(module).failed == 0
