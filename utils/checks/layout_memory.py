"""Lab 05, q2: bytes on the fullest rank of a layout, and the smallest number of GPUs that a model fits on."""

import itertools
import math

import numpy as np

from utils.checks.numbers import answers
from utils.checks.verdict import SubCheck, wrong
from utils.theory import layout as theory
from utils.theory.grid import Layout
from utils.theory.models import Transformer
from utils.theory.throughput import micro_batches, parameters_per_rank
from utils.theory.units import GB

RECIPE = "mixed adam"


def transformer(model):
    """The Transformer of a dict with layers, hidden, heads, vocab and sequence."""
    return Transformer(**model)


def planned(layout):
    """The Layout of a dict with tensor, pipeline, data and micro_batch, under what the exercise fixes."""
    fixed = {"schedule": "1f1b", "recomputation": "selective", "zero_stage": 1}
    return Layout(**layout, **fixed, sequence_parallel=layout["tensor"] > 1)


def rank_bytes(model, layout, batch):
    """RankBytes of the fullest rank: mixed Adam, ZeRO-1, 1F1B, selective recomputation, sequence parallelism."""
    return theory.rank_bytes(transformer(model), planned(layout), batch, RECIPE)


def divides(model, layout, batch, gpus_per_node):
    """Whether everything that must divide does."""
    t, p, d, b = (layout[name] for name in ("tensor", "pipeline", "data", "micro_batch"))
    return not (gpus_per_node % t or model["heads"] % t or model["layers"] % p or batch % (d * b))


def possible(model, batch, micro_batch, gpus_per_node):
    """All layouts in which everything divides, those with few GPUs first."""
    numbers = (gpus_per_node, model["layers"], batch // micro_batch)
    sizes = itertools.product(*([n for n in range(1, limit + 1) if limit % n == 0] for limit in numbers))
    made = [{"tensor": t, "pipeline": p, "data": d, "micro_batch": micro_batch} for t, p, d in sizes]
    made = [layout for layout in made if divides(model, layout, batch, gpus_per_node)]
    return sorted(made, key=gpus_of)


def gpus_of(layout):
    return layout["tensor"] * layout["pipeline"] * layout["data"]


def fewest(model, batch, micro_batch, machine):
    """A layout with the fewest GPUs that fits, or None."""
    for layout in possible(model, batch, micro_batch, machine["gpus_per_node"]):
        if rank_bytes(model, layout, batch).total_bytes <= machine["memory_bytes"]:
            return layout
    return None


def in_words(layout):
    return f"(t, p, d) = ({layout['tensor']}, {layout['pipeline']}, {layout['data']})"


def _model(layers, hidden, heads, vocab=51200, sequence=2048):
    return {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "sequence": sequence}


def random_model(rng):
    heads = 8 * int(rng.integers(2, 9))
    return _model(12 * int(rng.integers(1, 7)), 64 * heads, heads, 256 * int(rng.integers(50, 300)), 1024)


def _layouts(seed):
    """(model, layout, batch): each dimension alone, all together, fewer micro-batches than stages."""
    rng = np.random.default_rng([seed, 71])
    sizes = [(1, 1, 1), (4, 1, 1), (1, 6, 1), (1, 1, 8), (2, 3, 4), (8, 12, 1), (1, 12, 8), (4, 4, 16)]
    for t, p, d in sizes:
        b = int(rng.integers(1, 4))
        m = max(1, p - 1) if (t, p, d) in ((8, 12, 1), (1, 12, 8)) else p + int(rng.integers(0, 9))
        yield random_model(rng), {"tensor": t, "pipeline": p, "data": d, "micro_batch": b}, m * d * b


def _bytes(call, seed):
    """Parameters, state and activations of the fullest rank, to the byte."""
    questions = [list(each) for each in _layouts(seed)]
    for (model, layout, batch), came in zip(questions, answers(call, 0, questions, "rank_bytes"), strict=True):
        parts = rank_bytes(model, layout, batch)
        m = micro_batches(planned(layout), batch)
        given = f"{model}, {layout}, batch {batch}, so m = {m}"
        if isinstance(came, bool) or not isinstance(came, (int, float)):
            raise wrong("rank_bytes must return a number.", given, str(came), parts.total_bytes)
        if not math.isclose(came, parts.total_bytes, rel_tol=1e-9):
            look_at = _look_at(came, parts, transformer(model), planned(layout), m)
            raise wrong("rank_bytes returns a wrong number of bytes.", given, came, parts.total_bytes, look_at)


def _look_at(came, parts, model, layout, m):
    t, p, d = layout.tensor, layout.pipeline, layout.data
    table = (model.vocab + model.sequence) * model.hidden
    spread = (model.layers * model.layer_parameters + table) / (t * p)
    each = (parts.total_bytes - parts.activations) / parameters_per_rank(model, layout)
    activations = parts.activations
    one = activations / min(p, m)
    mistakes = {
        "ZeRO-1 shards the optimizer's 12 bytes over the data ranks, and nothing else": (
            16 * parameters_per_rank(model, layout) + activations,
            16 / d * parameters_per_rank(model, layout) + activations,
        ),
        "the first stage holds both tables whole, up to the cut by t: p does not divide them": (each * spread + activations,),
        "the tables: V·h of the vocabulary and s·h of the positions, on the first stage": (
            each * (parameters_per_rank(model, layout) - table / t) + activations,
            each * (parameters_per_rank(model, layout) - model.sequence * model.hidden / t) + activations,
        ),
        "under 1F1B the first stage has min(p, m) micro-batches in flight": (
            parts.total_bytes - activations + one,
            parts.total_bytes - activations + one * m,
            parts.total_bytes - activations + one * p,
        ),
        "each micro-batch in flight keeps the activations of this rank's L/p layers": (
            parts.total_bytes - activations + activations * p,
            parts.total_bytes - activations + one * m * p,
        ),
        "with sequence parallelism t divides all of the activations": (parts.total_bytes - activations + activations * t,),
        "activations are missing": (parts.total_bytes - activations,),
    }
    for sentence, numbers in mistakes.items():
        if any(math.isclose(came, number, rel_tol=1e-9) for number in numbers):
            return sentence
    return None


def _searches(seed):
    """Models that fit on one GPU, in a node, on several nodes, only with ZeRO-1 over many ranks, and not at all."""
    rng = np.random.default_rng([seed, 72])
    small, middle, large = _model(24, 2304, 24), _model(36, 4096, 32), _model(80, 12288, 96)
    node = {"gpus_per_node": 8, "memory_bytes": 80 * GB}
    yield small, 512, 1, node
    yield small, 512, 1, node | {"memory_bytes": 16 * GB}
    yield middle, 512, 1, node
    yield large, 2304, 1, node
    yield _model(7, 8192, 64), 24, 2, node | {"memory_bytes": 24 * GB}
    yield _model(30, 5120, 40), 64, 2, node | {"gpus_per_node": 4, "memory_bytes": 40 * GB}
    yield _model(11, 6144, 6), 6, 1, node | {"memory_bytes": 20 * GB}
    yield _model(11, 6144, 6), 6, 1, {"gpus_per_node": 2, "memory_bytes": 30 * GB}
    yield _model(5, 20480, 128), 2, 1, node | {"memory_bytes": 6 * GB}
    yield _model(7, 6144, 12, sequence=1536), 6, 1, {"gpus_per_node": 6, "memory_bytes": 20 * GB}
    for _ in range(3):
        yield random_model(rng), 96, int(rng.integers(1, 4)), node | {"memory_bytes": int(rng.integers(8, 48)) * GB}
    on_a_node = [layout for layout in possible(middle, 512, 1, 8) if gpus_of(layout) <= 8]
    yield middle, 512, 1, node | {"memory_bytes": min(rank_bytes(middle, each, 512).total_bytes for each in on_a_node)}


def _found(call, seed):
    """Each search with what came, as a layout or None, and a best layout or None."""
    questions = [list(each) for each in _searches(seed)]
    for question, came in zip(questions, answers(call, 1, questions, "fewest_gpus"), strict=True):
        model, batch, micro_batch, machine = question
        given = f"{model}, batch {batch}, micro-batches of {micro_batch}, {machine}"
        best = fewest(*question)
        if came is None:
            yield question, None, best, given
            continue
        if not isinstance(came, (list, tuple)) or len(came) != 3 or any(type(n) is not int or n < 1 for n in came):
            raise wrong("fewest_gpus must return (t, p, d) or None.", given, str(came))
        t, p, d = came
        yield question, {"tensor": t, "pipeline": p, "data": d, "micro_batch": micro_batch}, best, given


def _fits(call, seed):
    """What is returned divides and fits; None exactly where nothing does."""
    for (model, batch, micro_batch, machine), came, best, given in _found(call, seed):
        if came is None and best is not None:
            raise wrong("fewest_gpus finds nothing, but something fits.", given, "None", f"for example {in_words(best)}")
        if came is None:
            continue
        node = machine["gpus_per_node"]
        rules = (
            ("t does not divide the GPUs of a node.", node % came["tensor"]),
            ("t does not divide the heads.", model["heads"] % came["tensor"]),
            ("p does not divide the layers.", model["layers"] % came["pipeline"]),
            ("d · micro_batch does not divide the batch.", batch % (came["data"] * micro_batch)),
        )
        for sentence, rest in rules:
            if rest:
                raise wrong(f"fewest_gpus returns a layout that cannot be: {sentence}", given, in_words(came))
        needed = rank_bytes(model, came, batch).total_bytes
        if needed > machine["memory_bytes"]:
            nothing = "nothing fits here, and the answer is None" if best is None else None
            raise wrong(
                "What fewest_gpus returns does not fit.", given, f"{in_words(came)}, which takes {needed:,.0f} bytes",
                "None" if best is None else f"for example {in_words(best)}", nothing,
            )  # fmt: skip


def _fewest(call, seed):
    """Nothing that fits takes fewer GPUs."""
    _fits(call, seed)
    for _, came, best, given in _found(call, seed):
        if came is not None and gpus_of(came) > gpus_of(best):
            look_at = None
            if best["data"] > 1 and came["data"] == 1:
                look_at = "ZeRO-1 makes d a way to save memory, too"
            raise wrong(
                "fewest_gpus takes more GPUs than it needs.", given, f"{gpus_of(came)} GPUs, {in_words(came)}",
                f"{gpus_of(best)} GPUs, for example {in_words(best)}", look_at,
            )  # fmt: skip


QUESTIONS = {
    "q2": (
        SubCheck("the bytes of the fullest rank", _bytes),
        SubCheck("a layout that can be and fits", _fits),
        SubCheck("the fewest GPUs", _fewest),
    ),
}
