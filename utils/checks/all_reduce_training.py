"""Lab 01, q4 and q5: a data-parallel step and overlapped buckets, against one process on the whole batch."""

import itertools

import numpy as np
import torch
from torch import nn

from utils.checks.probes.all_reduce import Chain, Net, chain_with, net_with, state_of
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.parallel.data import make_buckets, trainable_parameters
from utils.theory.collectives import all_reduce_elements_sent

LEARNING_RATE, WEIGHT_DECAY = 0.5, 0.1
TOLERANCE = 1e-9  # fp64; the ranks add in another order than one process
FP64_BYTES = 8

# q4: a data-parallel step


def _net_state(seed):
    """Parameters and buffers of a Net, different for every seed: {name: array}."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(tuple(tensor.shape)) for name, tensor in state_of(Net()).items()}


def _batches(seed, *sizes):
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((size, 4)), "y": rng.standard_normal((size, 2))} for size in sizes]


def _gradient(state, x, y):
    """The gradient of the mean loss, {name: array}; parameters without gradient are left out."""
    net = net_with(state)
    nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    return {name: p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None}


def _one_process(state, batches, weight_decay=0.0):
    """The state after each step of one process on the whole batches."""
    net, states = net_with(state), []
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, weight_decay=weight_decay)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])).backward()
        optimizer.step()
        states.append({name: tensor.numpy().copy() for name, tensor in state_of(net).items()})
    return states


def _train(call, world_size, state, batches, weight_decay=0.0):
    sizes = [len(part) for part in np.array_split(batches[0]["x"], world_size)]
    given = f"{world_size} ranks with {', '.join(map(str, sizes))} samples of a batch of {sum(sizes)}"
    outputs = outputs_of(
        call, "all_reduce.train", world_size, given,
        state=state, row_batches=batches, learning_rate=LEARNING_RATE, weight_decay=weight_decay,
    )  # fmt: skip
    return outputs, given


def _broadcast(call, seed):
    """Every rank ends with rank 0's parameters and buffers, trained or not."""
    world_size = 3
    states = [_net_state([seed, rank]) for rank in range(world_size)]
    given = f"{world_size} ranks, each with other initial values"
    results = outputs_of(call, "all_reduce.broadcast", world_size, given, states=states)["results"]
    buffers = {name for name, _ in Net().named_buffers()}
    frozen = {name for name, p in Net().named_parameters() if not p.requires_grad}
    for rank, came in enumerate(results):
        for name, expected in states[0].items():
            if came[name].tobytes() != expected.tobytes():
                kind = "buffer" if name in buffers else "frozen parameter" if name in frozen else "parameter"
                raise wrong(
                    f"After broadcast_model, rank {rank}'s {kind} {name} is not that of rank 0.", given,
                    came[name], expected, "model.parameters() and model.buffers(), all of them",
                )  # fmt: skip


def _step_equals_one_process(world_size, *batch_sizes):
    """After one step of SGD every parameter is what one process makes of the whole batch."""

    def check(call, seed):
        for batch_size in batch_sizes:
            state, batches = _net_state([seed, world_size]), _batches([seed, batch_size], batch_size)
            outputs, given = _train(call, world_size, state, batches)
            (expected,) = _one_process(state, batches)
            shards = [(part["x"], part["y"]) for part in _shards(batches[0], world_size)]
            local = [_gradient(state, x, y) for x, y in shards]
            for rank, (came,) in enumerate(outputs["results"]):
                for name in local[0]:
                    if not _close(came[name], expected[name]):
                        raise _explain_step(rank, name, state, came, expected, local, given)

    return check


def _shards(batch, world_size):
    parts = {name: np.array_split(array, world_size) for name, array in batch.items()}
    return [{name: parts[name][rank] for name in parts} for rank in range(world_size)]


def _explain_step(rank, name, state, came, expected, local, given):
    """Compare the step that was made with those that the classical mistakes make."""
    made, right = (state[name] - after[name] for after in (came, expected))
    ranks = len(local)
    mean = LEARNING_RATE * sum(gradient[name] for gradient in local) / ranks
    look_at = None
    others_right = any(_close(came[other], expected[other]) for other in local[0] if other != name)
    if not np.any(made):
        sentence = f"{name} did not change on rank {rank}."
        look_at = "is the optimizer's step made, with this parameter's gradient?"
    elif _close(made, right * ranks):
        sentence = f"The step is {ranks} times too large: the gradients were added up, not averaged."
        look_at = "what all_reduce does by default, and how many ranks there are"
    elif _close(made, right / ranks):
        sentence = f"The step is {ranks} times too small: the average was divided once more."
        look_at = "the share of the samples already makes the sum a mean"
    elif _close(made, LEARNING_RATE * local[rank][name]):
        sentence = f"Rank {rank} updated {name} with the gradient of its own samples only."
        strided = others_right and not dict(Net().named_parameters())[name].is_contiguous()
        look_at = (
            "this gradient is not contiguous: what was reduced was a copy, and the copy must be written back"
            if strided else "is this gradient averaged over the ranks before the optimizer's step?"
        )  # fmt: skip
    elif _close(made, mean):
        sentence = "Every rank counted the same, but the ranks hold different numbers of samples."
        look_at = "weigh each rank's gradient with its share of the batch: len(inputs) / batch_size"
    else:
        sentence = f"After the step {name} differs on rank {rank} from what one process computes."
    return wrong(sentence, given, came[name], expected[name], look_at)


def _left_alone(call, seed):
    """Frozen and unused parameters stay as they are, even with weight decay; tied ones are still right."""
    world_size = 2
    state, batches = _net_state([seed, 10]), _batches([seed, 11], 6, 6)
    outputs, given = _train(call, world_size, state, batches, WEIGHT_DECAY)
    given += f", SGD with weight decay {WEIGHT_DECAY}, 2 steps"
    expected = _one_process(state, batches, WEIGHT_DECAY)[-1]
    for rank, states in enumerate(outputs["results"]):
        unchanged_first = sorted(expected, key=lambda name: not np.array_equal(expected[name], state[name]))
        for name in unchanged_first:
            right = expected[name]
            if _close(states[-1][name], right):
                continue
            if np.array_equal(right, state[name]):
                kind = "frozen parameter" if name.startswith("frozen") else "parameter without gradient"
                raise wrong(
                    f"The {kind} {name} changed on rank {rank}.", given, states[-1][name], right,
                    "a parameter whose .grad is None keeps None: the optimizer then leaves it alone",
                )  # fmt: skip
            raise wrong(f"After 2 steps {name} is wrong on rank {rank}.", given, states[-1][name], right,
                        "are the gradients of the step before set to None?")  # fmt: skip


def _three_steps(call, seed):
    state, batches = _net_state([seed, 20]), _batches([seed, 21], 7, 6, 5)
    outputs, given = _train(call, 3, state, batches)
    return outputs, given, state, batches


def _replicas(call, seed):
    """After three steps on unequal parts all ranks hold the same bits."""
    outputs, given, state, _ = _three_steps(call, seed)
    for rank, states in enumerate(outputs["results"]):
        for name in state:
            if states[-1][name].tobytes() != outputs["results"][0][-1][name].tobytes():
                raise wrong(
                    f"After 3 steps {name} differs between ranks 0 and {rank}.", given, states[-1][name],
                    outputs["results"][0][-1][name], "replicas that start equal stay equal only with equal gradients",
                )  # fmt: skip


def _gradients_once(call, seed):
    """A step all-reduces each trainable parameter's gradient once, and nothing else."""
    outputs, given, state, batches = _three_steps(call, seed)
    world_size = len(outputs["results"])
    used = _gradient(state, batches[0]["x"], batches[0]["y"])
    elements = sum(gradient.size for gradient in used.values())
    expected = int(all_reduce_elements_sent("ring", elements, world_size).sum())
    came = round(
        sum(made["sent_bytes"] for made in itertools.chain(*outputs["calls"]) if made["case"] == 0)
        / FP64_BYTES
    )
    if came == expected:
        return
    twice = used["first.weight"].size * 2 * (world_size - 1)
    hint = "what is communicated besides the gradients?" if came > expected else "is every gradient averaged?"
    if came - expected == twice:
        hint = "first.weight is second.weight, one parameter under two names: it was sent twice"
    raise wrong(
        f"The ranks sent {came:,} elements in a step; averaging each gradient once takes {expected:,}.",
        given, came, expected, hint,
    )  # fmt: skip


def _close(a, b):
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=0, atol=TOLERANCE))


# q5: buckets and overlap

_LAYERS, _WIDTH, _SECONDS = 4, 6, 0.02
_BUCKET_BYTES = (_WIDTH * _WIDTH + _WIDTH) * FP64_BYTES  # one layer


def _chain_weights(seed):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(tuple(p.shape)) / 2 for name, p in Chain(_LAYERS, _WIDTH).named_parameters()
    }


def _buckets(call, seed):
    """Reverse order, each parameter once, and no bucket above the limit unless it holds a single parameter."""
    sizes = np.random.default_rng([seed, 40]).permutation([10, 20, 30, 40, 50, 60, 500]).tolist()
    cases = [
        {"sizes": sizes, "bucket_bytes": 400, "dtype": "float32"},
        {"sizes": sizes, "bucket_bytes": 800, "dtype": "float64"},
        {"sizes": [20, 30, 500], "bucket_bytes": 400, "dtype": "float32"},
        {"sizes": [], "bucket_bytes": 400, "dtype": "float32"},
    ]
    given = f"parameters of {', '.join(map(str, sizes))} elements, and others"
    made = outputs_of(call, "all_reduce.buckets", 1, given, cases=cases)["results"][0]
    for case, came in zip(cases, made, strict=True):
        _judge_buckets(came, **case)


def _judge_buckets(came, sizes, bucket_bytes, dtype):
    given = f"parameters of {', '.join(map(str, sizes)) or 'no'} {dtype} elements, buckets of {bucket_bytes} bytes"
    order = [number for bucket in came for number in bucket]
    backwards, kind = list(range(len(sizes)))[::-1], getattr(torch, dtype)
    expected = [
        [sizes.index(p.numel()) for p in bucket]
        for bucket in make_buckets([nn.Parameter(torch.empty(size, dtype=kind)) for size in sizes], bucket_bytes)
    ]
    if sorted(order) != sorted(backwards):
        raise wrong(
            "The buckets do not hold each parameter exactly once.", given, f"positions {came}", expected
        )
    if order != backwards:
        raise wrong(
            "The buckets are not in reverse order.", given, f"positions {came}", expected,
            "backward reaches the last layer first: its gradients are ready first",
        )  # fmt: skip
    for bucket in came:
        n_bytes = kind.itemsize * sum(sizes[number] for number in bucket)
        if n_bytes > bucket_bytes and len(bucket) > 1:
            raise wrong(
                f"A bucket holds {n_bytes} bytes, more than {bucket_bytes}.", given, f"positions {came}", expected
            )
    if came != expected:
        raise wrong(
            "The buckets are not filled as far as they could be.", given, f"positions {came}", expected,
            "a parameter opens a new bucket only if the last one has no room for it; no bucket is empty",
        )  # fmt: skip


def _overlap(call, seed):
    """Run two slow backwards on 2 ranks.

    Returns (outputs, description, right gradients after each step, buckets as lists of (name, elements)).
    """
    world_size = 2
    weights = _chain_weights([seed, 50])
    rng = np.random.default_rng([seed, 51])
    batches = [rng.standard_normal((6, _WIDTH)) for _ in range(2)]
    chain = chain_with(weights)
    expected = []
    for batch in batches:
        chain.zero_grad()
        chain(torch.from_numpy(batch)).square().mean().backward()
        expected.append({name: p.grad.numpy().copy() for name, p in chain.named_parameters()})
    given = f"{world_size} ranks, {_LAYERS} layers, the last one's weight is the first one's"
    outputs = outputs_of(
        call, "all_reduce.overlap", world_size, given,
        weights=weights, row_batches=batches, bucket_bytes=_BUCKET_BYTES, seconds=_SECONDS,
    )  # fmt: skip
    calls_only_in(outputs, range(2), given)
    buckets = make_buckets(trainable_parameters(chain), _BUCKET_BYTES)
    names = {parameter: name for name, parameter in chain.named_parameters()}
    return outputs, given, expected, [[(names[p], p.numel()) for p in bucket] for bucket in buckets]


def _averages(call, seed):
    """The gradients afterwards are those of one process on the whole batch."""
    outputs, given, (expected, _), _ = _overlap(call, seed)
    ranks = len(outputs["results"])
    for rank, result in enumerate(outputs["results"]):
        came = result["gradients"][0]
        for name, right in expected.items():
            if _close(came[name], right):
                continue
            hint = None
            if _close(came[name], right * ranks):
                hint = f"{ranks} times too large: the sum over the ranks is not yet the mean"
            elif name == "layers.0.weight":
                hint = "this parameter is used twice: its gradient is complete only after both uses"
            raise wrong(
                f"The averaged gradient of {name} is wrong on rank {rank}.", given, came[name], right, hint
            )


def _one_call_per_bucket(call, seed):
    """One all-reduce per bucket, of the bucket's size, also in a second step."""
    outputs, given, _, buckets = _overlap(call, seed)
    expected = [sum(elements for _, elements in bucket) for bucket in buckets]
    hooks = outputs["results"][0]["hooks"]
    for step in range(2):
        made = [item for item in outputs["calls"][0] if item["case"] == step]
        came = [item["elements"] for item in made if item["op"] == "all_reduce"]
        if len(made) != len(came):
            raise wrong(f"Backward communicated with {made[0]['op']}, not with all_reduce alone.", given)
        if sorted(came) == sorted(expected):
            continue
        if step and len(came) > len(expected):
            raise wrong(
                "In the second step there were more all-reduces than in the first.", given, f"{len(came)} calls",
                f"{len(expected)} calls", "hooks stay on a parameter until handle.remove()",
            )  # fmt: skip
        raise wrong(
            "There is not one all-reduce per bucket.", given, f"calls of {came} elements",
            f"calls of {expected} elements", "put a bucket's gradients into one flat tensor first",
        )  # fmt: skip
    if hooks:
        raise wrong(
            f"{hooks} hooks were still on the parameters after backward_with_overlap.", given,
            look_at="handle.remove(), for each handle that register_post_accumulate_grad_hook returned",
        )  # fmt: skip


def _leaves_early(call, seed):
    """Buckets start their all-reduce while backward still runs, and nobody waits for them before it has ended."""
    outputs, given, _, buckets = _overlap(call, seed)
    could = sum(all(not name.startswith("layers.0.") for name, _ in bucket) for bucket in buckets)
    given += f", {1000 * _SECONDS:.0f} ms of emulated work in each layer's backward"
    for calls, spans in zip(outputs["calls"], outputs["spans"], strict=True):
        made = [item for item in calls if item["op"] == "all_reduce" and item["case"] == 0]
        end = [item["end"] for item in spans if item["name"] == "backward"][_LAYERS - 1]  # of the first step
        early = [item for item in made if item["start"] < end]
        if len(early) < could:
            raise wrong(
                "The buckets did not overlap with backward: they started after it.", given,
                f"{len(early)} of {len(made)} all-reduces started before backward came to the first layer",
                f"{could} of {len(buckets)}: all that hold nothing of the first layer",
                "register_post_accumulate_grad_hook: the hook of a bucket's last gradient starts its all-reduce",
            )  # fmt: skip
        if any(item["waited"] is not None and item["waited"] < end for item in early):
            raise wrong(
                "Backward stood still while a bucket was on its way: the hook waited for its all-reduce.", given,
                "a wait inside backward", "all waits after backward",
                "dist.all_reduce(..., async_op=True) returns at once; wait for what it returned after backward",
            )  # fmt: skip


QUESTIONS = {
    "q4": (
        SubCheck("all ranks start equal", _broadcast),
        SubCheck("equal parts", _step_equals_one_process(2, 6)),
        SubCheck("unequal parts", _step_equals_one_process(3, 7, 4)),
        SubCheck("frozen, tied and unused parameters", _left_alone),
        SubCheck("replicas bitwise equal", _replicas),
        SubCheck("each gradient sent once", _gradients_once),
    ),
    "q5": (
        SubCheck("buckets", _buckets),
        SubCheck("averaged gradients", _averages),
        SubCheck("one all-reduce per bucket", _one_call_per_bucket),
        SubCheck("overlap with backward", _leaves_early),
    ),
}
