"""Lab 02: one function per question. It takes the student's functions and a seed, prints a line or raises CheckFailed.

>>> from utils.checks import zero as check              # doctest: +SKIP
>>> check.q2(ShardedAdam)                               # doctest: +SKIP
q2: 8/8 checks passed

A grader calls `verify(QUESTIONS["q1"], call, seed)` of :mod:`utils.checks.verdict` with a `call` of its own and a fresh
seed instead. The sub-checks are in `zero_costs` (q1, q6, q7), `zero_adam` (q2), `zero_gradients` (q3) and `zero_layers`
(q4, q5); `zero_chunks` knows whose chunk is which. Memory is that of tensors that are alive, on every rank.
"""

from utils.checks import zero_adam, zero_costs, zero_gradients, zero_layers
from utils.checks.verdict import check_all, check_everything

_SUB_CHECKS = {
    **zero_costs.QUESTIONS,
    **zero_adam.QUESTIONS,
    **zero_gradients.QUESTIONS,
    **zero_layers.QUESTIONS,
}
QUESTIONS = {question: _SUB_CHECKS[question] for question in sorted(_SUB_CHECKS)}
"""The sub-checks of each question, in the order in which a student meets them."""

FUNCTIONS = {
    "q1": ("zero1_bytes", "zero2_bytes", "zero3_bytes"),
    "q2": ("ShardedAdam",),
    "q3": ("zero2_step",),
    "q4": ("ShardedLayer",),
    "q5": ("forward_with_prefetch",),
    "q6": ("saved_bytes", "layer_activation_bytes"),
    "q7": ("smallest_stage", "fewest_ranks"),
}
"""The functions and classes that each question asks for, in the order in which its check takes them."""

MAY_CALL = dict.fromkeys(("q2", "q3", "q4", "q5"), ("send",))
"""What a grader lets each question call: the sends and receives of a ring, and elsewhere nothing."""


def everything(namespace, seed=0):
    """Check all questions with the functions found in `namespace`, usually `globals()`; print a line for each."""
    check_everything(QUESTIONS, FUNCTIONS, namespace, seed)


def q1(zero1_bytes, zero2_bytes, zero3_bytes, seed=1):
    """Three functions of (parameters, ranks, optimizer_bytes=12): bytes of the training state on one rank."""
    check_all("q1", QUESTIONS["q1"], [zero1_bytes, zero2_bytes, zero3_bytes], seed)


def q2(ShardedAdam, seed=2):
    """ShardedAdam(model, lr, betas, eps) with a method step(): the optimizer state of the own chunk only."""
    check_all("q2", QUESTIONS["q2"], [ShardedAdam], seed)


def q3(zero2_step, seed=3):
    """zero2_step(blocks, losses, update): gradients are reduced during backward, a chunk of them stays."""
    check_all("q3", QUESTIONS["q3"], [zero2_step], seed)


def q4(ShardedLayer, seed=4):
    """ShardedLayer(layer): a module that keeps a chunk of the layer's weights, whole only while it computes."""
    check_all("q4", QUESTIONS["q4"], [ShardedLayer], seed)


def q5(forward_with_prefetch, seed=5):
    """forward_with_prefetch(layers, x): each layer's weights are on their way while the one before computes."""
    check_all("q5", QUESTIONS["q5"], [forward_with_prefetch], seed)


def q6(saved_bytes, layer_activation_bytes, seed=6):
    """saved_bytes(forward, exclude), and layer_activation_bytes(sequence, micro_batch, hidden, heads, recomputation)."""
    check_all("q6", QUESTIONS["q6"], [saved_bytes, layer_activation_bytes], seed)


def q7(smallest_stage, fewest_ranks, seed=7):
    """smallest_stage(parameters, memory_bytes, ranks, activation_bytes), fewest_ranks(…, stage, activation_bytes)."""
    check_all("q7", QUESTIONS["q7"], [smallest_stage, fewest_ranks], seed)
