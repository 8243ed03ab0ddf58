"""Lab 04, q4: a schedule run on ranks, against one process: gradients, loss, messages, and what is kept how long."""

import math

import numpy as np
import torch

from utils.checks.probes.pipeline import squared_error
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.theory.pipeline import build, in_flight_micro_batches

RANKS = 3
_WIDTHS = (5, 4, 4, 3)  # of the input, the two borders between stages, and the output
_BATCH = 2
_CLOSE = 1e-9  # fp64; micro-batches are added up in another order
_FP32 = 1e-6  # a loss that went through torch.tensor(…) is one in single precision
_FP64_BYTES = 8


def close(came, expected):
    came, expected = np.asarray(came), np.asarray(expected)
    return came.shape == expected.shape and came.dtype.kind == "f" and bool(np.allclose(came, expected, rtol=_CLOSE, atol=_CLOSE))


def per_rank(values):
    return {"arrays": list(values)}


def batches(rng, micro_batches):
    """Inputs for the first rank and targets for the last, None elsewhere, as arguments of a probe."""
    inputs, targets = (
        [rng.standard_normal((_BATCH, width)) for _ in range(micro_batches)] for width in (_WIDTHS[0], _WIDTHS[-1])
    )
    first, last = [inputs] + [None] * (RANKS - 1), [None] * (RANKS - 1) + [targets]
    return {"inputs": per_rank(first), "targets": per_rank(last), "boundary": np.zeros((_BATCH, _WIDTHS[1]))}


def _one_f_one_b(micro_batches):
    return [[[action.kind, action.micro_batch] for action in row] for row in build("1f1b", RANKS, micro_batches).ranks]


def _each_in_its_own_order():
    """All forwards, then all backwards, on each rank in an order of its own, which differs between the two as well."""
    forwards = ([0, 1, 2, 3], [1, 0, 3, 2], [2, 0, 3, 1])
    backwards = ([3, 0, 2, 1], [3, 2, 1, 0], [0, 1, 2, 3])
    return [[["F", i] for i in first] + [["BW", i] for i in then] for first, then in zip(forwards, backwards)]


_SCHEDULES = {
    "1F1B": (_one_f_one_b(7), 7),
    "1F1B with fewer micro-batches than ranks": (_one_f_one_b(2), 2),
    "neighbours in different orders": (_each_in_its_own_order(), 4),
}
_TOGETHER = (("1F1B", "1F1B with fewer micro-batches than ranks"), ("neighbours in different orders",))


def _case(name, seed):
    actions, micro_batches = _SCHEDULES[name]
    rng = np.random.default_rng([seed, 40, micro_batches])
    shapes = list(zip(_WIDTHS, _WIDTHS[1:]))
    return {
        "actions": per_rank(actions),
        "weights": per_rank([rng.standard_normal(shape), rng.standard_normal(shape[1])] for shape in shapes),
        "before": per_rank(rng.standard_normal(shape) for shape in shapes),
        **batches(rng, micro_batches),
    }


def _run(call, seed, name):
    """The outputs of the run that has the schedule `name`, its number there, its inputs, and what was given in words."""
    together = next(names for names in _TOGETHER if name in names)
    cases = [_case(each, seed) for each in together]
    number, micro_batches = together.index(name), _SCHEDULES[name][1]
    given = f"{RANKS} ranks, {micro_batches} micro-batches, {name}"
    outputs = outputs_of(call, "pipeline.execute", RANKS, given, cases=cases)
    calls_only_in(outputs, range(len(cases)), given)
    return outputs, number, cases[number], given


def one_process(stages, inputs, targets):
    """Loss and gradients of one process; `stages` is a list of (function of (x, weights), weights to train)."""
    weights = [[torch.tensor(array, requires_grad=True) for array in own] for _, own in stages]
    losses = []
    for x, target in zip(inputs, targets):
        x = torch.from_numpy(x)
        for (function, _), own in zip(stages, weights):
            x = function(x, *own)
        losses.append(squared_error(x, torch.from_numpy(target)))
    loss = sum(losses) / len(losses)
    loss.backward()
    return loss.item(), [[weight.grad.numpy() for weight in own] for own in weights]


def _expected(case, chosen=slice(None)):
    stages = [(_with_bias(bias), [weight]) for weight, bias in case["weights"]["arrays"]]
    loss, gradients = one_process(stages, case["inputs"]["arrays"][0][chosen], case["targets"]["arrays"][-1][chosen])
    return loss, [own[0] for own in gradients]


def _with_bias(bias):
    return lambda x, weight: torch.tanh(x @ weight + torch.from_numpy(bias))


def _gradients(name):
    """On every rank what stood in grad before, and the gradient of the mean loss."""

    def check(call, seed):
        outputs, number, case, given = _run(call, seed, name)
        m = _SCHEDULES[name][1]
        _, gradients = _expected(case)
        _, last_only = _expected(case, slice(m - 1, m))
        for rank, result in enumerate(outputs["results"]):
            came, before, gradient = result[number]["gradient"], case["before"]["arrays"][rank], gradients[rank]
            if not result[number]["frozen"]:
                raise wrong(f"Rank {rank}'s frozen bias has a gradient.", given, look_at="backward() leaves it alone")
            if close(came, before + gradient):
                continue
            look_at = None
            if close(came, before + m * gradient):
                look_at = f"{m} times too large: the loss is the mean over the micro-batches, so each counts 1/{m}"
            elif close(came, gradient):
                look_at = "what stood in grad before is lost: gradients are added to it"
            elif any(close(came, each) for each in (last_only[rank], last_only[rank] / m)):
                look_at = "only the last micro-batch is in it: gradients are added, not put in place of one another"
            elif close(came, before):
                look_at = "nothing has been added"
            raise wrong(f"Rank {rank}'s gradient is not that of one process.", given, came, before + gradient, look_at)

    return check


def _loss(name):
    """The mean over the micro-batches on the last rank, None elsewhere."""

    def check(call, seed):
        outputs, number, case, given = _run(call, seed, name)
        expected, _ = _expected(case)
        m = _SCHEDULES[name][1]
        *others, last = (result[number]["loss"] for result in outputs["results"])
        for rank, came in enumerate(others):
            if came is not None:
                raise wrong(f"Rank {rank} returned a loss, which only the last rank can know.", given, came, "None")
        if last is None:
            raise wrong("The last rank returned no loss.", given, "None", expected)
        if not math.isclose(last, expected, rel_tol=_FP32):
            look_at = None
            if math.isclose(last, m * expected, rel_tol=_FP32):
                look_at = "the sum over the micro-batches; asked for is their mean"
            raise wrong("The last rank returned a wrong loss.", given, last, expected, look_at)

    return check


def _messages(name):
    """Over each border m activations one way and m gradients back; every rank sends and receives no more than that."""

    def check(call, seed):
        outputs, number, _, given = _run(call, seed, name)
        m, elements = _SCHEDULES[name][1], _BATCH * _WIDTHS[1]
        for rank, calls in enumerate(outputs["calls"]):
            made = [item for item in calls if item["case"] == number]
            neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < RANKS]
            for item in made:
                if item["op"] not in ("send", "recv"):
                    raise wrong(f"Rank {rank} called {item['op']}; sends and receives are enough.", given)
                if item["op"] == "send" and item["peer"] not in neighbours:
                    raise wrong(f"Rank {rank} sent to rank {item['peer']}, which is no neighbour.", given)
                if item["elements"] != elements:
                    raise wrong(
                        f"A message of rank {rank} has a wrong size.", given, item["elements"], f"{elements} elements",
                        "activation and gradient of one micro-batch have the shape of boundary",
                    )  # fmt: skip
            for other in neighbours:
                sent = [item for item in made if item["op"] == "send" and item["peer"] == other]
                what = "gradients" if other < rank else "activations"
                n_bytes, right = sum(item["sent_bytes"] for item in sent), _FP64_BYTES * m * elements
                if len(sent) != m or n_bytes != right:
                    much = "more" if n_bytes > right else "fewer"
                    raise wrong(
                        f"Rank {rank} sent {much} bytes to rank {other} than the {what} take.", given,
                        f"{len(sent)} messages, {n_bytes:,} bytes", f"{m} messages, {right:,} bytes",
                    )  # fmt: skip

    return check


def _kept(call, seed):
    """Work in the order of the schedule, and activations that are gone after their backward."""
    outputs, number, case, given = _run(call, seed, "1F1B")
    m = _SCHEDULES["1F1B"][1]
    for rank, result in enumerate(outputs["results"]):
        events, order = result[number]["events"], [kind for kind, _ in case["actions"]["arrays"][rank]]
        if events != order:
            raise wrong(
                f"Rank {rank} does not work in the order of its actions.", given, " ".join(map(str, events)),
                " ".join(order),
            )  # fmt: skip
        limit = in_flight_micro_batches("1f1b", RANKS, m, rank) + 1  # one that a variable still names
        peak = result[number]["peak"]
        if not 1 <= peak <= limit:
            raise wrong(
                f"Rank {rank} keeps the activations of too many micro-batches.", given, peak,
                f"{limit - 1}, or {limit} with one that a variable still names",
                "what still names a graph after its backward: an output, a loss, a message sent without detach()?",
            )  # fmt: skip


QUESTIONS = {
    "q4": (
        SubCheck("the gradients of one process", _gradients("1F1B")),
        SubCheck("the loss, on the last rank only", _loss("1F1B")),
        SubCheck("messages and bytes", _messages("1F1B")),
        SubCheck("nothing is kept after its backward", _kept),
        SubCheck("fewer micro-batches than ranks", _gradients("1F1B with fewer micro-batches than ranks")),
        SubCheck("neighbours in different orders", _gradients("neighbours in different orders")),
    ),
}
