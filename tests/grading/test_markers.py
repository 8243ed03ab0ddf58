import doctest

import pytest

from utils.grading import markers, notebook
from utils.grading.markers import HIDDEN, SOLUTION, find_regions, replace_regions


@pytest.mark.parametrize("module", [markers, notebook])
def test_examples_in_the_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_a_region_is_found_with_its_lines_and_its_indent():
    regions, remarks = find_regions(
        "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\nf()"
    )
    assert not remarks
    assert [(r.kind, r.first, r.last, r.indent, r.body) for r in regions] == [
        (SOLUTION, 2, 4, "    ", ("    return 1",))
    ]


def test_each_region_gets_its_own_replacement_at_its_own_indent():
    source = "### BEGIN SOLUTION\na\n### END SOLUTION\nbetween\n    ### BEGIN HIDDEN TESTS\n    b\n    ### END HIDDEN TESTS\nend"
    regions, _ = find_regions(source)
    assert replace_regions(source, regions, lambda n, r: f"{n}: {r.kind}\nx") == (
        f"0: {SOLUTION}\nx\nbetween\n    1: {HIDDEN}\n    x\nend"
    )
    assert replace_regions(source, regions, lambda n, r: "") == "between\nend"


@pytest.mark.parametrize(
    "source, line, words",
    [
        ("x\n### END SOLUTION", 2, "has no '### BEGIN SOLUTION' above it"),
        ("### BEGIN SOLUTION\nx", 1, "is never closed"),
        ("### BEGIN SOLUTION\nx\n### BEGIN SOLUTION\ny\n### END SOLUTION", 3, "regions do not nest"),
        ("### BEGIN SOLUTION\nx\n### END HIDDEN TESTS", 3, "Make the two lines agree"),
        ("### BEGIN SOLUTION\n\n### END SOLUTION", 1, "is empty"),
        ("if x:\n    ### BEGIN SOLUTION\n    y\n### END SOLUTION", 4, "Indent both alike"),
        ("x = 1 ### BEGIN SOLUTION", 1, "is not a marker, but looks like one"),
        ("## BEGIN SOLUTION", 1, "is not a marker, but looks like one"),
        ("### begin solution", 1, "is not a marker, but looks like one"),
        ("### BEGIN SOLUTION: ring", 1, "is not a marker, but looks like one"),
        ("###BEGIN HIDDEN TEST", 1, "is not a marker, but looks like one"),
    ],
)
def test_a_wrong_marker_is_an_error_that_names_its_line(source, line, words):
    _, remarks = find_regions(source)
    assert [(remark.line, remark.fatal) for remark in remarks if words in remark.sentence] == [(line, True)]


def test_otters_marker_works_with_a_warning():
    regions, remarks = find_regions("# BEGIN SOLUTION\nx = 1\n# END SOLUTION")
    assert regions[0].body == ("x = 1",)
    assert [remark.fatal for remark in remarks] == [False, False]
    assert "write it with '###'" in remarks[0].sentence
