"""Lab 05: one function per question. It takes the student's functions and a seed, prints a line or raises CheckFailed.

>>> from utils.checks import layout as check            # doctest: +SKIP
>>> check.q1(coordinates, rank_at, groups)              # doctest: +SKIP
q1: 4/4 checks passed

A grader calls `verify(QUESTIONS["q1"], call, seed)` of :mod:`utils.checks.verdict` with a `call` of its own and a fresh
seed instead. The sub-checks are in `layout_grid` (q1), `layout_memory` (q2), `layout_step` (q3), `layout_prediction` (q4)
and `layout_rules` (q5).
"""

from utils.checks import layout_grid, layout_memory, layout_prediction, layout_rules, layout_step
from utils.checks.verdict import check_all, check_everything

QUESTIONS = {
    **layout_grid.QUESTIONS,
    **layout_memory.QUESTIONS,
    **layout_step.QUESTIONS,
    **layout_prediction.QUESTIONS,
    **layout_rules.QUESTIONS,
}
"""The sub-checks of each question, in the order in which a student meets them."""

FUNCTIONS = {
    "q1": ("coordinates", "rank_at", "groups"),
    "q2": ("rank_bytes", "fewest_gpus"),
    "q3": ("make_groups", "train_step"),
    "q4": ("volumes", "step_seconds"),
    "q5": ("broken_rule",),
}
"""The functions that each question asks for, in the order in which its check takes them."""

MAY_CALL = {"q3": ("new_group", "send", "all_reduce", "broadcast")}
"""What a grader lets each question call; elsewhere nothing."""


def everything(namespace, seed=0):
    """Check all questions with the functions found in `namespace`, usually `globals()`; print a line for each."""
    check_everything(QUESTIONS, FUNCTIONS, namespace, seed)


def q1(coordinates, rank_at, groups, seed=1):
    """coordinates(rank, sizes), rank_at(position, sizes) and groups(dimension, sizes) of a grid of ranks."""
    check_all("q1", QUESTIONS["q1"], [coordinates, rank_at, groups], seed)


def q2(rank_bytes, fewest_gpus, seed=2):
    """rank_bytes(model, layout, batch), and fewest_gpus(model, batch, micro_batch, machine): (t, p, d) or None."""
    check_all("q2", QUESTIONS["q2"], [rank_bytes, fewest_gpus], seed)


def q3(make_groups, train_step, seed=3):
    """make_groups(tensor, data, pipeline), and train_step(…): a step on t·d·p ranks that equals one process."""
    check_all("q3", QUESTIONS["q3"], [make_groups, train_step], seed)


def q4(volumes, step_seconds, seed=4):
    """volumes(model, layout, batch), bytes by dimension, and step_seconds(model, layout, batch, machine), by part."""
    check_all("q4", QUESTIONS["q4"], [volumes, step_seconds], seed)


def q5(broken_rule, seed=5):
    """broken_rule(model, layout, batch, machine): the name of the rule that a layout breaks, or None."""
    check_all("q5", QUESTIONS["q5"], [broken_rule], seed)
