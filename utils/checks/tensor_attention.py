"""Lab 03, q5: attention with grouped queries, its heads spread over the ranks."""

import numpy as np
import torch
import torch.nn.functional as F

from utils.checks.tensor_compare import (
    Layer,
    check_calls,
    check_gradient_of_x,
    check_gradients_of_parts,
    check_output,
    check_replicas,
    close,
    made,
)
from utils.checks.tensor_layers import columns, rows, run_layer
from utils.checks.tensor_shards import check_cut, cut, distinct
from utils.checks.verdict import SubCheck, wrong

_HEAD_SIZE, _SHAPE = 2, (2, 3, 4)
_MESSAGE = int(np.prod(_SHAPE))
_NAMES = ("wq", "wk", "wv", "wo")
_ENOUGH = (2, 8, 4)  # ranks, query heads, key and value heads
_SHARED = (4, 8, 2)
_SETTINGS = (_ENOUGH, (2, 4, 4), _SHARED, (4, 4, 1))


def _kv_cut(matrix, kv_heads, rank, ranks):
    """This rank's key or value heads: a block of them, or the one that it shares with its neighbours."""
    return columns(matrix, rank * min(kv_heads, ranks) // ranks, min(kv_heads, ranks))


def _cut(kv_heads):
    def parts(weights, rank, ranks):
        wq, wk, wv, wo = weights
        keys, values = (_kv_cut(matrix, kv_heads, rank, ranks) for matrix in (wk, wv))
        return [columns(wq, rank, ranks), keys, values, rows(wo, rank, ranks)]

    return parts


def _attend(x, wq, wk, wv, wo, interleave=True, causal=True):
    """Attention of all the heads that the matrices have, before any sum over ranks."""
    q, k, v = ((x @ w).unflatten(-1, (-1, _HEAD_SIZE)).transpose(1, 2) for w in (wq, wk, wv))
    repeats = q.shape[1] // k.shape[1]
    if interleave:
        k, v = (heads.repeat_interleave(repeats, dim=1) for heads in (k, v))
    else:
        k, v = (heads.repeat(1, repeats, 1, 1) for heads in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2) @ wo


def _hints(kv_heads):
    parts_of = _cut(kv_heads)

    def hints(x, weights, y, ranks):
        def summed(**options):
            alone = (
                _attend(*(torch.tensor(array) for array in (x, *parts_of(weights, rank, ranks))), **options)
                for rank in range(ranks)
            )
            return sum(alone).numpy()

        yield summed(interleave=False), (
            "the heads meet the wrong keys: neighbouring query heads use the same key head, 0 0 1 1 and not 0 1 0 1"
        )
        yield summed(causal=False), "a token sees later tokens: is_causal=True"

    return hints


def _layer(kv_heads):
    return Layer("tensor.attention", _NAMES, _cut(kv_heads), _attend, _attend, _hints(kv_heads))


def _weights(make, heads, kv_heads):
    hidden, wide, narrow = _SHAPE[-1], heads * _HEAD_SIZE, kv_heads * _HEAD_SIZE
    return [make(hidden, wide), make(hidden, narrow), make(hidden, narrow), make(wide, hidden)]


def _in_words(heads, kv_heads):
    return f"{heads} query heads and {kv_heads} key and value heads of size {_HEAD_SIZE}"


def _shards(chosen):
    """Whole heads in blocks; a key head that several ranks need is whole on each of them."""

    def check(call, seed):
        wholes = [_weights(lambda *shape: distinct(seed, *shape), *heads) for _, *heads in _SETTINGS]
        cases = [
            {"tensors": whole, "numbers": heads, "ranks": ranks}
            for whole, (ranks, *heads) in zip(wholes, _SETTINGS, strict=True)
        ]
        made = list(zip(_SETTINGS, wholes, cut(call, 0, cases), strict=True))
        for setting, whole, cuts in made[chosen]:
            _check_heads(setting, whole, cuts)

    return check


def _check_heads(setting, whole, cuts):
    ranks, heads, kv_heads = setting
    expected = [_cut(kv_heads)(whole, rank, ranks) for rank in range(ranks)]

    def hints(name, rank, came):
        number = _NAMES.index(name)
        matrix, right = whole[number], expected[rank][number]
        if name == "wo":
            by_columns = np.array_equal(came, columns(matrix, rank, ranks))
            return "wo is cut by columns, but a rank that has some heads needs those rows of wo" if by_columns else None
        n_heads = heads if name == "wq" else kv_heads
        held = _heads_in(came, matrix, n_heads)
        if held is not None:
            return f"these are the heads {held}, but rank {rank} needs {_heads_in(right, matrix, n_heads)}"
        if name != "wq" and np.array_equal(came, columns(matrix, rank, ranks)):
            return "this cuts a head in the middle: a key head that several ranks need is whole on each of them"
        return None

    check_cut(cuts, expected, _NAMES, f"{ranks} ranks, {_in_words(heads, kv_heads)}", whole, hints)


def _heads_in(came, matrix, n_heads):
    """The numbers of the whole heads that `came` is made of; None if it is not made of whole heads."""
    size = matrix.shape[1] // n_heads
    if came.ndim != 2 or came.shape[0] != matrix.shape[0] or came.shape[1] % size:
        return None
    heads = np.split(matrix, n_heads, axis=1)
    held = [
        next((number for number, head in enumerate(heads) if np.array_equal(piece, head)), None)
        for piece in np.split(came, max(1, came.shape[1] // size), axis=1)
    ]
    return None if None in held else held


def _run(call, seed, setting):
    ranks, heads, kv_heads = setting
    rng = np.random.default_rng([seed, 50])
    weights = _weights(lambda *shape: rng.standard_normal(shape), heads, kv_heads)
    pieces = min(kv_heads, ranks)
    sharers = [ranks_of.tolist() for ranks_of in np.split(np.arange(ranks), pieces)]
    layer = _layer(kv_heads)
    words = _in_words(heads, kv_heads) + (f", shared by the ranks {sharers}" if pieces < ranks else "")
    run = run_layer(
        layer, call, seed, ranks, weights, words, _SHAPE, head_size=_HEAD_SIZE, sharers=sharers
    )
    return layer, run, sharers


def _output(settings):
    def check(call, seed):
        for setting in settings:
            layer, run, _ = _run(call, seed, setting)
            check_output(layer, run)

    return check


def _gradients(call, seed):
    layer, run, _ = _run(call, seed, _ENOUGH)
    check_gradients_of_parts(layer, run)
    check_gradient_of_x(run)


def _shared_heads(call, seed):
    """wk and wv get the gradients of all ranks that share the head, with the same bits on each of them."""
    layer, run, sharers = _run(call, seed, _SHARED)
    for group in sharers:
        for number, name in ((1, "wk"), (2, "wv")):
            for rank in group:
                came, expected = run.outputs["results"][rank]["gradients"][number], run.gradients[rank][number]
                if close(came, expected):
                    continue
                mean = close(came, expected / len(group))
                alone = close(came, run.alone[rank][2][number])
                raise wrong(
                    f"Rank {rank}'s gradient of {name} is not the sum over the ranks {group}, which hold the same head.",
                    run.given, came, expected,
                    "the mean was taken" if mean
                    else "this is what the rank's own query heads send back: the copies would drift apart" if alone else None,
                )  # fmt: skip
            bits = {run.outputs["results"][rank]["gradients"][number].tobytes() for rank in group}
            if len(bits) > 1:
                raise wrong(f"The ranks {group} do not have the same bits in the gradient of {name}.", run.given)
    check_gradients_of_parts(layer, run, names=("wq", "wo"))
    check_gradient_of_x(run)
    check_replicas(run)


def _calls(call, seed):
    """b·s·h forward and backward; beyond that only what the shared heads need, among those that share them."""
    _, run, _ = _run(call, seed, _ENOUGH)
    hints = {
        "forward": "heads do not need each other: one sum, after wo",
        "backward": "x enters the split once: one f, whose result wq, wk and wv use",
    }
    check_calls(run.outputs, run.given, [_MESSAGE], [_MESSAGE], hints)
    _, run, _ = _run(call, seed, _SHARED)
    shared = 2 * _SHAPE[-1] * _HEAD_SIZE
    for rank in range(run.ranks):
        check_calls_of_rank(run, rank, shared, hints)


def check_calls_of_rank(run, rank, shared, hints):
    """Forward one all-reduce of b·s·h; backward that, and the gradients of the shared heads in one or two calls."""
    forward, backward = (made(run.outputs, rank, case) for case in ("forward", "backward"))
    if forward != [("all_reduce", _MESSAGE)]:
        raise wrong(
            f"With shared heads rank {rank} makes {len(forward)} calls forward; one is enough.", run.given,
            f"{forward}", f"one all_reduce of {_MESSAGE} elements", hints["forward"],
        )  # fmt: skip
    elements = sum(elements for _, elements in backward)
    if len(backward) not in (2, 3) or elements != _MESSAGE + shared or {op for op, _ in backward} != {"all_reduce"}:
        raise wrong(
            f"With shared heads rank {rank} sends {elements} elements in {len(backward)} calls backward.", run.given,
            f"{backward}", f"{_MESSAGE} for x, and {shared} for its parts of wk and wv",
            "f round wk and wv, with the group of those that share them",
        )  # fmt: skip


QUESTIONS = {
    "q5": (
        SubCheck("whole heads in blocks", _shards(slice(0, 2))),
        SubCheck("fewer key heads than ranks", _shards(slice(2, 4))),
        SubCheck("the result of one process", _output((_ENOUGH, _SHARED))),
        SubCheck("the gradients of one process", _gradients),
        SubCheck("shared heads: gradients added up", _shared_heads),
        SubCheck("the calls", _calls),
    ),
}
