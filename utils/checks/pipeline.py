"""Lab 04: one function per question. It takes the student's functions and a seed, prints a line or raises CheckFailed.

>>> from utils.checks import pipeline as check          # doctest: +SKIP
>>> check.q2(one_f_one_b_order)                         # doctest: +SKIP
q2: 4/4 checks passed

A grader calls `verify(QUESTIONS["q1"], call, seed)` of :mod:`utils.checks.verdict` with a `call` of its own and a fresh
seed instead. The sub-checks are in `pipeline_orders` (q1, q2), `pipeline_simulation` (q3), `pipeline_executor` (q4),
`pipeline_split` (q5) and `pipeline_choice` (q6). An order is judged by what it does, not by a list to compare it with.
"""

from utils.checks import (
    pipeline_choice,
    pipeline_executor,
    pipeline_orders,
    pipeline_simulation,
    pipeline_split,
)
from utils.checks.verdict import check_all, check_everything

QUESTIONS = {
    **pipeline_orders.QUESTIONS,
    **pipeline_simulation.QUESTIONS,
    **pipeline_executor.QUESTIONS,
    **pipeline_split.QUESTIONS,
    **pipeline_choice.QUESTIONS,
}
"""The sub-checks of each question, in the order in which a student meets them."""

FUNCTIONS = {
    "q1": ("gpipe_order",),
    "q2": ("one_f_one_b_order",),
    "q3": ("simulate", "bubble"),
    "q4": ("run_schedule",),
    "q5": ("zb_h1_order", "SplitLinear"),
    "q6": ("activation_bytes", "choose"),
}
"""The functions and classes that each question asks for, in the order in which its check takes them."""

MAY_CALL = {"q4": ("send",), "q5": ("send",)}
"""What a grader lets each question call: sends and receives, and elsewhere nothing."""


def everything(namespace, seed=0):
    """Check all questions with the functions found in `namespace`, usually `globals()`; print a line for each."""
    check_everything(QUESTIONS, FUNCTIONS, namespace, seed)


def q1(gpipe_order, seed=1):
    """gpipe_order(ranks, micro_batches): for each rank a list of (kind, micro-batch), all forwards first."""
    check_all("q1", QUESTIONS["q1"], [gpipe_order], seed)


def q2(one_f_one_b_order, seed=2):
    """one_f_one_b_order(ranks, micro_batches): GPipe's bubble with at most p − r micro-batches in flight on rank r."""
    check_all("q2", QUESTIONS["q2"], [one_f_one_b_order], seed)


def q3(simulate, bubble, seed=3):
    """simulate(orders, seconds, transfer): for each rank (start, end) of its actions, or None; and bubble(times)."""
    check_all("q3", QUESTIONS["q3"], [simulate, bubble], seed)


def q4(run_schedule, seed=4):
    """run_schedule(actions, stage, loss_fn, boundary, inputs, targets): one rank's part of a pipeline's step."""
    check_all("q4", QUESTIONS["q4"], [run_schedule], seed)


def q5(zb_h1_order, SplitLinear, seed=5):
    """zb_h1_order(ranks, micro_batches), and a linear layer whose backward puts off the weight's part."""
    check_all("q5", QUESTIONS["q5"], [zb_h1_order, SplitLinear], seed)


def q6(activation_bytes, choose, seed=6):
    """activation_bytes(schedule, ranks, micro_batches, rank, micro_batch_bytes), and choose(…): the fastest that fits."""
    check_all("q6", QUESTIONS["q6"], [activation_bytes, choose], seed)
