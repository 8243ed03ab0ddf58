"""Lab 01, q6 and q7: a parameter server's traffic, and the memory of data parallelism."""

import math

import numpy as np

from utils.checks.numbers import answers, compare
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.theory.collectives import all_reduce_elements_sent, parameter_server_elements
from utils.theory.memory import copies_of_parameters, data_parallel_bytes, parameter_server_worker_bytes
from utils.theory.resnet import resnet18_parameters, resnet18_saved_bytes

# q6: the parameter server

_WORKERS, _PARAMETERS, _RATE = 3, 12, 0.25


def _rounds(call, seed):
    """Run two rounds in which worker k's gradient at w is slopes[k] · w."""
    rng = np.random.default_rng([seed, 60])
    weights, slopes = rng.standard_normal(_PARAMETERS), rng.uniform(0.5, 1.5, (_WORKERS, _PARAMETERS))
    given = f"1 server and {_WORKERS} workers, {_PARAMETERS} parameters, learning rate {_RATE}"
    outputs = outputs_of(
        call, "all_reduce.server", _WORKERS + 1, given,
        weights=weights, slopes=slopes, learning_rate=_RATE, rounds=2,
    )  # fmt: skip
    calls_only_in(outputs, range(2), given)
    return outputs, given, weights, slopes


def _server_update(call, seed):
    """The server's weights after two rounds: w − rate · mean over the workers of their gradients at w."""
    outputs, given, weights, slopes = _rounds(call, seed)
    server, workers = outputs["results"][0], outputs["results"][1:]
    if server["seen"]:
        raise wrong(
            "The server computed a gradient, but it holds no samples.", given, look_at="who calls gradient(…)"
        )
    held = weights
    for number in range(2):
        for worker, result in enumerate(workers, start=1):
            if len(result["seen"]) <= number or not _same(result["seen"][number], held):
                came = (
                    result["seen"][number] if len(result["seen"]) > number else "gradient(…) was not called"
                )
                raise wrong(
                    f"In round {number + 1} worker {worker} did not take its gradient at the server's weights.",
                    given, came, held, "the worker first receives the weights",
                )  # fmt: skip
        total = sum(slope * held for slope in slopes)
        after = held - _RATE * total / _WORKERS
        came = server["after"][number]
        if not _same(came, after):
            hint = None
            if _same(came, held - _RATE * total):
                hint = "the gradients were added up, not averaged"
            elif _same(came, held - _RATE * total / (_WORKERS + 1)):
                hint = f"the sum was divided by {_WORKERS + 1} ranks, but only {_WORKERS} of them are workers"
            elif _same(came, held):
                hint = "the server's weights did not change: the update is made in place, weights -= …"
            raise wrong(f"After round {number + 1} the server's weights are wrong.", given, came, after, hint)
        held = after


def _same(came, expected):
    """Whether two arrays agree but for rounding; an empty array agrees with none, whatever numpy says."""
    return came.shape == expected.shape and bool(np.allclose(came, expected, rtol=0, atol=1e-12))


def _only_with_the_server(call, seed):
    """Workers exchange with rank 0 only; each of them receives Ψ and sends Ψ, the server N times as much."""
    outputs, given, weights, _ = _rounds(call, seed)
    for rank, calls in enumerate(outputs["calls"]):
        for made in calls:
            if made["op"] not in ("send", "recv"):
                raise wrong(
                    f"Rank {rank} called {made['op']}; here only dist.send and dist.recv are wanted.", given
                )
            if rank > 0 and made["peer"] != 0:
                raise wrong(
                    f"Worker {rank} talked to rank {made['peer']}; a worker knows only the server.", given
                )
    through = [sum(made["elements"] for made in calls if made["case"] == 0) for calls in outputs["calls"]]
    server = round(parameter_server_elements(_PARAMETERS, _WORKERS))
    expected = [server] + [server // _WORKERS] * _WORKERS
    if through != expected:
        raise wrong(
            "The elements through the links (sent and received, rank by rank) are not those of one round.",
            given, through, expected, "per worker and round: the weights once, the gradient once",
        )  # fmt: skip
    for worker, result in enumerate(outputs["results"][1:], start=1):
        if not _same(result["after"][0], weights):
            raise wrong(
                f"In round 1 worker {worker} did not receive the weights into its own.", given,
                result["after"][0], weights, "dist.recv writes into the tensor that it is given",
            )  # fmt: skip


def _server_formula(call, seed):
    """2NΨ."""
    questions = [
        [_PARAMETERS, _WORKERS],
        [11_689_512, 8],
        [int(np.random.default_rng(seed).integers(100, 1000)), 5],
    ]
    came = answers(call, 1, questions, "elements_through_server")
    expected = [parameter_server_elements(*question) for question in questions]

    def hint(question, value, right):
        return "a link carries what is sent and what is received" if value * 2 == right else None

    compare(came, expected, "elements_through_server", questions, hint)


def _ring_formula(call, seed):
    """Sent and received together: 4Ψ(N−1)/N."""
    factor = int(np.random.default_rng(seed).integers(100, 1000))
    questions = [[12 * factor, ranks] for ranks in (1, 2, 3, 4, 6)]
    came = answers(call, 2, questions, "elements_through_ring_rank")
    expected = [2 * int(all_reduce_elements_sent("ring", *question)[0]) for question in questions]

    def hint(question, value, right):
        if value * 2 == right:
            return "a link carries what is sent and what is received, in reduce-scatter and in all-gather"
        return "one rank alone sends nothing" if question[1] == 1 else None

    compare(came, expected, "elements_through_ring_rank", questions, hint)


# q7: memory

_GPT3, _GPU_BYTES = 175_000_000_000, 80_000_000_000


def _bytes_hint(question, value, right):
    parameters, per_sample, batch, ranks, optimizer = question
    copies = copies_of_parameters(optimizer)
    samples = math.ceil(batch / ranks)
    state = 4 * parameters * copies
    candidates = {
        4 * parameters * (copies - 1)
        + samples * per_sample: f"{optimizer} keeps {copies:.0f} copies: count w and g too",
        state + batch * per_sample: "a rank keeps the activations of its own samples only",
        state / ranks
        + samples * per_sample: "data parallelism does not split the parameters: every rank has them all",
        state
        + batch // ranks * per_sample: "when the ranks do not divide the batch, the fullest rank decides",
        state + batch / ranks * per_sample: "there are no fractions of samples: the fullest rank decides",
    }
    return next((hint for bytes_, hint in candidates.items() if math.isclose(bytes_, value)), None)


def _state(call, seed):
    """ResNet-18, one sample on one rank: 2, 3 or 4 copies."""
    psi, image = resnet18_parameters(), resnet18_saved_bytes()
    questions = [[psi, image, 1, 1, optimizer] for optimizer in ("sgd", "momentum", "adam")]
    _compare_bytes(call, questions)


def _activations(call, seed):
    """Activations fall with the ranks, the copies do not; batches that the ranks do not divide."""
    rng = np.random.default_rng(seed)
    psi, image = resnet18_parameters(), resnet18_saved_bytes()
    questions = [[psi, image, 512, ranks, "adam"] for ranks in (1, 8, 10)]
    questions += [[int(rng.integers(1e6, 1e9)), int(rng.integers(1e3, 1e6)), 100, 7, "momentum"]]
    _compare_bytes(call, questions)


def _compare_bytes(call, questions):
    came = answers(call, 0, questions, "data_parallel_bytes")
    expected = [data_parallel_bytes(*question) for question in questions]
    compare(came, expected, "data_parallel_bytes", questions, _bytes_hint)


def _server_worker(call, seed):
    """A parameter server's worker holds 2 copies, whatever the optimizer, and its samples' activations."""
    psi, image = resnet18_parameters(), resnet18_saved_bytes()
    questions = [[psi, image, 512, workers] for workers in (1, 8, 10)]
    expected = [
        parameter_server_worker_bytes(psi) + math.ceil(batch / workers) * per_sample
        for psi, per_sample, batch, workers in questions
    ]

    def hint(question, value, right):
        extra = (value - right) / (4 * psi)
        return "the server keeps the optimizer state; a worker holds w and g" if extra in (1, 2) else None

    compare(
        answers(call, 1, questions, "server_worker_bytes"), expected, "server_worker_bytes", questions, hint
    )


def _fits(batch, memory_bytes, parameters, per_sample, ranks, optimizer):
    return data_parallel_bytes(parameters, per_sample, batch, ranks, optimizer) <= memory_bytes


def _largest_batch(call, seed):
    """The largest batch that fits; none for GPT-3, however many ranks."""
    psi, image = resnet18_parameters(), resnet18_saved_bytes()
    questions = [[_GPU_BYTES, psi, image, ranks, "adam"] for ranks in (1, 8, 64)]
    questions += [
        [_GPU_BYTES, _GPT3, 1_000_000_000, ranks, optimizer]
        for ranks, optimizer in ((8, "adam"), (1024, "sgd"))
    ]
    samples, state = int(np.random.default_rng(seed).integers(2, 50)), 2 * 4 * 1_000_000
    questions += [  # exactly full, and one byte short of it
        [state + samples * 3_000 - missing, 1_000_000, 3_000, ranks, "sgd"] for missing in (0, 1) for ranks in (1, 3)
    ]
    came = answers(call, 2, questions, "largest_batch")
    for question, value in zip(questions, came, strict=True):
        memory, parameters, per_sample, ranks, optimizer = question
        given = f"{ranks} ranks of {memory:,} bytes, {parameters:,} parameters, {per_sample:,} bytes per sample, {optimizer}"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
            raise wrong("largest_batch must return a whole number of samples, 0 or more.", given, value)
        batch = int(value)

        if batch > 0 and not _fits(batch, *question):
            state = data_parallel_bytes(parameters, 0, 1, ranks, optimizer)
            raise wrong(
                f"A batch of {batch:,} does not fit.", given, batch, None,
                "the copies alone are more than a rank's memory: then no batch fits" if state > memory
                else "the copies take their room first, on every rank",
            )  # fmt: skip
        if _fits(batch + 1, *question):
            raise wrong(f"A batch of {batch + 1:,} would fit as well.", given, batch, None,
                        "each rank can take as many samples as fit beside its copies")  # fmt: skip


QUESTIONS = {
    "q6": (
        SubCheck("weights after two rounds", _server_update),
        SubCheck("who talks to whom, and how much", _only_with_the_server),
        SubCheck("formula for the server's link", _server_formula),
        SubCheck("formula for a ring rank's link", _ring_formula),
    ),
    "q7": (
        SubCheck("copies of the parameters", _state),
        SubCheck("activations", _activations),
        SubCheck("a server's worker", _server_worker),
        SubCheck("the largest batch", _largest_batch),
    ),
}
