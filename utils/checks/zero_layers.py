"""Lab 02, q4 and q5: weights that are whole only while a layer computes, and that are asked for beforehand."""

import itertools

import numpy as np
import torch

from utils.checks.probes.zero import Twice, twice_with
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.checks.zero_chunks import (
    FP64_BYTES,
    RANKS,
    close,
    gathered,
    own,
    own_bytes,
    own_elements,
    scattered,
    sent,
    sizes_in_words,
)

# q4: weights that are whole only while they compute

_DEPTH, _INNER = 8, 32


def _layer_elements():
    return sum(p.numel() for p in Twice(_INNER).parameters())


_LAYER_BYTES = FP64_BYTES * _layer_elements()


def _zero3(call, seed):
    rng = np.random.default_rng([seed, 40])
    shapes = {name: tuple(p.shape) for name, p in Twice(_INNER).named_parameters()}
    weights = [
        {name: rng.standard_normal(shape) / np.sqrt(_INNER) for name, shape in shapes.items()}
        for _ in range(_DEPTH)
    ]
    batch = {"arrays": [rng.standard_normal((2, _INNER)) for _ in range(RANKS)]}
    given = f"{RANKS} ranks, {_DEPTH} layers of {_layer_elements():,} numbers in chunks of {sizes_in_words(_layer_elements())}"
    outputs = outputs_of(call, "zero.sharded_layers", RANKS, given, weights=weights, batch=batch)
    calls_only_in(outputs, ("forward", "backward"), given)
    return outputs, given, weights, batch


def _flat(weights):
    return np.concatenate([weights[name].reshape(-1) for name, _ in Twice(_INNER).named_parameters()])


def _only_the_shard(call, seed):
    """The wrapper's parameters are the shard alone, and nothing else is alive."""
    outputs, given, weights, _ = _zero3(call, seed)
    for rank, result in enumerate(outputs["results"]):
        elements = own_elements(_layer_elements(), rank)
        shapes = result["parameters"][0]
        if len(shapes) != 1 or np.prod(shapes[0]) != elements:
            raise wrong(
                f"The parameters of a sharded layer are not the shard alone on rank {rank}.", given,
                f"shapes {shapes}", f"one parameter of {elements} numbers",
                "self.shard = nn.Parameter(…); the layer itself is kept in a list, where nn.Module does not look",
            )  # fmt: skip
        for shard, each in zip(result["shards"], weights):
            if not np.array_equal(shard.reshape(-1), own(_flat(each), rank)):
                raise wrong(
                    f"Rank {rank}'s shard is not its own chunk.", given, shard, own(_flat(each), rank),
                    "own_chunk(flatten(parameters)): chunk (r + 1) mod N",
                )  # fmt: skip
        expected, came = _DEPTH * own_bytes(_layer_elements(), rank), result["bytes"]["resting"]
        if came > expected + _LAYER_BYTES:
            raise wrong(
                f"Before the first use rank {rank} holds more than its shards.", given, f"{came:,} bytes",
                f"{expected:,} bytes", "a chunk is a view of the whole: .clone(); and the layer's own weights are freed",
            )  # fmt: skip


def _through_layers(weights, samples):
    """Outputs, input gradient and flat weight gradients of one process: loss is the mean over the samples."""
    layers, x = [twice_with(each) for each in weights], torch.from_numpy(samples).requires_grad_()
    outputs = x
    for layer in layers:
        outputs = layer(outputs)
    outputs.square().sum(1).mean().backward()
    gradients = [torch.cat([p.grad.reshape(-1) for p in layer.parameters()]).numpy() for layer in layers]
    return outputs.detach().numpy(), x.grad.numpy(), gradients


def _outputs(call, seed):
    """Forward with gathered weights is forward with the layer's own."""
    outputs, given, weights, batch = _zero3(call, seed)
    expected = _through_layers(weights, np.concatenate(batch["arrays"]))[0]
    for rank, result in enumerate(outputs["results"]):
        right, came = np.array_split(expected, RANKS)[rank], result["outputs"]
        if close(came, right):
            continue
        look_at = None
        if close(came, _through_layers([_turned(each) for each in weights], batch["arrays"][rank])[0]):
            look_at = "the chunks came together in the wrong order: this rank's is chunk (r + 1) mod N, not chunk r"
        raise wrong(f"The outputs are wrong on rank {rank}.", given, came, right, look_at)


def _turned(weights):
    """The weights of a layer when every rank writes its chunk to place r."""
    flat = np.concatenate([own(_flat(weights), rank) for rank in range(RANKS)])
    turned, start = {}, 0
    for name, p in Twice(_INNER).named_parameters():
        turned[name] = flat[start : start + p.numel()].reshape(tuple(p.shape))
        start += p.numel()
    return turned


def _gradients(call, seed):
    """The input's gradient is this rank's own, the shard's the mean over the ranks."""
    outputs, given, weights, batch = _zero3(call, seed)
    mean = _through_layers(weights, np.concatenate(batch["arrays"]))[2]
    for rank, result in enumerate(outputs["results"]):
        _, of_inputs, alone = _through_layers(weights, batch["arrays"][rank])
        if result["input_gradient"] is None or not close(result["input_gradient"], of_inputs):
            raise wrong(
                f"The gradient of the input is wrong on rank {rank}.", given, result["input_gradient"], of_inputs,
                "backward returns one gradient for each argument of forward; samples of other ranks play no part",
            )  # fmt: skip
        for number, gradient in enumerate(result["gradients"]):
            right = own(mean[number], rank)
            if gradient is not None and close(gradient.reshape(-1), right):
                continue
            came = "none" if gradient is None else gradient.reshape(-1)
            look_at = None
            if gradient is not None and close(came, right * RANKS):
                look_at = f"{RANKS} times too large: the sum over the ranks is not yet the mean"
            elif gradient is not None and close(came, own(alone[number], rank)):
                look_at = "the gradient of this rank's samples only: ring_reduce_scatter before the chunk is taken"
            raise wrong(
                f"The gradient of layer {number}'s shard is wrong on rank {rank}.", given, came, right, look_at
            )


def _zero3_elements(call, seed):
    """Two all-gathers and one reduce-scatter of every layer: 3Ψ(N − 1)/N."""
    outputs, given, _, _ = _zero3(call, seed)
    size = _layer_elements()
    for case, expected_of in (
        ("forward", lambda rank: gathered(size, rank)),
        ("backward", lambda rank: gathered(size, rank) + scattered(size, rank)),
    ):
        expected = [_DEPTH * expected_of(rank) for rank in range(RANKS)]
        came = [sent(calls, case) for calls in outputs["calls"]]
        if came == expected:
            continue
        look_at = None
        if case == "backward" and 2 * sum(came) >= 2.9 * sum(expected):
            look_at = "an all-reduce brings every rank the whole gradient, but a rank needs only its own chunk"
        elif case == "backward" and sum(came) < sum(expected):
            look_at = "weights that were freed after forward are gathered once more"
        raise wrong(
            f"The elements that the ranks sent in {case} (rank by rank) are not those of ZeRO-3.",
            given, came, expected, look_at,
        )  # fmt: skip


def _zero3_bytes(call, seed):
    """One layer is whole at a time, in forward and in backward, and none in between or afterwards."""
    outputs, given, _, _ = _zero3(call, seed)
    for rank, result in enumerate(outputs["results"]):
        shards = _DEPTH * own_bytes(_layer_elements(), rank)
        inputs = 4 * _DEPTH * FP64_BYTES * 2 * _INNER
        moments = (
            ("between", shards + inputs + _LAYER_BYTES, "Between forward and backward rank {} still holds whole weights.",
             "free the weights at the end of forward; what autograd saves in between must not be the weights"),
            ("forward", shards + inputs + 3 * _LAYER_BYTES, "In forward rank {} held several whole layers at a time.",
             "gather just before the layer computes, free just after"),
            ("after", 2 * shards + inputs + _LAYER_BYTES, "After backward rank {} still holds whole weights.",
             "backward gathers a second time, and frees a second time"),
            ("backward", 2 * shards + inputs + 6 * _LAYER_BYTES, "In backward rank {} held several whole layers at a time.",
             "gather, compute, free, and only then go on to the layer before"),
        )  # fmt: skip
        for moment, allowed, sentence, look_at in moments:
            if result["bytes"][moment] > allowed:
                raise wrong(
                    sentence.format(rank), given, f"{result['bytes'][moment]:,} bytes", f"at most {allowed:,} bytes", look_at
                )


# q5: prefetch

_LAYERS, _WIDTH = 6, 40


def _prefetch(call, seed):
    rng = np.random.default_rng([seed, 50])
    weights = [rng.standard_normal((_WIDTH, _WIDTH)) / np.sqrt(_WIDTH) for _ in range(_LAYERS)]
    x = rng.standard_normal(_WIDTH)
    layers = [{"arrays": [own(matrix.reshape(-1), rank) for rank in range(RANKS)]} for matrix in weights]
    given = f"{RANKS} ranks, {_LAYERS} layers of {_WIDTH * _WIDTH:,} numbers"
    outputs = outputs_of(call, "zero.prefetch", RANKS, given, layers=layers, x=x)
    calls_only_in(outputs, ("forward",), given)
    for matrix in weights:
        x = np.tanh(matrix @ x)
    return outputs, given, x


def _by_layer(call, seed):
    """For each rank the layers' (gather, start, end): its sends and receives in order, and when it computed."""
    outputs, given, _ = _prefetch(call, seed)
    each, ranks = 2 * (RANKS - 1), []
    for rank, (calls, spans) in enumerate(zip(outputs["calls"], outputs["spans"], strict=True)):
        computed = sorted((span["start"], span["end"]) for span in spans if span["name"] == "compute")
        if (len(calls), len(computed)) != (each * _LAYERS, _LAYERS):
            raise wrong(
                f"Rank {rank} made {len(calls)} sends and receives, and {len(computed)} layers computed.", given,
                expected=f"{each} sends and receives for each of {_LAYERS} layers",
            )  # fmt: skip
        gathers = [calls[start : start + each] for start in range(0, len(calls), each)]
        ranks.append([(gather, *moments) for gather, moments in zip(gathers, computed)])
    return ranks, given


def _waited_for(call, seed):
    """No layer computes before somebody has waited for all that belongs to it."""
    ranks, given = _by_layer(call, seed)
    for rank, layers in enumerate(ranks):
        for number, (gather, start, _) in enumerate(layers):
            if any(made["waited"] is None or made["waited"] > start for made in gather):
                raise wrong(
                    f"On rank {rank} layer {number} computed before all its shards had come.", given,
                    look_at="every handle of the layer's gather has a wait(): call all of them, then compute",
                )  # fmt: skip


def _computed(call, seed):
    """All layers, once, in order, with whole weights."""
    outputs, given, expected = _prefetch(call, seed)
    for rank, result in enumerate(outputs["results"]):
        if result["order"] != list(range(_LAYERS)):
            raise wrong(f"The layers did not compute once each and in order on rank {rank}.", given,
                        f"layers {result['order']}", f"layers {list(range(_LAYERS))}")  # fmt: skip
        if not close(result["output"], expected):
            raise wrong(f"The output is wrong on rank {rank}.", given, result["output"], expected)


def _prefetch_elements(call, seed):
    """Every layer is gathered once."""
    outputs, given, _ = _prefetch(call, seed)
    for rank, calls in enumerate(outputs["calls"]):
        came, expected = sent(calls, "forward"), (RANKS - 1) * _LAYERS * own_elements(_WIDTH * _WIDTH, rank)
        if came != expected:
            raise wrong(f"Rank {rank} did not send its shard of every layer once to each other rank.", given,
                        f"{came:,} elements", f"{expected:,} elements")  # fmt: skip


def _asked_beforehand(call, seed):
    """The gather of layer k + 1 starts before layer k computes, and is waited for after it."""
    ranks, given = _by_layer(call, seed)
    for rank, layers in enumerate(ranks):
        for number, ((_, start, end), (following, _, _)) in enumerate(itertools.pairwise(layers)):
            if any(made["start"] > start for made in following):
                raise wrong(
                    f"On rank {rank} nobody asked for layer {number + 1} before layer {number} computed.", given,
                    look_at="start the next layer's gather, and only then compute this layer",
                )  # fmt: skip
            if any(made["waited"] is not None and made["waited"] < end for made in following):
                raise wrong(
                    f"On rank {rank} layer {number} stood still until layer {number + 1} had come.", given,
                    look_at="start_all_gather returns handles at once: wait for them when it is their layer's turn",
                )  # fmt: skip


def _two_at_a_time(call, seed):
    """One layer computes, the next one comes, and no other is whole."""
    outputs, given, _ = _prefetch(call, seed)
    layer = FP64_BYTES * _WIDTH * _WIDTH
    for rank, result in enumerate(outputs["results"]):
        if result["peak"] > 2.5 * layer:
            raise wrong(
                f"Rank {rank} held more than two whole layers at a time.", given, f"{result['peak']:,} bytes",
                f"about {2 * layer:,} bytes", "one layer computes, one is on its way; let go of the one before",
            )  # fmt: skip


QUESTIONS = {
    "q4": (
        SubCheck("only the shard rests", _only_the_shard),
        SubCheck("outputs", _outputs),
        SubCheck("gradients", _gradients),
        SubCheck("elements sent", _zero3_elements),
        SubCheck("whole only while it computes", _zero3_bytes),
    ),
    "q5": (
        SubCheck("elements sent", _prefetch_elements),
        SubCheck("waited for", _waited_for),
        SubCheck("every layer in its turn", _computed),
        SubCheck("asked for beforehand", _asked_beforehand),
        SubCheck("two layers at a time", _two_at_a_time),
    ),
}
