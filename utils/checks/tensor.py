"""Lab 03: one function per question. It takes the student's functions and a seed, prints a line or raises CheckFailed.

A grader calls `verify(QUESTIONS["q1"], call, seed)` of :mod:`utils.checks.verdict` with a `call` of its own and a fresh
seed instead. The sub-checks are in `tensor_shards` (q1), `tensor_operators` (q2), `tensor_layers` (q3, q4),
`tensor_attention` (q5), `tensor_vocabulary` (q6) and `tensor_placement` (q7); `tensor_compare` holds what they share.
"""

from utils.checks import (
    tensor_attention,
    tensor_layers,
    tensor_operators,
    tensor_placement,
    tensor_shards,
    tensor_vocabulary,
)
from utils.checks.verdict import check_all, first_failure

QUESTIONS = {
    **tensor_shards.QUESTIONS,
    **tensor_operators.QUESTIONS,
    **tensor_layers.QUESTIONS,
    **tensor_attention.QUESTIONS,
    **tensor_vocabulary.QUESTIONS,
    **tensor_placement.QUESTIONS,
}
"""The sub-checks of each question, in the order in which a student meets them."""

FUNCTIONS = {
    "q1": ("column_shard", "row_shard", "join_columns", "join_rows"),
    "q2": ("f", "g"),
    "q3": ("mlp_shards", "parallel_mlp"),
    "q4": ("swiglu_shards", "parallel_swiglu"),
    "q5": ("attention_shards", "parallel_attention"),
    "q6": ("parallel_embedding", "parallel_cross_entropy"),
    "q7": ("parallel_layer", "parallel_layer_side_by_side", "elements_sent"),
}
"""The functions that each question asks for, in the order in which its check takes them."""

MAY_CALL = {
    **dict.fromkeys(("q2", "q3", "q4", "q6", "q7"), ("all_reduce",)),
    "q5": ("all_reduce", "new_group"),
}
"""What a grader lets the functions of each question call: nothing else exists there, and nothing at all in q1."""


def everything(namespace, seed=0):
    """Check all questions with the functions found in `namespace`, usually `globals()`; print a line for each."""
    for question, names in FUNCTIONS.items():
        missing = [name for name in names if not callable(namespace.get(name))]
        if missing:
            message = f"{missing[0]} is not defined: run the cell of its exercise."
        else:
            message = first_failure(question, QUESTIONS[question], [namespace[name] for name in names], seed)
        print(f"{question}: {'not yet: ' + message.splitlines()[0] if message else 'passed'}")


def q1(column_shard, row_shard, join_columns, join_rows, seed=1):
    """column_shard(matrix, rank, ranks) and row_shard(...); join_columns(shards) and join_rows(shards)."""
    check_all("q1", QUESTIONS["q1"], [column_shard, row_shard, join_columns, join_rows], seed)


def q2(f, g, seed=2):
    """f(x) and g(x): identity and all-reduce, all-reduce and identity, forward and backward."""
    check_all("q2", QUESTIONS["q2"], [f, g], seed)


def q3(mlp_shards, parallel_mlp, seed=3):
    """mlp_shards(a, bias_a, b, bias_b, rank, ranks) and parallel_mlp(x, a, bias_a, b, bias_b)."""
    check_all("q3", QUESTIONS["q3"], [mlp_shards, parallel_mlp], seed)


def q4(swiglu_shards, parallel_swiglu, seed=4):
    """swiglu_shards(gate_up, down, rank, ranks) and parallel_swiglu(x, gate_up, down)."""
    check_all("q4", QUESTIONS["q4"], [swiglu_shards, parallel_swiglu], seed)


def q5(attention_shards, parallel_attention, seed=5):
    """attention_shards(wq, wk, wv, wo, heads, kv_heads, rank, ranks) and parallel_attention(x, ..., sharers)."""
    check_all("q5", QUESTIONS["q5"], [attention_shards, parallel_attention], seed)


def q6(parallel_embedding, parallel_cross_entropy, seed=6):
    """parallel_embedding(tokens, rows) and parallel_cross_entropy(logits, targets, vocab)."""
    check_all("q6", QUESTIONS["q6"], [parallel_embedding, parallel_cross_entropy], seed)


def q7(parallel_layer, parallel_layer_side_by_side, elements_sent, seed=7):
    """Where f and g stand in a layer, in two forms of it, and how many elements the all-reduces send."""
    check_all("q7", QUESTIONS["q7"], [parallel_layer, parallel_layer_side_by_side, elements_sent], seed)
