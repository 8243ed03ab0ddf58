"""Lab 02's checks through a `call` of somebody else, with other seeds; and what they weigh memory with."""

import doctest
import gc

import pytest
import torch
from grader import assert_passes_with_any_seed
from torch import nn

from utils.checks.probes import alive as alive_module
from utils.checks.probes.alive import AliveBytes
from utils.checks.probes.zero import SAVING
from utils.checks.verdict import verify
from utils.checks.zero import MAY_CALL, QUESTIONS
from utils.checks.zero_costs import GPT_LAYER
from utils.parallel.activations import saved_bytes
from utils.theory.activations import layer_activation_bytes
from utils.theory.memory import Recipe, training_state_bytes
from utils.theory.models import Transformer

ON_RANKS = ("q2", "q3", "q4", "q5")


def test_what_each_question_may_call():
    assert tuple(MAY_CALL) == ON_RANKS


def of_stage(stage):
    return lambda psi, ranks, k=12: training_state_bytes(psi, Recipe(2, 2, k), stage, ranks)


def of_layer(s, b, h, a, recomputation="none"):
    return layer_activation_bytes(Transformer(1, h, a, sequence=s), b, recomputation=recomputation)


RIGHT = {"q1": [of_stage(stage) for stage in (1, 2, 3)], "q6": [saved_bytes, of_layer]}


@pytest.mark.parametrize("question", RIGHT)
def test_the_course_s_own_functions_pass_with_any_seed(question):
    assert_passes_with_any_seed(QUESTIONS[question], RIGHT[question])


@pytest.mark.parametrize("question", ON_RANKS)
def test_a_call_outside_the_students_function_is_refused(question):
    def generous(inputs):
        made = {"op": "broadcast", "case": None}
        ranks = inputs["world_size"]
        return {"error": None, "results": [{}] * ranks, "calls": [[made]] * ranks, "spans": [[]] * ranks, "printed": []}

    (first, *_) = verify(QUESTIONS[question], generous, seed=1)
    assert "Rank 0 called broadcast while your function was not running." in first.message


def test_the_counted_layer_is_the_one_of_the_formula():
    """LayerNorm's mean and deviation are all that the formula leaves out: twice two numbers per token, of 2 or 4 bytes."""
    b, s, h, a = GPT_LAYER
    counted = saved_bytes(*SAVING["gpt_layer"](*GPT_LAYER))
    assert 0 < counted - of_layer(s, b, h, a, "none") <= 2 * 2 * 4 * b * s
    assert counted == pytest.approx(of_layer(s, b, h, a, "none"), rel=0.01)


# Bytes that are alive


def test_the_docstring_of_the_watch():
    assert doctest.testmod(alive_module).failed == 0


def test_memory_counts_once_and_whole():
    with AliveBytes() as alive:
        row = torch.zeros(100)
        first = row[:1]
        assert alive.now() == 400
        del row
        assert alive.now() == 400, "a view keeps the whole alive"
        del first
        assert alive.now() == 0


def test_the_peak_is_between_the_beginning_and_the_end():
    with AliveBytes() as alive:
        kept = torch.zeros(10)
        kept += torch.ones(1000)[:10]
        assert (alive.peak, alive.now()) == (4040, 40)
        assert alive.restart() == alive.peak == 40


def test_gradients_and_memory_that_is_let_go_count():
    with AliveBytes() as alive:
        layer = nn.Linear(10, 10)
        assert alive.now() == 440
        layer(torch.ones(2, 10)).sum().backward()
        assert alive.now() == 2 * 440
        layer.weight.grad.untyped_storage().resize_(0)
        assert alive.now() == 440 + 40


def test_what_is_made_without_memory_does_not_count():
    with AliveBytes() as alive:
        torch.empty(1000, device="meta")
        kept = torch.empty(1000, device="meta")
        assert alive.now() == 0 and len(kept) == 1000


def test_a_circle_of_objects_is_no_reason_to_count():
    with AliveBytes() as alive:
        gc.disable()
        try:
            circle = [torch.zeros(100)]
            circle.append(circle)
            del circle
            assert alive.now() == 0
        finally:
            gc.enable()
