"""What holds for the checks of every lab."""
import importlib

import pytest
from grader import failed

from utils.grading.may_call import EVERYTHING

LABS = {name: importlib.import_module(f"utils.checks.{name}") for name in ("all_reduce", "zero", "tensor", "pipeline", "layout")}
HOW_MANY = {"all_reduce": (7, 4), "zero": (7, 3), "tensor": (7, 4), "pipeline": (6, 4), "layout": (5, 3)}
"""Questions, and the fewest sub-checks that one of them has."""
QUESTIONS = [(name, question) for name, lab in LABS.items() for question in lab.QUESTIONS]
ODD_RESULTS = [
    None, [], {}, "no list", 1.0, [float("nan")] * 9, [float("nan")] * 18, [[[]]] * 6, ["node"] * 99, {"loss": [1.0]},
    {"after": 1, "seen": "x", "hooks": []}, {"states": 1, "bytes": {}, "given": "x"},
    {"y": 1, "dx": "x", "gradients": [], "loss": None}, {"members": {}, "loss": None, "gradients": []},
]


@pytest.mark.parametrize("name", LABS)
def test_every_question_has_functions_and_sub_checks(name):
    lab, (questions, fewest) = LABS[name], HOW_MANY[name]
    assert tuple(lab.QUESTIONS) == tuple(lab.FUNCTIONS) == tuple(f"q{number}" for number in range(1, questions + 1))
    for question, sub_checks in lab.QUESTIONS.items():
        assert len({sub_check.name for sub_check in sub_checks}) == len(sub_checks) >= fewest
        assert getattr(lab, question).__doc__
    assert set(lab.MAY_CALL) < set(lab.QUESTIONS)
    assert {word for words in lab.MAY_CALL.values() for word in words} <= set(EVERYTHING)


@pytest.mark.parametrize("name, question", QUESTIONS)
@pytest.mark.parametrize("result", ODD_RESULTS, ids=str)
@pytest.mark.parametrize("ranks", ["all", "none"])
def test_outputs_of_any_form_earn_nothing_and_break_nothing(name, question, result, ranks):
    def tampered(inputs):
        count = inputs["world_size"] if ranks == "all" else 0
        empty = [[] for _ in range(count)]
        return {"error": None, "results": [result] * count, "calls": empty, "spans": empty, "printed": []}

    sub_checks = LABS[name].QUESTIONS[question]
    assert failed(sub_checks, tampered, seed=1) == [sub_check.name for sub_check in sub_checks]
