"""Watch: bytes of groups of tensors after every operation, forward and backward."""

import pytest
import torch
from torch import nn

from utils.parallel.watch import Watch, group_bytes


def test_a_stretch_of_memory_counts_once_and_whole_in_the_first_group():
    matrix = torch.zeros(4, 4)
    assert group_bytes({"parameters": [matrix[0], matrix], "gradients": [matrix, torch.zeros(2), None]}) == {
        "parameters": 64,
        "gradients": 8,
    }


def test_gradients_come_one_by_one_in_backward():
    layers = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    with Watch(lambda: {"gradients": [p.grad for p in layers.parameters()]}) as watch:
        loss = layers(torch.ones(1, 3)).sum()
        watch.mark("backward")
        loss.backward()
        torch.ones(1)
    seen = [counts["gradients"] for counts in watch.history]
    assert set(seen[: watch.marks["backward"]]) == {0}
    assert sorted(set(seen)) == [0, 4 * 2 * 5, 4 * (2 * 5 + 5 * 3)]  # the last layer's first
    assert seen == sorted(seen)


def test_peak_of_each_group_and_of_their_sum():
    first, second = [torch.zeros(10)], []
    with Watch(lambda: {"first": first, "second": second}) as watch:
        torch.ones(1)
        first.clear()
        second.append(torch.zeros(5))
        torch.ones(1)
    assert watch.peak == {"first": 40, "second": 20}
    assert watch.peak_total == pytest.approx(40)


def test_freed_storage_counts_as_nothing():
    vector = torch.zeros(8)
    vector.untyped_storage().resize_(0)
    assert group_bytes({"parameters": [vector]}) == {"parameters": 0}
