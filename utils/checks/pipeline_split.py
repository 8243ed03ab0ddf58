"""Lab 04, q5: ZB-H1, whose backward comes in two parts: the input's gradient now, the weight's when there is time."""

import numpy as np
import torch

from utils.checks.pipeline_executor import RANKS, batches, close, one_process, per_rank
from utils.checks.pipeline_orders import check_bubble, check_in_flight, orders, timed
from utils.checks.verdict import SubCheck, outputs_of, wrong
from utils.theory.pipeline import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    UNIT_COSTS,
    in_flight_micro_batches,
    simulate,
    zb_h1,
)

_KINDS = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)

# the order


def _orders(call, seed):
    return orders(call, seed, 50, 0, "zb_h1_order", _KINDS)


def _complete(call, seed):
    _orders(call, seed)


def _parts_in_order(call, seed):
    """No W before its B, and nobody waits for ever."""
    for _, _, given, schedule in _orders(call, seed):
        for rank, row in enumerate(schedule.ranks):
            done = set()
            for action in row:
                done.add(action[:2])
                if action.kind == BACKWARD_WEIGHT and (BACKWARD_INPUT, action.micro_batch) not in done:
                    raise wrong(
                        f"Rank {rank} does {action} before B{action.micro_batch}.", given,
                        look_at="W uses the gradient that comes in at B",
                    )  # fmt: skip
        timed(schedule, UNIT_COSTS, given)


def _memory(call, seed):
    """1F1B's limit between F and B, and rank 0's of 1F1B between F and W."""
    for p, m, given, schedule in _orders(call, seed):
        check_in_flight(
            schedule, lambda rank, p=p, m=m: in_flight_micro_batches("zb-h1", p, m, rank), BACKWARD_INPUT, given,
            "At {where} rank {rank} has {peak} micro-batches in flight.", "F and B come as in 1F1B",
        )  # fmt: skip
        check_in_flight(
            schedule, lambda rank, p=p, m=m: in_flight_micro_batches("1f1b", p, m), BACKWARD_WEIGHT, given,
            "At {where} rank {rank} holds {peak} micro-batches whose W is still to come.",
            "rank r lets r weight parts wait; from then on each B is followed by the oldest W",
        )  # fmt: skip


def _bubble(call, seed):
    """(p − 1)(T_F + T_B − T_W) of idle time where m is large enough, and no more than the course's order elsewhere."""
    for p, m, given, schedule in _orders(call, seed):
        share = simulate(zb_h1(p, m)).bubble_rate
        check_bubble(timed(schedule, UNIT_COSTS, given), share, given, "the weight parts that wait fill the gaps at the end")


# the layer


def _layers(seed):
    """x of two and of three dimensions, with a gradient and, as on the first stage, without."""
    rng = np.random.default_rng([seed, 51])
    layers = []
    for shape, of_input in (((3, 4), True), ((2, 3, 4), True), ((3, 4), False)):
        layers.append(
            {
                "weight": rng.standard_normal((5, 4)),
                "inputs": [rng.standard_normal(shape) for _ in range(4)],
                "gradients": [rng.standard_normal((*shape[:-1], 5)) for _ in range(4)],
                "of_input": of_input,
                "late": rng.permutation(4).tolist(),
            }
        )
    return layers


def _split(call, seed):
    layers = _layers(seed)
    given = "SplitLinear with a weight (5, 4), 4 micro-batches"
    outputs = outputs_of(call, "pipeline.split_linear", 1, given, layers=layers)
    for layer, came in zip(layers, outputs["results"][0], strict=True):
        shape = layer["inputs"][0].shape
        yield layer, came, f"{given} of x {shape}{'' if layer['of_input'] else ', which has no gradient'}"


def _weight_gradient(x, gradient):
    return gradient.reshape(-1, gradient.shape[-1]).T @ x.reshape(-1, x.shape[-1])


def _input_part(call, seed):
    """Forward, and the gradient of x at once."""
    for layer, came, given in _split(call, seed):
        for x, gradient, y, dx in zip(
            layer["inputs"], layer["gradients"], came["outputs"], came["of_inputs"], strict=True
        ):
            if not close(y, x @ layer["weight"].T):
                raise wrong("SplitLinear's output is wrong.", given, y, x @ layer["weight"].T, "y = x · weightᵀ")
            if layer["of_input"] and not (dx is not None and close(dx, gradient @ layer["weight"])):
                raise wrong(
                    "The gradient of x is wrong.", given, "None" if dx is None else dx, gradient @ layer["weight"],
                    "y = x · weightᵀ, so the gradient of x is the gradient of y · weight",
                )  # fmt: skip


def _put_off(call, seed):
    """Nothing in weight.grad after B, and no product of its kind in B; something put off for each micro-batch."""
    for _, came, given in _split(call, seed):
        if came["early"]:
            raise wrong(
                "The weight has a gradient after B: its part was not put off.", given,
                look_at="backward returns None for the weight, and hands put_off a function that does the rest",
            )  # fmt: skip
        if any(came["products"]):
            raise wrong(
                "The weight's product was computed in B already; only the adding was put off.", given,
                look_at="the product gᵀ · x belongs into the function that you hand to put_off",
            )  # fmt: skip
        if min(came["put_off"]) < 1:
            number = came["put_off"].index(0)
            raise wrong(f"Nothing was put off for micro-batch {number}.", given, look_at="put_off(function), in backward")


def _weight_part(call, seed):
    """After each W the sum of the gradients so far, whatever the order of the W's."""
    for layer, came, given in _split(call, seed):
        parts = [_weight_gradient(*pair) for pair in zip(layer["inputs"], layer["gradients"])]
        total = 0
        for done, (number, seen) in enumerate(zip(layer["late"], came["seen"], strict=True), start=1):
            total = total + parts[number]
            if seen is not None and close(seen, total):
                continue
            look_at = "gradient of y, its rows turned, times x; leading dimensions are flattened first"
            if seen is not None and close(seen, parts[number]):
                look_at = "the part takes the place of what stood in grad: it is added to it"
            elif seen is not None and close(seen, done * parts[-1]):
                look_at = "each part sees the last micro-batch: a function keeps what it was made with only if it is given it"
            raise wrong(
                f"After {done} of {len(parts)} weight parts the weight's gradient is wrong.", given,
                "None" if seen is None else seen, total, look_at,
            )  # fmt: skip


# both, on ranks

_INNER, _MICRO_BATCHES = 6, 5


def _stage(x, first, second):
    return torch.tanh(torch.tanh(x @ first.T) @ second.T)


def _on_ranks(call, seed):
    """The student's order and layer run a pipeline of three ranks, with the gradients of one process."""
    rng = np.random.default_rng([seed, 52])
    widths = ((5, 4), (4, 4), (4, 3))
    weights = [[rng.standard_normal((_INNER, before)), rng.standard_normal((after, _INNER))] for before, after in widths]
    given = f"{RANKS} ranks, {_MICRO_BATCHES} micro-batches, two SplitLinear layers on each stage"
    arguments = batches(rng, _MICRO_BATCHES)
    outputs = outputs_of(
        call, "pipeline.split_pipeline", RANKS, given,
        micro_batches=_MICRO_BATCHES, weights=per_rank(weights), **arguments,
    )  # fmt: skip
    inputs, targets = arguments["inputs"]["arrays"][0], arguments["targets"]["arrays"][-1]
    loss, gradients = one_process([(_stage, own) for own in weights], inputs, targets)
    for rank, result in enumerate(outputs["results"]):
        for name, came, expected in zip(("first", "second"), result["gradients"], gradients[rank], strict=True):
            if came is None or not close(came, expected):
                raise wrong(
                    f"On ranks, the gradient of rank {rank}'s {name} layer is not that of one process.", given,
                    "None" if came is None else came, expected,
                )  # fmt: skip
    if not close(np.float64(outputs["results"][-1]["loss"]), np.float64(loss)):
        raise wrong("On ranks, the loss is not that of one process.", given, outputs["results"][-1]["loss"], loss)


QUESTIONS = {
    "q5": (
        SubCheck("every micro-batch, every rank, F, B and W once", _complete),
        SubCheck("no W before its B, and nobody waits for ever", _parts_in_order),
        SubCheck("the memory of 1F1B", _memory),
        SubCheck("the bubble of ZB-H1", _bubble),
        SubCheck("the gradient of the input", _input_part),
        SubCheck("the weight's part is put off", _put_off),
        SubCheck("the gradient of the weight", _weight_part),
        SubCheck("both on three ranks", _on_ranks),
    ),
}
