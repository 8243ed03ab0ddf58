"""Lab 01's checks through a `call` of somebody else, with other seeds: what a grader does."""

import pytest
from grader import assert_passes_with_any_seed, failed, over_a_wall

from utils.checks.all_reduce import QUESTIONS
from utils.parallel import collectives
from utils.theory.memory import data_parallel_bytes, parameter_server_worker_bytes

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
    assert_passes_with_any_seed(QUESTIONS[question], RIGHT[question])


def test_partial_credit():
    """Right sums with too much traffic: all sub-checks but those on messages pass."""
    assert failed(QUESTIONS["q3"], over_a_wall([gather_broadcast]), seed=5) == ["elements sent"]


def gather_broadcast(tensor):
    flat = tensor.contiguous()
    collectives.gather_broadcast_all_reduce(flat)
    tensor.copy_(flat)
