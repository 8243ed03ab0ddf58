"""Lab 01: one function per question. It takes the student's functions and a seed, prints a line or raises CheckFailed.

>>> from utils.checks import all_reduce as check        # doctest: +SKIP
>>> check.q1(reduce_scatter)                            # doctest: +SKIP
q1: 5/5 checks passed

A grader calls `verify(QUESTIONS["q1"], call, seed)` of :mod:`utils.checks.verdict` with a `call` of its own and a fresh
seed instead. The sub-checks are in `all_reduce_collectives` (q1 to q3), `all_reduce_training` (q4, q5) and
`all_reduce_costs` (q6, q7).
"""

from utils.checks import all_reduce_collectives, all_reduce_costs, all_reduce_training
from utils.checks.verdict import check_all, check_everything

QUESTIONS = {
    **all_reduce_collectives.QUESTIONS,
    **all_reduce_training.QUESTIONS,
    **all_reduce_costs.QUESTIONS,
}
"""The sub-checks of each question, in the order in which a student meets them."""

FUNCTIONS = {
    "q1": ("reduce_scatter",),
    "q2": ("all_gather",),
    "q3": ("all_reduce",),
    "q4": ("broadcast_model", "data_parallel_step"),
    "q5": ("make_buckets", "backward_with_overlap"),
    "q6": ("server_round", "elements_through_server", "elements_through_ring_rank"),
    "q7": ("data_parallel_bytes", "server_worker_bytes", "largest_batch"),
}
"""The functions that each question asks for, in the order in which its check takes them."""

MAY_CALL = {
    "q1": ("send",),
    "q2": ("send",),
    "q3": ("send",),
    "q4": ("send", "broadcast", "all_reduce"),
    "q5": ("send", "all_reduce"),
    "q6": ("send",),
}
"""What a grader lets the functions of each question call: nothing else exists there, and nothing at all in q7."""


def everything(namespace, seed=0):
    """Check all questions with the functions found in `namespace`, usually `globals()`; print a line for each."""
    check_everything(QUESTIONS, FUNCTIONS, namespace, seed)


def q1(reduce_scatter, seed=1):
    """reduce_scatter(tensor): a ring, in place; rank r ends with the complete sum of chunk (r + 1) mod N."""
    check_all("q1", QUESTIONS["q1"], [reduce_scatter], seed)


def q2(all_gather, seed=2):
    """all_gather(tensor): a ring, in place; rank r starts with chunk (r + 1) mod N and ends with all chunks."""
    check_all("q2", QUESTIONS["q2"], [all_gather], seed)


def q3(all_reduce, seed=3):
    """all_reduce(tensor): the sum over the ranks, in place, for tensors of any shape and layout."""
    check_all("q3", QUESTIONS["q3"], [all_reduce], seed)


def q4(broadcast_model, data_parallel_step, seed=4):
    """broadcast_model(model) and data_parallel_step(model, loss_fn, optimizer, inputs, targets, batch_size)."""
    check_all("q4", QUESTIONS["q4"], [broadcast_model, data_parallel_step], seed)


def q5(make_buckets, backward_with_overlap, seed=5):
    """make_buckets(parameters, bucket_bytes) and backward_with_overlap(loss, buckets)."""
    check_all("q5", QUESTIONS["q5"], [make_buckets, backward_with_overlap], seed)


def q6(server_round, elements_through_server, elements_through_ring_rank, seed=6):
    """server_round(weights, gradient, learning_rate), and two formulas of (parameters, workers or ranks)."""
    check_all(
        "q6", QUESTIONS["q6"], [server_round, elements_through_server, elements_through_ring_rank], seed
    )


def q7(data_parallel_bytes, server_worker_bytes, largest_batch, seed=7):
    """Three functions that return bytes on one rank, bytes on a server's worker, and a number of samples."""
    check_all("q7", QUESTIONS["q7"], [data_parallel_bytes, server_worker_bytes, largest_batch], seed)
