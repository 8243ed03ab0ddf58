"""Lab 03, q7: f and g in a whole layer, how many all-reduces that takes, and how many elements they send."""

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from utils.checks.numbers import answers, compare
from utils.checks.tensor_compare import (
    Layer,
    check_calls,
    check_gradient_of_x,
    check_gradients_of_parts,
    check_output,
    check_replicas,
    close,
)
from utils.checks.tensor_layers import columns, rows, run_layer
from utils.checks.verdict import SubCheck, wrong
from utils.theory.traffic import tensor_elements_per_layer

_RANKS, _SHAPE, _INNER = 3, (2, 3, 4), 7
_MESSAGE = int(np.prod(_SHAPE))
_BLOCKS = ("A of attention", "B of attention", "A of the MLP", "B of the MLP")


def _norm(x, scale):
    return F.rms_norm(x, x.shape[-1:], scale, 1e-5)


def _block(x, a, b):
    return torch.tanh(x @ a) @ b


def _one_after_the_other(x, first, second, a1, b1, a2, b2):
    x = x + _block(_norm(x, first), a1, b1)
    return x + _block(_norm(x, second), a2, b2)


def _side_by_side(x, scale, a1, b1, a2, b2):
    normed = _norm(x, scale)
    return x + _block(normed, a1, b1) + _block(normed, a2, b2)


def _cut(n_scales):
    def parts(weights, rank, ranks):
        a1, b1, a2, b2 = weights[n_scales:]
        blocks = [columns(a1, rank, ranks), rows(b1, rank, ranks), columns(a2, rank, ranks), rows(b2, rank, ranks)]
        return [*weights[:n_scales], *blocks]

    return parts


def _shortcut_summed(n_scales):
    """y when the shortcut is inside the sum: every rank adds it."""

    def hints(x, weights, y, ranks):
        sentence = "the shortcut is added by every rank and then summed: it belongs outside g"
        if n_scales == 1:
            yield y + (ranks - 1) * x, sentence
            return
        x, first, second, a1, b1, a2, b2 = (torch.from_numpy(array) for array in (x, *weights))
        middle = ranks * x + _block(_norm(x, first), a1, b1)
        yield (ranks * middle + _block(_norm(middle, second), a2, b2)).numpy(), sentence

    return hints


def _layer(whole, n_scales):
    names = tuple(f"norm {number + 1}" for number in range(n_scales)) + _BLOCKS
    hints = _shortcut_summed(n_scales)
    return Layer("tensor.transformer_layer", names, _cut(n_scales), whole, whole, hints)


_LAYERS = {0: (_layer(_one_after_the_other, 2), 2), 1: (_layer(_side_by_side, 1), 1)}


def _run(call, seed, which):
    layer, n_scales = _LAYERS[which]
    rng = np.random.default_rng([seed, 70, which])
    scales = [rng.uniform(0.5, 1.5, _SHAPE[-1]) for _ in range(n_scales)]
    matrices = [rng.standard_normal(shape) for shape in ((4, _INNER), (_INNER, 4)) * 2]

    def without_scales(inputs):  # all ranks hold the scales; only the blocks are parts
        arguments = dict(inputs["arguments"])
        arguments["parts"] = {"arrays": [parts[n_scales:] for parts in arguments["parts"]["arrays"]]}
        return call({**inputs, "arguments": arguments})

    words = "attention and MLP one after the other" if which == 0 else "attention and MLP side by side"
    return layer, run_layer(layer, without_scales, seed, _RANKS, [*scales, *matrices], words, which=which, scales=scales)


def _equals_one_process(which):
    def check(call, seed):
        layer, run = _run(call, seed, which)
        check_output(layer, run)
        hint = "between each norm and its split block stands one f"
        check_gradient_of_x(run, _shortcut_through_f(which, run), hint)
        _check_norms(layer, run, _LAYERS[which][1])
        check_gradients_of_parts(layer, run)

    return check


def _shortcut_through_f(which, run):
    """The gradient of x when a shortcut leaves from behind f: what comes over it is added up over the ranks."""
    sentence = "the shortcut's gradient is whole on every rank already: it must not go through f"
    dy, extra = torch.from_numpy(run.gradient), run.ranks - 1
    if which == 1:
        yield run.dx + extra * run.gradient, sentence
        return
    x, first, second, a1, b1, a2, b2 = (torch.from_numpy(array) for array in (run.x, *run.weights))
    middle, back_to_x = torch.func.vjp(lambda x: x + _block(_norm(x, first), a1, b1), x)
    _, back_to_middle = torch.func.vjp(lambda x: x + _block(_norm(x, second), a2, b2), middle)
    over_first, over_second = extra * back_to_middle(dy)[0], back_to_x(extra * dy)[0]
    yield run.dx + over_first.numpy(), sentence
    yield run.dx + over_second.numpy(), sentence


def _check_norms(layer, run, n_scales):
    """The norms' scales are whole on every rank, and so must be their gradients."""
    for number in range(n_scales):
        for rank, result in enumerate(run.outputs["results"]):
            came, expected = result["gradients"][number], run.gradients[rank][number]
            if not close(came, expected):
                hint = "between f and g a rank sees its part of the gradient only: the norm stands before f"
                if close(came, expected * run.ranks):
                    hint = f"{run.ranks} times too large: f stands where all ranks do the same"
                raise wrong(
                    f"Rank {rank}'s gradient of {layer.names[number]} is not that of one process.",
                    run.given, came, expected, hint,
                )  # fmt: skip


def _replicas(call, seed):
    for which, (layer, n_scales) in _LAYERS.items():
        _, run = _run(call, seed, which)
        check_replicas(run, [(layer.names[number], number) for number in range(n_scales)])


def _calls(which, number):
    def check(call, seed):
        _, run = _run(call, seed, which)
        messages = [_MESSAGE] * number
        hints = {
            "forward": "one g for each split block" if which == 0 else "a sum of sums needs one g: add first",
            "backward": "one f for each split block" if which == 0 else "both blocks can use the result of one f",
        }
        check_calls(run.outputs, run.given, messages, messages, hints)

    return check


def _elements(call, seed):
    """Elements that a rank sends in one step, in ring all-reduces."""
    rng = np.random.default_rng([seed, 71])
    questions = [
        [1, 1024, 3072, 72, 8, False],
        [4, 2048, 12288, 96, 8, True],
        [2, 128, 512, 4, 1, False],
        [1, 5, 7, 3, 6, False],  # the ranks divide the sum, but no single message
        [int(rng.integers(1, 8)), 64 * int(rng.integers(1, 8)), 960, 3, 6, True],
    ]
    expected = [
        layers * tensor_elements_per_layer(
            SimpleNamespace(sequence=sequence, hidden=hidden), batch, ranks, "full" if recomputed else "none"
        )
        for batch, sequence, hidden, layers, ranks, recomputed in questions
    ]  # fmt: skip
    compare(answers(call, 2, questions, "elements_sent"), expected, "elements_sent", questions, _elements_hint)


def _elements_hint(question, value, right):
    batch, sequence, hidden, layers, ranks, recomputed = question
    message = batch * sequence * hidden * layers
    candidates = {
        right / 2: "forward has all-reduces, and backward has as many",
        message * (6 if recomputed else 4): "a ring all-reduce of n elements sends 2n(t − 1)/t from each rank",
        message * (12 if recomputed else 8): "a ring all-reduce of n elements sends 2n(t − 1)/t from each rank",
        right * 4 / 6: "full recomputation runs forward once more, with its all-reduces",
        right * 6 / 4: "nothing is recomputed here",
    }
    if ranks == 1 and value:
        return "one rank alone sends nothing"
    return next((hint for number, hint in candidates.items() if math.isclose(number, value)), None)


QUESTIONS = {
    "q7": (
        SubCheck("one after the other, as one process", _equals_one_process(0)),
        SubCheck("one after the other: two all-reduces forward, two backward", _calls(0, 2)),
        SubCheck("side by side, as one process", _equals_one_process(1)),
        SubCheck("side by side: one all-reduce forward, one backward", _calls(1, 1)),
        SubCheck("replicas bitwise equal", _replicas),
        SubCheck("elements sent", _elements),
    ),
}
