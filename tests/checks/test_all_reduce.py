"""Lab 01's checks through a `call` of somebody else, with other seeds: what a grader does."""

import numpy as np
import pytest

from utils.checks.all_reduce import FUNCTIONS, QUESTIONS
from utils.checks.boundary import call_on_ranks, plain
from utils.checks.verdict import verify
from utils.parallel import collectives
from utils.theory.memory import data_parallel_bytes, parameter_server_worker_bytes


def test_every_question_has_functions_and_sub_checks():
    assert tuple(QUESTIONS) == tuple(FUNCTIONS) == tuple(f"q{number}" for number in range(1, 8))
    for sub_checks in QUESTIONS.values():
        assert len({sub_check.name for sub_check in sub_checks}) == len(sub_checks) >= 4


def assert_plain(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            assert_plain(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            assert type(key) is str
            assert_plain(item)
    else:
        assert value is None or type(value) in (bool, int, float, str, np.ndarray), type(value)


def over_a_wall(functions, seen):
    """A call that lets nothing but plain data pass in either direction."""
    call = call_on_ranks(*functions)

    def other_side(inputs):
        inputs = plain(inputs)
        seen.append(inputs)
        assert_plain(inputs)
        outputs = call(inputs)
        assert_plain(outputs)
        return plain(outputs)

    return other_side


RIGHT = {
    "q1": [collectives.ring_reduce_scatter],
    "q2": [collectives.ring_all_gather],
    "q7": [
        data_parallel_bytes,
        lambda psi, per_sample, batch, workers: (
            parameter_server_worker_bytes(psi) + -(-batch // workers) * per_sample
        ),
        lambda memory, psi, per_sample, ranks, optimizer: (
            ranks * max(0, int((memory - data_parallel_bytes(psi, 0, 1, ranks, optimizer)) // per_sample))
        ),
    ],
}


@pytest.mark.parametrize("question", RIGHT)
def test_the_course_s_own_functions_pass_with_any_seed(question):
    given = []
    for seed in (101, 102):
        seen = []
        results = verify(QUESTIONS[question], over_a_wall(RIGHT[question], seen), seed)
        assert [result.message for result in results] == [""] * len(results)
        given.append(seen)
    assert repr(given[0]) != repr(given[1]), "another seed gives other inputs"


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "result", [None, [], {"after": 1, "seen": "x", "hooks": []}, [float("nan")] * 9, "no list"]
)
def test_outputs_of_any_form_earn_nothing_and_break_nothing(question, result):
    def tampered(inputs):
        if result == "no list":
            return {"error": None, "results": [], "calls": [], "spans": [], "printed": []}
        empty = [[]] * inputs["world_size"]
        return {
            "error": None,
            "results": [result] * len(empty),
            "calls": empty,
            "spans": empty,
            "printed": [],
        }

    verdicts = verify(QUESTIONS[question], tampered, seed=1)
    assert [verdict.name for verdict in verdicts if verdict.passed] == []


def test_partial_credit():
    """Right sums with too much traffic: all sub-checks but those on messages pass."""
    results = verify(QUESTIONS["q3"], over_a_wall([gather_broadcast], []), seed=5)
    assert {result.name for result in results if not result.passed} == {"elements sent"}


def gather_broadcast(tensor):
    flat = tensor.contiguous()
    collectives.gather_broadcast_all_reduce(flat)
    tensor.copy_(flat)
