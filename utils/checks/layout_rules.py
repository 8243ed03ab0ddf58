"""Lab 05, q5: which rule a layout breaks."""

import numpy as np

from utils.checks.numbers import answers
from utils.checks.verdict import SubCheck, wrong
from utils.theory.grid import groups
from utils.theory.memory import RECIPES
from utils.theory.units import GB

RULES = ("node", "layers", "batch", "memory", "bubble")
_BYTES = RECIPES["mixed adam"].bytes_per_parameter


def broken_rules(model, layout, batch, machine):
    """The rules that a layout breaks, in the order of RULES."""
    t, p, d = (layout[name] for name in ("tensor", "pipeline", "data"))
    sizes = {name: layout[name] for name in layout["order"]}
    nodes = [{rank // machine["gpus_per_node"] for rank in group} for group in groups("tensor", sizes)]
    divided = batch % (d * layout["micro_batch"]) == 0
    m = batch // (d * layout["micro_batch"])
    broken = {
        "node": any(len(each) > 1 for each in nodes),
        "layers": model["layers"] % p != 0,
        "batch": not divided,
        "memory": _BYTES * model["parameters"] / (t * p) > machine["memory_bytes"],
        "bubble": divided and (p - 1) / (m + p - 1) > machine["largest_bubble"],
    }
    return [rule for rule in RULES if broken[rule]]


_MACHINE = {"gpus_per_node": 8, "memory_bytes": 80 * GB, "largest_bubble": 0.2}
_LARGE = {"layers": 80, "parameters": 145_600_000_000}
_SMALL = {"layers": 36, "parameters": 7_500_000_000}
_USUAL = ["tensor", "data", "pipeline"]


def _layout(t, p, d, micro_batch=1, order=_USUAL):
    return {"tensor": t, "pipeline": p, "data": d, "micro_batch": micro_batch, "order": list(order)}


# For each rule: pairs of a layout that breaks this rule alone, and one that breaks none and differs from it in little.
_PAIRS = {
    "node": (
        ((_LARGE, _layout(16, 4, 8), 1536), (_LARGE, _layout(8, 8, 8), 1536)),
        ((_LARGE, _layout(8, 8, 2, 1, ("data", "tensor", "pipeline")), 512), (_LARGE, _layout(8, 8, 2), 512)),
        ((_LARGE, _layout(8, 8, 2, 1, ("pipeline", "tensor", "data")), 512), (_LARGE, _layout(8, 8, 2), 512)),
        ((_SMALL, _layout(3, 1, 8), 64), (_SMALL, _layout(4, 1, 8), 64)),
        ((_SMALL, _layout(4, 2, 8, 1, ("pipeline", "data", "tensor")), 64),
         (_SMALL, _layout(4, 2, 8, 1, ("pipeline", "tensor", "data")), 64)),
        ((_SMALL, _layout(3, 3, 1), 64), (_SMALL, _layout(3, 2, 1), 64)),
    ),
    "layers": (
        ((_LARGE, _layout(8, 12, 2), 512), (_LARGE, _layout(8, 10, 2), 512)),
        ((_SMALL, _layout(4, 8, 1), 64), (_SMALL, _layout(4, 9, 1), 64)),
    ),
    "batch": (
        ((_LARGE, _layout(8, 8, 6), 1600), (_LARGE, _layout(8, 8, 5), 1600)),
        ((_SMALL, _layout(8, 2, 4, 6), 512), (_SMALL, _layout(8, 2, 4, 8), 512)),
        ((_SMALL, _layout(4, 1, 8, 3), 500), (_SMALL, _layout(4, 1, 4, 5), 500)),
    ),
    "memory": (
        ((_LARGE, _layout(8, 2, 8), 1536), (_LARGE, _layout(8, 4, 8), 1536)),
        ((_SMALL, _layout(1, 1, 8), 64), (_SMALL, _layout(2, 1, 8), 64)),
        ((_SMALL, _layout(1, 1, 64), 64), (_SMALL, _layout(1, 2, 8), 64)),
    ),
    "bubble": (
        ((_LARGE, _layout(8, 16, 32), 1536), (_LARGE, _layout(8, 8, 32), 1536)),
        ((_SMALL, _layout(2, 6, 8, 4), 512), (_SMALL, _layout(2, 6, 8, 2), 512)),
        ((_LARGE, _layout(8, 4, 64), 704), (_LARGE, _layout(8, 4, 64), 832)),
    ),
}  # fmt: skip


def _questions(rule, seed):
    """[model, layout, batch, machine] with the right answer: the pairs, and layouts close to a limit."""
    rng = np.random.default_rng([seed, 75, RULES.index(rule)])
    questions = [[*each, _MACHINE] for pair in _PAIRS[rule] for each in pair]
    if rule == "memory":
        p, share = int(rng.integers(1, 5)), int(rng.integers(10, 90)) * 4_000_000
        model, exact = {"layers": 12 * p, "parameters": 2 * p * share}, _MACHINE | {"memory_bytes": _BYTES * share}
        for machine in (exact, exact | {"memory_bytes": _BYTES * share - 1}):
            questions.append([model, _layout(2, p, 2), 256, machine])
    if rule == "bubble":
        p, m = int(rng.integers(2, 9)), int(rng.integers(2, 30))
        limit = (p - 1) / (m + p - 1)
        for factor in (1.001, 0.999):
            machine = _MACHINE | {"largest_bubble": limit * factor}
            questions.append([{"layers": 5 * p, "parameters": 10**9}, _layout(1, p, 3, 2), 6 * m, machine])
        for p, m in ((2, 3), (5, 4)):  # exactly at the limit, in floating point, too
            machine = _MACHINE | {"largest_bubble": (p - 1) / (m + p - 1)}
            questions.append([{"layers": 5 * p, "parameters": 10**9}, _layout(1, p, 3, 2), 6 * m, machine])
    for question in questions:
        (right, *more) = broken_rules(*question) or [None]
        assert not more and right in (rule, None), "a layout of these checks breaks one rule at most"
        yield question, right


def _rule(rule):
    def check(call, seed):
        asked = list(_questions(rule, seed))
        questions = [question for question, _ in asked]
        came = answers(call, 0, questions, "broken_rule")
        for (question, right), answer in zip(asked, came, strict=True):
            _judge(rule, *question, answer, right)

    return check


def _judge(rule, model, layout, batch, machine, came, right):
    if came == right:
        return
    given = f"{model}, {layout}, batch {batch}, {machine}"
    if came is not None and came not in RULES:
        raise wrong(f"broken_rule must return None or one of {', '.join(RULES)}.", given, str(came), str(right))
    if right is None:
        raise wrong(f"broken_rule finds a mistake (“{came}”) in a sound layout.", given, came, "None", _LOOK_AT[came])
    if came is None:
        raise wrong(f"broken_rule misses a broken rule: “{rule}”.", given, "None", right, _LOOK_AT[rule])
    raise wrong(f"broken_rule finds “{came}” where the rule “{rule}” is broken.", given, came, right, _LOOK_AT[rule])


_LOOK_AT = {
    "node": "every tensor group must lie in one node: its ranks are stride apart, and the order gives the stride",
    "layers": "p must divide the layers",
    "batch": "d · micro_batch must divide the batch",
    "memory": f"{_BYTES} bytes for each parameter, spread over t · p; data ranks hold copies",
    "bubble": "m = batch/(d · micro_batch), and of the total time (p − 1)/(m + p − 1) is idle",
}

QUESTIONS = {"q5": tuple(SubCheck(f"layouts that break the {rule} rule", _rule(rule)) for rule in RULES)}
