"""What a student reads, and what a grader gets."""

import numpy as np
import pytest

from utils.checks.verdict import CheckFailed, Result, SubCheck, outputs_of, shown, verify, wrong


def passes(call, seed):
    call({"seed": seed})


def fails(call, seed):
    call({"seed": seed})
    raise wrong("Rank 1 is wrong.", "2 ranks", np.arange(3.0), 2.5, "the sign")


def test_message_comes_first_then_a_line_for_each_fact():
    error = wrong("Rank 1 is wrong.", "2 ranks", np.arange(10.0), 1234567.0)
    assert str(error).splitlines() == [
        "Rank 1 is wrong.",
        "  given     2 ranks",
        "  came      [0, 1, 2, 3, 4, 5, 6, 7, …]",
        "  expected  1,234,567",
    ]
    assert error._render_traceback_()[0] == "CheckFailed: Rank 1 is wrong."
    assert isinstance(error, AssertionError)


def test_verify_goes_on_after_a_failure_and_runs_equal_inputs_once():
    calls = []
    results = verify(
        [SubCheck("one", passes), SubCheck("two", fails), SubCheck("three", passes)], calls.append, seed=8
    )
    assert calls == [{"seed": 8}]
    assert [result.passed for result in results] == [True, False, True]
    assert results[0] == Result("one", True, "")
    assert results[1].message.startswith("Rank 1 is wrong.")


@pytest.mark.parametrize(
    "value, text",
    [(1234567, "1,234,567"), (True, "True"), (0.5, "0.5"), (np.array([]), "[]"), ("word", "word")],
)
def test_shown(value, text):
    assert shown(value) == text


def failing_call(kind, message):
    return lambda inputs: {"error": {"kind": kind, "message": message, "rank": 0}, "printed": ["", "x = 3\n"]}


@pytest.mark.parametrize(
    "kind, sentence",
    [
        ("deadlock", "The ranks wait for each other and would wait for ever."),
        ("timeout", "The function did not come to an end."),
        ("raised", "The function raised an error."),
        ("something new", "The function raised an error."),
    ],
)
def test_a_failed_run_is_told_with_the_student_s_lines_only(kind, sentence):
    ours = ["  boundary.py in _run_probe: x", "  all_reduce.py in in_place: y"]
    message = "\n".join(["Rank 0 raised KeyError: 1", *ours, "  cell line 2, in f: z"])
    with pytest.raises(CheckFailed) as caught:
        outputs_of(failing_call(kind, message), "all_reduce.in_place", 2, "2 ranks")
    assert str(caught.value).splitlines() == [
        sentence,
        "  Rank 0 raised KeyError: 1",
        "    cell line 2, in f: z",
        "  given     2 ranks",
        "rank 1 printed: x = 3",
    ]
