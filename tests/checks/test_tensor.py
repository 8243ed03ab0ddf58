"""Lab 03's checks through a `call` of somebody else, with other seeds: what a grader does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from grader import assert_passes_with_any_seed, failed, over_a_wall
from torch import nn

from utils.checks import tensor_attention, tensor_shards
from utils.checks.tensor import QUESTIONS
from utils.checks.verdict import verify
from utils.parallel.tensor_ops import copy_to_group, reduce_from_group
from utils.theory.traffic import tensor_all_reduces_per_layer


def elements(batch, sequence, hidden, layers, ranks, recomputed):
    calls = layers * tensor_all_reduces_per_layer("full" if recomputed else "none")
    return calls * 2 * (ranks - 1) * batch * sequence * hidden / ranks


def one_after_the_other(x, norm_1, attention, norm_2, mlp):
    for norm, block in ((norm_1, attention), (norm_2, mlp)):
        x = x + reduce_from_group(block(copy_to_group(norm(x))))
    return x


def side_by_side(x, norm, attention, mlp):
    normed = copy_to_group(norm(x))
    return x + reduce_from_group(attention(normed) + mlp(normed))


RIGHT = {"q2": [copy_to_group, reduce_from_group], "q7": [one_after_the_other, side_by_side, elements]}


@pytest.mark.parametrize("question", RIGHT)
def test_the_course_s_own_functions_pass_with_any_seed(question):
    assert_passes_with_any_seed(QUESTIONS[question], RIGHT[question])


def test_partial_credit():
    """Right results with an all-reduce too many: all sub-checks but that on the calls pass."""

    def two_sums(x, norm, attention, mlp):
        normed = copy_to_group(norm(x))
        return x + reduce_from_group(attention(normed)) + reduce_from_group(mlp(normed))

    names = failed(QUESTIONS["q7"], over_a_wall([one_after_the_other, two_sums, elements]), seed=5)
    assert names == ["side by side: one all-reduce forward, one backward"]


def test_a_call_outside_the_student_s_turn_is_refused():
    def outputs(inputs):
        made = over_a_wall(RIGHT["q2"])(inputs)
        for calls in made["calls"]:
            for call in calls:
                call["case"] = None
        return made

    results = verify(QUESTIONS["q2"][1:2], outputs, seed=1)
    assert "while your function was not running" in results[0].message


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (8, 2), (4, 1)])
def test_the_reference_attention_is_attention_head_by_head(heads, kv_heads):
    size = tensor_attention._HEAD_SIZE
    generator = torch.Generator().manual_seed(heads + kv_heads)
    x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    wq, wk, wv, wo = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((4, heads * size), (4, kv_heads * size), (4, kv_heads * size), (heads * size, 4))
    )
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    total = 0
    for head in range(heads):
        own, shared = (slice(n * size, (n + 1) * size) for n in (head, head // (heads // kv_heads)))
        q, k, v = x @ wq[:, own], x @ wk[:, shared], x @ wv[:, shared]
        scores = (q @ k.transpose(-2, -1) / size**0.5).masked_fill(future, -torch.inf)
        total = total + scores.softmax(-1) @ v @ wo[own]
    torch.testing.assert_close(tensor_attention._attend(x, wq, wk, wv, wo), total)


def test_the_parts_of_all_ranks_add_up_to_the_whole():
    """The sums of the checks' own partial results are what one process gets, for every layer and cut."""
    whole = [tensor_shards.distinct(3, *shape) / 50 for shape in ((4, 16), (4, 4), (4, 4), (16, 4))]
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((2, 3, 4)))
    right = tensor_attention._attend(x, *(torch.from_numpy(matrix) for matrix in whole))
    for ranks in (1, 2, 4):
        parts = [tensor_attention._cut(2)(whole, rank, ranks) for rank in range(ranks)]
        alone = [tensor_attention._attend(x, *map(torch.tensor, map(np.ascontiguousarray, own))) for own in parts]
        torch.testing.assert_close(sum(alone), right)


def test_columns_in_the_lab_are_rows_of_a_linear_layer_s_weight():
    linear = nn.Linear(3, 4, bias=False)
    x, a = torch.randn(2, 3), linear.weight.t()
    torch.testing.assert_close(linear(x), x @ a)
    torch.testing.assert_close(F.linear(x, linear.weight.tensor_split(2)[1]), x @ a.tensor_split(2, dim=1)[1])
