"""Lab 03, q2: f and g, forward and backward, alone and round a split MLP."""

import numpy as np
import torch

from utils.checks.tensor_compare import (
    CASES,
    Layer,
    check_gradient_of_x,
    check_gradients_of_parts,
    check_output,
    close,
    compare,
    in_words,
    made,
)
from utils.checks.tensor_shards import distinct
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong

_RANKS, _SHAPE = 3, (2, 4)
_ELEMENTS = int(np.prod(_SHAPE))
_F, _G = 0, 1


def _run(call, seed, which, transposed=False):
    """Call f or g with other numbers on every rank: (outputs, description, x per rank, gradient per rank)."""
    x, gradient = (list(distinct(seed + n, _RANKS, *_SHAPE)) for n in range(2))
    given = f"{_RANKS} ranks, a tensor of shape {_SHAPE} on each, other numbers on every rank"
    if transposed:
        given += ", neither the tensor nor its gradient contiguous"
    outputs = outputs_of(
        call, "tensor.operator", _RANKS, given, which=which, transposed=transposed,
        x={"arrays": x}, gradient={"arrays": gradient},
    )  # fmt: skip
    calls_only_in(outputs, CASES, given)
    return outputs, given, x, gradient


def _stays(name, way, came, own, total, given, rank):
    """On this way the operator hands its tensor on."""
    what = "tensor" if way == "forward" else "gradient"
    if close(came, own):
        return
    if close(came, total):
        sentence = f"{name} adds up in {way}, but there it hands the {what} on as it is."
    else:
        sentence = f"In {way} {name} does not hand rank {rank}'s {what} on as it is."
    look_at = {
        "f": "f stands where a tensor that all ranks hold enters the split: nobody lacks anything",
        "g": "the sum's gradient is the same on all ranks: each of them has it whole already",
    }[name]
    raise wrong(sentence, given, came, own, look_at)


def _sums(name, way, came, own, total, given, rank):
    """On this way the operator adds up over the ranks."""
    what = "tensors" if way == "forward" else "gradients"
    if close(came, total):
        return
    if close(came, own):
        sentence = f"{name} hands rank {rank}'s own {what[:-1]} on in {way}, but there the ranks' {what} are added up."
    elif close(came, total / _RANKS):
        sentence = f"{name} takes the mean of the ranks' {what} in {way}, but the sum is wanted."
    else:
        sentence = f"In {way} {name} does not give the sum of the ranks' {what}."
    look_at = {
        "f": "each rank uses the tensor for its part of the work and sees its part of the gradient",
        "g": "each rank holds a partial result; the whole result is their sum",
    }[name]
    raise wrong(sentence, given, came, total, look_at)


def _calls(name, way, outputs, given, expected):
    for rank in range(_RANKS):
        came = made(outputs, rank, way)
        if came != expected:
            right = f"one all_reduce of {_ELEMENTS} elements" if expected else "no call"
            sentence = f"In {way} rank {rank}'s {name} does not make the calls it should."
            raise wrong(sentence, given, in_words(came), right)


_ALL_REDUCE = [("all_reduce", _ELEMENTS)]


def _one_way(which, way):
    """f or g, forward or backward: the values and the calls."""
    name = "fg"[which]
    adds_up = (which == _G) == (way == "forward")

    def check(call, seed):
        outputs, given, x, gradient = _run(call, seed, which)
        owns = x if way == "forward" else gradient
        for rank, result in enumerate(outputs["results"]):
            came = result["y" if way == "forward" else "dx"]
            (_sums if adds_up else _stays)(name, way, came, owns[rank], sum(owns), given, rank)
        _calls(name, way, outputs, given, _ALL_REDUCE if adds_up else [])

    return check


def _any_layout(call, seed):
    """Tensors and gradients that are not contiguous; nothing that was given is overwritten."""
    for which, name in enumerate("fg"):
        for transposed in (False, True):
            outputs, given, x, gradient = _run(call, seed, which, transposed)
            y, dx = (x, [sum(gradient)] * _RANKS) if which == _F else ([sum(x)] * _RANKS, gradient)
            for rank, result in enumerate(outputs["results"]):
                for came, own, what in ((result["x"], x, "tensor"), (result["gradient"], gradient, "gradient")):
                    if not close(came, own[rank]):
                        raise wrong(
                            f"{name} overwrote the {what} that it was given on rank {rank}; others may still need it.",
                            given, came, own[rank], "dist.all_reduce works in place: let it work on a copy",
                        )  # fmt: skip
                if not close(result["y"], y[rank]) or not close(result["dx"], dx[rank]):
                    raise wrong(f"{name} is wrong on rank {rank} for this layout.", given, look_at=".contiguous()")


def _mlp_parts(weights, rank, ranks):
    a, b = weights
    return [np.array_split(a, ranks, axis=1)[rank], np.array_split(b, ranks, axis=0)[rank]]


def _mlp(x, a, b):
    return torch.tanh(x @ a) @ b


_SPLIT_MLP = Layer("tensor.split_mlp", ("A", "B"), _mlp_parts, _mlp, _mlp)


def _around_an_mlp(call, seed):
    """g(tanh(f(x) A) B) with A cut by columns and B by rows: result and gradients of one process."""
    rng = np.random.default_rng([seed, 20])
    x, gradient = rng.standard_normal((2, 2, 3, 4))
    weights = [rng.standard_normal((4, 6)), rng.standard_normal((6, 4))]
    given = "g(tanh(f(x) A) B) on 2 ranks, A cut by columns, B by rows"
    run = compare(_SPLIT_MLP, call, given, 2, x, weights, gradient)
    check_output(_SPLIT_MLP, run)
    check_gradient_of_x(run)
    check_gradients_of_parts(_SPLIT_MLP, run)


QUESTIONS = {
    "q2": (
        SubCheck("f forward", _one_way(_F, "forward")),
        SubCheck("f backward", _one_way(_F, "backward")),
        SubCheck("g forward", _one_way(_G, "forward")),
        SubCheck("g backward", _one_way(_G, "backward")),
        SubCheck("any layout, and nothing overwritten", _any_layout),
        SubCheck("f and g round an MLP", _around_an_mlp),
    ),
}
