"""Lab 03: a layer that is cut over ranks beside the same layer on one process, and the calls that its ranks made."""

from dataclasses import dataclass, field

import numpy as np
import torch

from utils.checks.verdict import calls_only_in, outputs_of, wrong

TOLERANCE = 1e-9  # fp64; the ranks add in another order than one process
CASES = ("forward", "backward")


def close(came, expected):
    """Whether two arrays (or numbers) agree but for rounding."""
    came, expected = np.asarray(came), np.asarray(expected)
    if came.shape != expected.shape or came.dtype.kind not in "biuf":
        return False
    return bool(np.allclose(came, expected, rtol=TOLERANCE, atol=TOLERANCE))


def first_hint(came, candidates):
    """The sentence of the first (array, sentence) whose array came; None if it was none of them."""
    return next((sentence for array, sentence in candidates if close(came, array)), None)


@dataclass(frozen=True)
class Layer:
    """A kind of layer: how one process computes it, how it is cut, and what one rank computes alone.

    probe          that of utils.checks.probes.tensor
    names          of its weights
    cut            (weights, rank, ranks) -> this rank's parts
    whole          (x, *weights) -> y on one process
    partial        (x, *parts) -> this rank's part of the sum, before g and before a bias
    hints          (x, weights, y, ranks) -> (array, sentence) pairs: what a wrong y may be, beyond the usual mistakes
    """

    probe: str
    names: tuple
    cut: object
    whole: object
    partial: object
    hints: object = lambda x, weights, y, ranks: ()


@dataclass
class Compared:
    """A run of a cut layer and what one process gets: y, gradient of x, and each rank's parts of the gradients."""

    given: str
    outputs: dict
    ranks: int
    x: np.ndarray
    weights: list
    gradient: np.ndarray
    parts: list
    y: np.ndarray = None
    dx: np.ndarray = None
    gradients: list = field(default_factory=list)
    alone: list = field(default_factory=list)


def compare(layer, call, given, ranks, x, weights, gradient, **arguments):
    """Run `layer` on ranks and on one process; return both as a Compared."""
    parts = [[np.ascontiguousarray(part) for part in layer.cut(weights, rank, ranks)] for rank in range(ranks)]
    outputs = outputs_of(
        call, layer.probe, ranks, given, x=x, gradient=gradient, parts={"arrays": parts}, **arguments
    )  # fmt: skip
    calls_only_in(outputs, CASES, given)
    y, dx, gradients = _forward_and_backward(layer.whole, x, weights, gradient)
    return Compared(
        given, outputs, ranks, x, weights, gradient, parts, y, dx,
        [[np.asarray(part) for part in layer.cut(gradients, rank, ranks)] for rank in range(ranks)],
        [_forward_and_backward(layer.partial, x, own, gradient) for own in parts],
    )  # fmt: skip


def _forward_and_backward(function, x, weights, gradient):
    """y, and the gradients of x and of the weights: arrays."""
    x, *leaves = (torch.tensor(array, requires_grad=True) for array in (x, *weights))
    y = function(x, *leaves)
    grads = torch.autograd.grad(y, (x, *leaves), torch.from_numpy(gradient), allow_unused=True)
    dx, *rest = (torch.zeros_like(a) if g is None else g for a, g in zip((x, *leaves), grads, strict=True))
    return y.detach().numpy(), dx.numpy(), [array.numpy() for array in rest]


def check_output(layer, run):
    """Every rank ends with one process's y."""
    for rank, result in enumerate(run.outputs["results"]):
        if close(result["y"], run.y):
            continue
        alone = run.alone[rank][0]
        besides = run.y - sum(partial for partial, *_ in run.alone)  # a bias
        not_added = "this is what the rank computes alone: the ranks' partial results are not added up"
        hint = first_hint(
            result["y"],
            [
                (alone, not_added),
                (alone + besides, not_added),
                (run.y * run.ranks, f"{run.ranks} times too large: the sum was added up once more"),
                (run.y / run.ranks, "the mean over the ranks, but the partial results are to be added up"),
                *layer.hints(run.x, run.weights, run.y, run.ranks),
            ],
        )
        raise wrong(
            f"Rank {rank} does not end with what one process computes.", run.given, result["y"], run.y, hint
        )


def check_gradient_of_x(run, candidates=(), otherwise=None):
    """Every rank ends with the whole gradient of x.

    candidates  (array, sentence) pairs beyond the usual mistakes; `otherwise` is what to look at for an unknown one
    """
    for rank, result in enumerate(run.outputs["results"]):
        if close(result["dx"], run.dx):
            continue
        look_at = None
        if close(result["dx"], run.alone[rank][1]):
            sentence = f"The gradient of x on rank {rank} is that of this rank's part of the work only."
            look_at = "f: all ranks use x, so what each sends back must be added up before it goes on"
        elif close(result["dx"], run.dx * run.ranks):
            sentence = f"The gradient of x is {run.ranks} times too large."
            look_at = "backward adds up once too often: g hands the gradient on as it is"
        else:
            sentence = f"The gradient of x on rank {rank} is not that of one process."
            look_at = first_hint(result["dx"], candidates) or otherwise
        raise wrong(sentence, run.given, result["dx"], run.dx, look_at)


def check_gradients_of_parts(layer, run, names=None):
    """Each rank's parts get the gradients that one process has at their place."""
    for rank, result in enumerate(run.outputs["results"]):
        for number, name in enumerate(layer.names):
            came, expected = result["gradients"][number], run.gradients[rank][number]
            if (names is not None and name not in names) or close(came, expected):
                continue
            hint = first_hint(
                came,
                [
                    (expected * run.ranks, f"{run.ranks} times too large: backward adds up once too often"),
                    (expected / run.ranks, f"{run.ranks} times too small"),
                    (run.alone[rank][2][number], "this is the share of one rank: other ranks use the same part"),
                ],
            )
            raise wrong(
                f"The gradient of rank {rank}'s part of {name} is not that of one process.",
                run.given, came, expected, hint,
            )  # fmt: skip


def check_replicas(run, also=()):
    """y, the gradient of x and those of the parts `also` (name, position) have the same bits on all ranks."""
    first = run.outputs["results"][0]
    values = {"the result": lambda result: result["y"], "the gradient of x": lambda result: result["dx"]}
    values |= {f"the gradient of {name}": lambda r, n=number: r["gradients"][n] for name, number in also}
    for what, of in values.items():
        for rank, result in enumerate(run.outputs["results"]):
            if not close(of(result), of(first)):
                raise wrong(f"Ranks 0 and {rank} differ in {what}.", run.given, of(result), of(first))
            if of(result).tobytes() != of(first).tobytes():
                raise wrong(
                    f"Ranks 0 and {rank} do not have the same bits in {what}: the replicas would drift apart.",
                    run.given, look_at="what all ranks hold is computed by all ranks in the same way",
                )  # fmt: skip


def made(outputs, rank, case):
    """The calls of a rank in a case as (op, elements), in order."""
    return [(item["op"], item["elements"]) for item in outputs["calls"][rank] if item["case"] == case]


def check_calls(outputs, given, forward, backward, hints=None):
    """Every rank makes exactly one all-reduce for each number of elements in `forward` and in `backward`."""
    for case, expected in (("forward", forward), ("backward", backward)):
        for rank in range(len(outputs["results"])):
            came = made(outputs, rank, case)
            right = sorted(("all_reduce", elements) for elements in expected)
            if sorted(came) == right:
                continue
            others = sorted({op for op, _ in came} - {"all_reduce"})
            if others:
                sentence = f"In {case} rank {rank} called {', '.join(others)}; all-reduces are enough."
            elif len(came) != len(right):
                much = "too many" if len(came) > len(right) else "too few"
                sentence = f"Rank {rank} made {much} calls in {case}: {len(came)} where {len(right)} would do."
            else:
                sentence = f"In {case} rank {rank} did not send what is needed, no more and no less."
            raise wrong(sentence, given, in_words(came), in_words(right), (hints or {}).get(case))


def in_words(calls):
    """Calls, (op, elements) pairs, as a student reads them."""
    return ", ".join(f"{op} of {elements:,} elements" for op, elements in calls) or "no call"
