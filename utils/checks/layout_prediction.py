"""Lab 05, q4: bytes of each dimension and seconds of each part of a step, for the rows of a paper's table and others."""

import math

import numpy as np

from utils.checks.numbers import answers
from utils.checks.verdict import SubCheck, wrong
from utils.theory.collectives import all_reduce_seconds, point_to_point_seconds
from utils.theory.grid import Layout
from utils.theory.hardware import LINKS
from utils.theory.link import Link
from utils.theory.models import Transformer, hardware_flops
from utils.theory.papers.narayanan import table_1_runs
from utils.theory.throughput import RATES, layers_per_rank, micro_batches, parameters_per_rank
from utils.theory.traffic import (
    pipeline_elements_per_boundary,
    tensor_all_reduces_per_layer,
    tensor_elements_per_layer,
    zero_elements_per_step,
)

ELEMENT_BYTES = 2
_RECOMPUTATION = "full"
_SIZES = ("tensor", "pipeline", "data", "micro_batch", "chunks")
SELENE = {
    "flops_per_second": 180e12,
    "inside": {
        "alpha_seconds": LINKS["nvlink3"].alpha_seconds,
        "bytes_per_second": RATES.intra_share * LINKS["nvlink3"].bandwidth_bytes_per_second,
    },
    "between": {
        "alpha_seconds": LINKS["infiniband hdr"].alpha_seconds,
        "bytes_per_second": RATES.inter_share * LINKS["infiniband hdr"].bandwidth_bytes_per_second,
    },
}
"""Rates for the paper's cluster of A100s: computing alone, and what messages reach inside and between nodes."""

_FIELDS = ("layers", "hidden", "heads", "vocab", "sequence")


def rows():
    """The ten rows of Narayanan et al. 2021, table 1: name, model, layout, batch, and the printed TFLOP/s per GPU."""
    return [
        {
            "name": run.name,
            "model": {name: getattr(run.model, name) for name in _FIELDS},
            "layout": {name: getattr(run.layout, name) for name in _SIZES},
            "batch": run.batch,
            "tflops": run.tflops,
        }
        for run in table_1_runs()
    ]


def _planned(layout):
    return Layout(**layout, schedule="interleaved 1f1b" if layout["chunks"] > 1 else "1f1b", recomputation=_RECOMPUTATION)


def volumes(model, layout, batch):
    """{dimension: bytes that a rank in the middle sends in a step}."""
    model, layout = Transformer(**model), _planned(layout)
    m, b = micro_batches(layout, batch), layout.micro_batch
    per_layer = tensor_elements_per_layer(model, b, layout.tensor, _RECOMPUTATION)
    boundary = pipeline_elements_per_boundary(model, b) if layout.pipeline > 1 else 0
    elements = {
        "tensor": m * layers_per_rank(model, layout) * per_layer,
        "pipeline": 2 * layout.chunks * m * boundary,
        "data": zero_elements_per_step(parameters_per_rank(model, layout), 0, layout.data),
    }
    return {name: ELEMENT_BYTES * number for name, number in elements.items()}


def step_seconds(model, layout, batch, machine):
    """{part: seconds of a step}: compute, tensor, pipeline, data and bubble."""
    model, layout = Transformer(**model), _planned(layout)
    m, n_bytes = micro_batches(layout, batch), ELEMENT_BYTES * layout.micro_batch * model.sequence * model.hidden
    inside, between = (
        Link(machine[name]["alpha_seconds"], machine[name]["bytes_per_second"]) for name in ("inside", "between")
    )
    sums = m * layers_per_rank(model, layout) * tensor_all_reduces_per_layer(_RECOMPUTATION)
    messages = 2 * layout.chunks * m if layout.pipeline > 1 else 0
    gradient_bytes = ELEMENT_BYTES * parameters_per_rank(model, layout)
    parts = {
        "compute": hardware_flops(model, batch, _RECOMPUTATION) / layout.world_size / machine["flops_per_second"],
        "tensor": sums * all_reduce_seconds("ring", n_bytes, layout.tensor, inside),
        "pipeline": messages * point_to_point_seconds(n_bytes, between),
    }
    parts["bubble"] = (layout.pipeline - 1) / (layout.chunks * m) * sum(parts.values())
    parts["data"] = all_reduce_seconds("ring", gradient_bytes, layout.data, between)
    return parts


def machine(rng):
    """A machine with rates near those of the paper's."""
    rates = [float(f"{rate:.3g}") for rate in rng.uniform((120, 2, 150, 5, 10), (220, 9, 300, 30, 25))]
    return {
        "flops_per_second": rates[0] * 1e12,
        "inside": {"alpha_seconds": rates[1] * 1e-6, "bytes_per_second": rates[2] * 1e9},
        "between": {"alpha_seconds": rates[3] * 1e-6, "bytes_per_second": rates[4] * 1e9},
    }


def _questions(seed):
    """[model, layout, batch, machine]: the paper's rows, and models of other sizes."""
    rng = np.random.default_rng([seed, 74])
    yield from ([row["model"], row["layout"], row["batch"], machine(rng)] for row in rows())
    for t, p, d, v in ((1, 1, 1, 1), (4, 3, 5, 1), (2, 4, 1, 3), (8, 1, 2, 1), (1, 2, 7, 2)):
        b, heads = int(rng.integers(1, 5)), 8 * int(rng.integers(2, 9))
        model = {"layers": 12 * p * v, "hidden": 64 * heads, "heads": heads, "vocab": 32000, "sequence": 1024}
        layout = {"tensor": t, "pipeline": p, "data": d, "micro_batch": b, "chunks": v}
        yield [model, layout, d * b * p * int(rng.integers(1, 9)), machine(rng)]


def _in_words(question):
    model, layout, batch, *rest = question
    return ", ".join(str(part) for part in (model, layout, f"batch {batch}", *rest))


def _number(came, key, function, given):
    """The number that `came` has under `key`."""
    if not isinstance(came, dict) or key not in came:
        raise wrong(f"{function} must return a dict with the key '{key}'.", given, str(came))
    value = came[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(f"{function} must return a number for '{key}'.", given, str(value))
    return value


def _close(value, right):
    return math.isclose(value, right, rel_tol=1e-9, abs_tol=1e-18)


def _volume(dimension):
    def check(call, seed):
        questions = [question[:3] for question in _questions(seed)]
        for question, came in zip(questions, answers(call, 0, questions, "volumes"), strict=True):
            given = _in_words(question)
            value, right = _number(came, dimension, "volumes", given), volumes(*question)[dimension]
            if not _close(value, right):
                sentence = f"volumes returns wrong bytes for “{dimension}”."
                raise wrong(sentence, given, value, right, _look_at_volume(dimension, value, right, *question))

    return check


def _look_at_volume(dimension, value, right, model, layout, batch):
    t, p, d, b, v = (layout[name] for name in _SIZES)
    if right == 0:
        return "with one rank in a dimension nothing is sent along it"
    ratio, m = value / right, batch // (d * b)
    common = {"an element of 16 bits has 2 bytes": (2, 0.5)}
    of_dimension = {
        "tensor": {
            "full recomputation runs the forward twice, and its all-reduces, too": (4 / 6, 2 / 6),
            "a ring sends 2(t − 1)/t of the tensor": (t / (2 * (t - 1)) if t > 1 else 0, t / (t - 1) if t > 1 else 0),
            "a rank has L/p layers": (p,),
            "a rank sees m = B/(d·b) micro-batches": (d, 1 / m, b, d * b),
        },
        "pipeline": {
            "activations go forward, and as many gradients back": (1 / 2,),
            "with v chunks a micro-batch visits a rank v times": (1 / v,),
            "a rank sees m = B/(d·b) micro-batches": (d, 1 / m, b, d * b),
            "each rank of the tensor group sends the whole activation": (1 / t,),
        },
        "data": {
            "a rank holds L/p layers, cut by t, not the whole model": (t, p, t * p),
            "a ring sends 2(d − 1)/d of the gradients": (d / (2 * (d - 1)) if d > 1 else 0, d / (d - 1) if d > 1 else 0),
            "gradients are added up over the micro-batches, and reduced once": (m,),
        },
    }
    for sentence, ratios in (of_dimension[dimension] | common).items():
        if any(factor != 1 and math.isclose(ratio, factor, rel_tol=0.02) for factor in ratios):
            return sentence
    return None


def _seconds(*parts):
    def check(call, seed):
        questions = list(_questions(seed))
        for question, came in zip(questions, answers(call, 1, questions, "step_seconds"), strict=True):
            given, expected = _in_words(question), step_seconds(*question)
            for part in parts:
                value = _number(came, part, "step_seconds", given)
                if not _close(value, expected[part]):
                    sentence = f"step_seconds returns wrong seconds for “{part}”."
                    look_at = _look_at_seconds(part, value, expected, *question)
                    raise wrong(sentence, given, value, expected[part], look_at)

    return check


def _look_at_seconds(part, value, expected, model, layout, batch, machine):
    right, (t, p, d, b, v) = expected[part], (layout[name] for name in _SIZES)
    m, inside, between = batch // (d * b), machine["inside"], machine["between"]
    if part == "compute" and _close(value, right * layout["tensor"] * p * d):
        return "all t · p · d GPUs share the work"
    if part == "compute" and math.isclose(value, right * 3 / 4, rel_tol=0.1):
        return "with full recomputation the forward runs twice: 96, not 72"
    if part == "bubble":
        work = expected["compute"] + expected["tensor"] + expected["pipeline"]
        if _close(value, (p - 1) / (v * m + p - 1) * work):
            return "(p − 1)/(v·m) is the bubble beside the work; (p − 1)/(v·m + p − 1) is its share of the total"
        if _close(value, v * right):
            return "v chunks on a rank make the bubble v times smaller"
        if _close(value, (p - 1) / (v * m) * (work + expected["data"])):
            return "the gradients' all-reduce comes once, after the pipeline: it does not make the bubble longer"
        if _close(value, (p - 1) / (v * m) * expected["compute"]):
            return "a rank that waits for a stage waits for that stage's messages, too"
    if part == "tensor" and t > 1:
        sums = m * model["layers"] // p * 6
        for link in (inside, between):
            without = volumes(model, layout, batch)["tensor"] / link["bytes_per_second"]
            sent = {
                "each step of a ring costs α: 2(t − 1) of them in each all-reduce": (
                    without,
                    without + sums * link["alpha_seconds"],
                ),
                "tensor groups lie inside a node": (without + sums * 2 * (t - 1) * between["alpha_seconds"],),
            }
            for sentence, numbers in sent.items():
                if any(_close(value, number) for number in numbers):
                    return sentence
    if part == "data" and d > 1:
        n_bytes = volumes(model, layout, batch)["data"]
        if _close(value, n_bytes / between["bytes_per_second"]):
            return "each step of a ring costs α: 2(d − 1) of them in an all-reduce"
        if _close(value, 2 * (d - 1) * inside["alpha_seconds"] + n_bytes / inside["bytes_per_second"]):
            return "the ranks of a data group are in different nodes"
    return None


QUESTIONS = {
    "q4": (
        SubCheck("bytes of tensor parallelism", _volume("tensor")),
        SubCheck("bytes of the pipeline", _volume("pipeline")),
        SubCheck("bytes of data parallelism", _volume("data")),
        SubCheck("seconds of computing", _seconds("compute")),
        SubCheck("seconds of the messages", _seconds("tensor", "pipeline", "data")),
        SubCheck("seconds of the bubble", _seconds("bubble")),
    ),
}
