"""Lab 02, q3: a ZeRO-2 step, whose gradients are whole for a moment and leave a shard behind."""

import numpy as np
import torch

from utils.checks.probes.zero import Stack, stack_loss, stack_with
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.checks.zero_chunks import FP64_BYTES, RANKS, close, gathered, own, own_bytes, scattered, sent

_LAYERS, _WIDTH, _MICRO_BATCHES, _RATE = 12, 49, 2, 0.5
_BLOCK_BYTES = FP64_BYTES * (_WIDTH * _WIDTH + _WIDTH)
_WHOLE_BLOCKS = 5  # the block's gradient, a flat copy or two, what comes from the neighbour, the shared weight's half


def _block_elements():
    return [sum(p.numel() for p in block) for block in Stack(_LAYERS, _WIDTH).blocks()]


def _zero2(call, seed):
    """Run a step; return what came, and weights, mean gradients and new weights of one process by block, flat."""
    rng = np.random.default_rng([seed, 30])
    weights = {
        name: rng.standard_normal(tuple(p.shape)) / np.sqrt(_WIDTH)
        for name, p in Stack(_LAYERS, _WIDTH).named_parameters()
    }
    batches = [
        {"arrays": [rng.standard_normal((1, _WIDTH)) for _ in range(RANKS)]} for _ in range(_MICRO_BATCHES)
    ]
    given = f"{RANKS} ranks, {_MICRO_BATCHES} micro-batches, {_LAYERS} blocks of {_block_elements()[0]:,} numbers"
    outputs = outputs_of(call, "zero.zero2", RANKS, given, weights=weights, batches=batches, rate=_RATE)
    calls_only_in(outputs, ("step",), given)
    return outputs, given, weights, batches


def _flat_gradients(weights, samples):
    """The gradient of the mean loss over `samples`, one flat array per block."""
    stack = stack_with(weights)
    stack_loss(stack, torch.from_numpy(np.concatenate(samples))).backward()
    return [np.concatenate([p.grad.numpy().reshape(-1) for p in block]) for block in stack.blocks()]


def _gradient_shards(call, seed):
    """update(number, weights, gradient) is called once per block, with the mean gradient's own chunk."""
    outputs, given, weights, batches = _zero2(call, seed)
    samples = [array for batch in batches for array in batch["arrays"]]
    mean = _flat_gradients(weights, samples)
    for rank, result in enumerate(outputs["results"]):
        if sorted(result["asked"]) != list(range(_MICRO_BATCHES)):
            raise wrong(
                f"Not every function of losses was called once on rank {rank}.", given, f"micro-batches {result['asked']}",
                f"micro-batches {list(range(_MICRO_BATCHES))}",
            )  # fmt: skip
        called = [each["block"] for each in result["given"]]
        if sorted(called) != list(range(_LAYERS)):
            raise wrong(
                f"update was not called once for each block on rank {rank}.", given, f"blocks {called}",
                f"blocks {list(range(_LAYERS))}",
            )  # fmt: skip
        for each in result["given"]:
            right, came = own(mean[each["block"]], rank), each["gradient"]
            if came.shape != right.shape:
                raise wrong(
                    f"Block {each['block']}: rank {rank} got a gradient of {came.size:,} numbers, but its chunk has "
                    f"{right.size:,}.", given, look_at="ring_reduce_scatter returns the own chunk of the sum",
                )  # fmt: skip
            if not close(came, right):
                raise _explain_gradient(rank, each["block"], came, right, weights, batches, given)


def _explain_gradient(rank, block, came, right, weights, batches, given):
    parts = [own(_flat_gradients(weights, batch["arrays"])[block], rank) for batch in batches]
    last, piled_up = parts[-1], np.cumsum(parts, axis=0).sum(axis=0)
    mistakes = (
        (right * RANKS * _MICRO_BATCHES, "a sum over ranks and micro-batches, not the mean"),
        (right * RANKS, f"{RANKS} times too large: the sum over the ranks is not yet the mean"),
        (right / RANKS, f"{RANKS} times too small: averaged over the ranks twice"),
        (right * _MICRO_BATCHES, f"{_MICRO_BATCHES} times too large: the micro-batches are to be averaged too"),
        (last, "the last micro-batch replaced the ones before it: shards add up"),
        (last / _MICRO_BATCHES, "the last micro-batch replaced the ones before it: shards add up"),
        (piled_up / _MICRO_BATCHES, "earlier micro-batches count again: a block's .grad go back to None when it is reduced"),
    )
    look_at = next((words for value, words in mistakes if close(came, value)), None)
    if block == 0 and look_at is None:
        look_at = "this block's weight is used twice: its gradient is complete only after both uses"
    return wrong(
        f"The gradient of block {block} that rank {rank} gave to update is not the mean over ranks and micro-batches.",
        given, came, right, look_at,
    )  # fmt: skip


def _new_weights(call, seed):
    """Every rank ends with the weights that all ranks' updates made, bit by bit the same."""
    outputs, given, weights, batches = _zero2(call, seed)
    samples = [array for batch in batches for array in batch["arrays"]]
    gradients = _flat_gradients(weights, samples)
    stack = stack_with(weights)
    with torch.no_grad():
        for block, gradient in zip(stack.blocks(), gradients):
            parts = np.split(gradient, np.cumsum([p.numel() for p in block])[:-1])
            for p, part in zip(block, parts):
                p -= _RATE * torch.from_numpy(part).view(p.shape)
    expected = {name: p.detach().numpy() for name, p in stack.named_parameters()}
    first = outputs["results"][0]["state"]
    for rank, result in enumerate(outputs["results"]):
        for name, right in expected.items():
            if not close(result["state"][name], right):
                changed = result["state"][name] != weights[name]
                raise wrong(
                    f"After the step {name} is wrong on rank {rank}.", given, result["state"][name], right,
                    "only this rank's chunk is new: the others' chunks are to be gathered" if changed.any()
                    else "update changes its second argument in place: is that a chunk of what is gathered and written back?",
                )  # fmt: skip
            if result["state"][name].tobytes() != first[name].tobytes():
                raise wrong(f"After the step {name} differs between ranks 0 and {rank}.", given)


def _zero2_elements(call, seed):
    """A reduce-scatter per block and micro-batch, an all-gather per block: (m + 1)Ψ(N − 1)/N."""
    outputs, given, _, _ = _zero2(call, seed)
    blocks = _block_elements()
    expected = [
        sum(_MICRO_BATCHES * scattered(size, rank) + gathered(size, rank) for size in blocks)
        for rank in range(RANKS)
    ]
    came = [sent(calls, "step") for calls in outputs["calls"]]
    if came == expected:
        return
    look_at = None
    if sum(came) < sum(expected):
        look_at = "each micro-batch's gradients are reduced while its backward runs; waiting for the last keeps them whole"
    elif sum(came) >= sum(expected) * (2 * _MICRO_BATCHES + 1) / (_MICRO_BATCHES + 1) * 0.99:
        look_at = "an all-reduce brings every rank the whole gradient, but a rank needs only its own chunk"
    raise wrong(
        "The elements that the ranks sent (rank by rank) are not those of a ZeRO-2 step, (m + 1)Ψ(N − 1)/N.",
        given, came, expected, look_at,
    )  # fmt: skip


def _zero2_peak(call, seed):
    """Beside the shards only a few blocks' gradients are whole at any time, and in the end nothing is left."""
    outputs, given, _, _ = _zero2(call, seed)
    for rank, result in enumerate(outputs["results"]):
        shards = sum(own_bytes(size, rank) for size in _block_elements())
        at_update = result["at_update"][0]
        allowed = shards + 2 * _BLOCK_BYTES
        if at_update > allowed:
            raise wrong(
                f"When backward is over, rank {rank} still holds whole gradients.", given,
                f"{at_update:,} bytes more than the weights, at the first update",
                f"at most {allowed:,}: the shards and two blocks",
                "a chunk is a view, and a view keeps the whole tensor alive: .clone(), or a new tensor by arithmetic",
            )  # fmt: skip
        activations = 2 * FP64_BYTES * _LAYERS * _WIDTH
        allowed = shards + _WHOLE_BLOCKS * _BLOCK_BYTES + activations
        if result["peak"] > allowed:
            raise wrong(
                f"Rank {rank} held too many whole gradients at a time.", given,
                f"{result['peak']:,} bytes more than the weights, at the peak",
                f"at most {allowed:,}: the shards, {_WHOLE_BLOCKS} blocks, and the activations",
                "reduce a block in the hook of its last gradient, and set its .grad to None at once",
            )  # fmt: skip


def _zero2_leaves_nothing(call, seed):
    """No hooks, no gradients, no memory."""
    outputs, given, _, _ = _zero2(call, seed)
    for rank, result in enumerate(outputs["results"]):
        if result["hooks"]:
            raise wrong(
                f"{result['hooks']} hooks were still on rank {rank}'s parameters after zero2_step.", given,
                look_at="handle.remove(), for each handle that register_post_accumulate_grad_hook returned",
            )  # fmt: skip
        if result["gradients_left"]:
            raise wrong(f"{result['gradients_left'][0]} still has a gradient after zero2_step.", given)
        if result["after"] > _BLOCK_BYTES:
            raise wrong(
                f"Rank {rank} holds more memory after zero2_step than before.", given,
                f"{result['after']:,} bytes", "none", "what is still referred to, and by whom",
            )  # fmt: skip


QUESTIONS = {
    "q3": (
        SubCheck("gradient shards", _gradient_shards),
        SubCheck("new weights", _new_weights),
        SubCheck("elements sent", _zero2_elements),
        SubCheck("peak memory", _zero2_peak),
        SubCheck("nothing left behind", _zero2_leaves_nothing),
    ),
}
