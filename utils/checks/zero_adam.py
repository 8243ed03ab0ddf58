"""Lab 02, q2: Adam whose state is spread over the ranks, against Adam in one process."""

import numpy as np
import torch

from utils.checks.probes.all_reduce import Net, net_with, state_of
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.checks.zero_chunks import (
    RANKS,
    close,
    gathered,
    own,
    own_elements,
    scattered,
    sent,
    sizes_in_words,
)
from utils.theory.memory import RECIPES

_STEPS = 3
_SETTINGS = {"lr": 0.1, "betas": [0.8, 0.95], "eps": 0.5}  # a large eps: Adam then sees the gradient's scale


def _state(seed):
    rng = np.random.default_rng([seed, 20])
    return {name: rng.standard_normal(tuple(tensor.shape)) for name, tensor in state_of(Net()).items()}


def _gradients(seed):
    """For each step a gradient per rank for all parameters but the unused; the frozen ones carry an old one."""
    rng = np.random.default_rng([seed, 21])
    shapes = {name: tuple(p.shape) for name, p in Net().named_parameters() if not name.startswith("unused")}
    return [
        {
            name: {"arrays": [rng.standard_normal(shape) for _ in range(RANKS)]}
            for name, shape in shapes.items()
        }
        for _ in range(_STEPS)
    ]


def _one_process(state, steps, combine=lambda arrays: sum(arrays) / len(arrays)):
    """The state after each step of torch's Adam; `combine` makes one gradient of the ranks' gradients."""
    net, states = net_with(state), []
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    optimizer = torch.optim.Adam(trained.values(), **_SETTINGS)
    for gradients in steps:
        for name, parameter in trained.items():
            if name in gradients:
                parameter.grad = torch.from_numpy(np.asarray(combine(gradients[name]["arrays"])))
        optimizer.step()
        states.append({name: tensor.numpy().copy() for name, tensor in state_of(net).items()})
    return states


def _run(call, seed):
    state, steps = _state(seed), _gradients(seed)
    trained = _trained_elements()
    given = f"{RANKS} ranks, {trained} trained numbers in chunks of {sizes_in_words(trained)}, {_settings_in_words()}"
    outputs = outputs_of(
        call, "zero.adam_on_net", RANKS, given, state=state, steps=steps, settings=_SETTINGS
    )
    calls_only_in(outputs, range(_STEPS), given)
    return outputs, given, state, steps


def _settings_in_words():
    return f"lr {_SETTINGS['lr']}, betas {tuple(_SETTINGS['betas'])}, eps {_SETTINGS['eps']}"


def _trained_elements():
    return sum(p.numel() for p in Net().parameters() if p.requires_grad)


def _first_step(call, seed):
    """After one step every trained parameter is what Adam makes of the mean gradient."""
    outputs, given, state, steps = _run(call, seed)
    expected = _one_process(state, steps[:1])[0]
    used = [name for name, p in Net().named_parameters() if p.requires_grad and name in steps[0]]
    for rank, result in enumerate(outputs["results"]):
        came = result["states"][0]
        for name in used:
            if not close(came[name], expected[name]):
                raise _explain(rank, name, state, came, expected, steps[:1], given)


def _explain(rank, name, state, came, expected, steps, given):
    """Compare with the steps that the classical mistakes make."""
    mistakes = (
        (
            lambda arrays: sum(arrays),
            f"Adam was given the sum of the {RANKS} gradients, not their mean.",
            "ring_reduce_scatter adds up; who divides?",
        ),
        (
            lambda arrays: sum(arrays) / RANKS**2,
            f"The gradient was averaged twice: Adam saw a gradient {RANKS} times too small.",
            "divide by the number of ranks once, before or after the reduce-scatter",
        ),
    )
    look_at = None
    sentence = f"After the first step {name} differs on rank {rank} from Adam in one process."
    for combine, words, hint in mistakes:
        if close(came[name], _one_process(state, steps, combine)[0][name]):
            sentence, look_at = words, hint
    if close(came[name], _one_process(state, [_owners_own(steps[0])])[0][name]):
        sentence = "Each rank updated its chunk with its own gradient only."
        look_at = "the reduce-scatter of the gradients comes before Adam"
    mean = sum(steps[0][name]["arrays"]) / RANKS
    if close(state[name] - came[name], _without_bias_correction(mean)):
        sentence = "The bias correction is missing: both moments start at zero, and the first steps show it."
        look_at = "momentum / (1 − β₁ᵗ) and variance / (1 − β₂ᵗ), with t = 1 in the first step"
    elif np.array_equal(came[name], state[name]):
        rest = _trained_elements() % RANKS
        if all(close(came[other], expected[other]) for other in steps[0] if other != name):
            sentence = f"The last {rest} of {_trained_elements()} numbers never changed on rank {rank}: they are in no chunk."
            look_at = f"{RANKS} ranks do not divide {_trained_elements()}; own_chunk cuts without losing any"
        else:
            sentence = f"{name} did not change on rank {rank}."
            look_at = "are the new weights of all ranks gathered and written back to the parameters?"
    return wrong(sentence, given, came[name], expected[name], look_at)


def _owners_own(gradients):
    """Gradients made of each owner's own numbers, as if nobody had added them up."""
    net = Net()
    trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    flats = [
        np.concatenate(
            [gradients[name]["arrays"][rank].reshape(-1) if name in gradients else np.zeros(p.numel()) for name, p in trained]
        )
        for rank in range(RANKS)
    ]
    flat = np.concatenate([own(flats[(chunk - 1) % RANKS], (chunk - 1) % RANKS) for chunk in range(RANKS)])
    parts = np.split(flat, np.cumsum([p.numel() for _, p in trained])[:-1])
    return {name: {"arrays": [part.reshape(tuple(p.shape))]} for (name, p), part in zip(trained, parts)}


def _without_bias_correction(gradient):
    (beta1, beta2), lr, eps = _SETTINGS["betas"], _SETTINGS["lr"], _SETTINGS["eps"]
    return lr * (1 - beta1) * gradient / (np.sqrt((1 - beta2) * gradient**2) + eps)


def _three_steps(call, seed):
    """The moments are kept, the steps counted, and no gradient is left over for the next step."""
    outputs, given, state, steps = _run(call, seed)
    expected = _one_process(state, steps)
    for rank, result in enumerate(outputs["results"]):
        if result["left"][0]:
            raise wrong(
                f"After step() {result['left'][0][0]} still has a gradient on rank {rank}.", given,
                look_at="at the end of step() every trained parameter's .grad is None: no memory, and nothing adds up",
            )  # fmt: skip
        for number in range(_STEPS):
            for name, right in expected[number].items():
                if name.startswith("frozen") or close(result["states"][number][name], right):
                    continue
                raise wrong(
                    f"After step {number + 1} {name} differs on rank {rank} from Adam in one process.", given,
                    result["states"][number][name], right,
                    "the moments of the step before, and the number of the step in the bias correction",
                )  # fmt: skip


def _frozen(call, seed):
    """A frozen parameter stays as it is, although it carries a gradient from before it was frozen."""
    outputs, given, state, _ = _run(call, seed)
    for rank, result in enumerate(outputs["results"]):
        for name in (name for name in state if name.startswith("frozen")):
            if not np.array_equal(result["states"][-1][name], state[name]):
                raise wrong(
                    f"The frozen parameter {name} changed on rank {rank}.", given,
                    result["states"][-1][name], state[name],
                    "requires_grad says what is trained; a frozen parameter may still carry an old .grad",
                )  # fmt: skip


def _replicas(call, seed):
    """All ranks hold the same bits."""
    outputs, given, state, _ = _run(call, seed)
    first = outputs["results"][0]["states"][-1]
    for rank, result in enumerate(outputs["results"]):
        for name in state:
            if result["states"][-1][name].tobytes() != first[name].tobytes():
                raise wrong(
                    f"After {_STEPS} steps {name} differs between ranks 0 and {rank}.", given,
                    result["states"][-1][name], first[name],
                    "each chunk is updated on one rank only, and the others get copies of it",
                )  # fmt: skip


def _elements(call, seed):
    """A step sends what an all-reduce sends, and no more: a reduce-scatter and an all-gather."""
    outputs, given, _, _ = _run(call, seed)
    trained = _trained_elements()
    expected = [scattered(trained, rank) + gathered(trained, rank) for rank in range(RANKS)]
    came = [sent(calls, 0) for calls in outputs["calls"]]
    if came == expected:
        return
    tied = dict(Net().named_parameters())["first.weight"].numel()
    look_at = "one reduce-scatter of the gradients, one all-gather of the weights"
    if sum(came) == sum(expected) + 2 * tied * (RANKS - 1):
        look_at = "first.weight is second.weight, one parameter under two names: it was sent twice"
    elif sum(came) > 1.4 * sum(expected):
        look_at = "an all-reduce brings every rank the whole gradient, but a rank needs only its own chunk"
    raise wrong(
        "The elements that the ranks sent in a step (rank by rank) are not those of one all-reduce.",
        given, came, expected, look_at,
    )  # fmt: skip


def _on_row(call, ranks, row, steps, dtype, settings):
    given = f"{ranks} ranks, {len(row)} numbers in {dtype}, {len(steps)} steps, lr {settings['lr']}"
    outputs = outputs_of(
        call, "zero.adam_on_row", ranks, given,
        row=row, steps=[{"arrays": arrays} for arrays in steps], dtype=dtype, settings=settings,
    )  # fmt: skip
    return outputs["results"], given


def _few_numbers(call, seed):
    """Two numbers on three ranks: somebody has nothing to do, and takes part all the same."""
    rng = np.random.default_rng([seed, 22])
    row, gradients = rng.standard_normal(2), list(rng.standard_normal((3, 2)))
    results, given = _on_row(call, 3, row, [gradients], "float64", _SETTINGS)
    mean = sum(gradients) / 3
    expected = row - _SETTINGS["lr"] * mean / (np.abs(mean) + _SETTINGS["eps"])  # Adam's first step
    for rank, result in enumerate(results):
        if not close(result["row"], expected):
            raise wrong(
                f"With fewer numbers than ranks rank {rank} ends with wrong ones.", given, result["row"], expected,
                "an empty chunk takes part as well; and an optimizer that was used before plays no part: state is on self",
            )  # fmt: skip


_WIDTH, _SMALL_STEPS, _SPACING = 289, 12, 2.0**-10  # of fp16 numbers between 1 and 2
_SMALL = {"lr": _SPACING / 4, "betas": [0.9, 0.99], "eps": 1e-8}


def _small_steps_run(call, seed):
    """Steps of a quarter of fp16's spacing; gradients whose fp16 sums are exact."""
    rng = np.random.default_rng([seed, 23])
    row = 1.25 + rng.integers(0, 512, _WIDTH) * _SPACING
    signs = rng.choice([-1, 1], _WIDTH)
    steps = [[signs * rng.integers(16, 64, _WIDTH) / 64 for _ in range(2)] for _ in range(_SMALL_STEPS)]
    return *_on_row(call, 2, row, steps, "float16", _SMALL), row, steps


def _small_steps(call, seed):
    """Twelve steps, each too small for fp16, add up in fp32."""
    results, given, row, steps = _small_steps_run(call, seed)
    master = torch.from_numpy(row.astype(np.float32))
    optimizer = torch.optim.Adam([master], **_SMALL)
    for arrays in steps:
        master.grad = torch.from_numpy((sum(arrays) / 2).astype(np.float32))
        optimizer.step()
    expected = master.half().numpy()
    for rank, result in enumerate(results):
        if result["row"].dtype != np.float16:
            raise wrong(f"The parameter is in {result['row'].dtype} afterwards.", given, look_at="copy_ keeps a parameter's type")
        off = np.abs(result["row"].astype(np.float64) - expected.astype(np.float64)).max()
        if off > _SPACING:
            stuck = np.array_equal(result["row"], row.astype(np.float16))
            raise wrong(
                f"{_SMALL_STEPS} small steps were lost on rank {rank}." if stuck
                else f"After {_SMALL_STEPS} small steps rank {rank}'s parameter is wrong.",
                given, result["row"], expected,
                "each step is a quarter of the distance between two fp16 numbers: only an fp32 copy of the weights sees it",
            )  # fmt: skip


def _state_bytes(call, seed):
    """What is new on a rank: 12 bytes for each number of its own chunk, and nothing for the others."""
    results, given, _, _ = _small_steps_run(call, seed)
    _check_bytes(results, given, RECIPES["mixed adam"].optimizer)
    rng = np.random.default_rng([seed, 24])
    row, step = rng.standard_normal(_WIDTH), list(rng.standard_normal((2, _WIDTH)))
    results, given = _on_row(call, 2, row, [step], "float64", _SETTINGS)
    _check_bytes(results, given, 24, needed=16)  # the weights themselves may do


def _check_bytes(results, given, each, needed=None):
    """CheckFailed unless every rank keeps `each` bytes for every number of its chunk, or from `needed` bytes on."""
    for rank, result in enumerate(results):
        own = own_elements(_WIDTH, rank, ranks=2)
        expected, came = round(each * own), result["new_bytes"]
        if round((needed or each) * own) - 64 <= came <= expected + 64:  # a step counter may be a tensor
            continue
        if came >= each * _WIDTH:
            sentence = f"Rank {rank} keeps optimizer state for all {_WIDTH} numbers: the state is not sharded."
            look_at = f"momentum, variance and fp32 weights for the own chunk of {own} numbers only"
        elif came > expected:
            sentence = f"Rank {rank} keeps more than the optimizer state of its chunk after step()."
            look_at = "a flat copy that is still referred to, or a view that keeps the whole tensor alive: .clone()"
        else:
            sentence = f"Rank {rank} keeps less than Adam needs."
            look_at = "momentum and variance, and in mixed precision fp32 weights: 4 bytes each"
        raise wrong(sentence, given, f"{came:,} bytes", f"{expected:,} bytes: {each} for each of {own}", look_at)


QUESTIONS = {
    "q2": (
        SubCheck("the first step", _first_step),
        SubCheck("three steps", _three_steps),
        SubCheck("frozen parameters", _frozen),
        SubCheck("replicas bitwise equal", _replicas),
        SubCheck("elements sent", _elements),
        SubCheck("fewer numbers than ranks", _few_numbers),
        SubCheck("small steps in mixed precision", _small_steps),
        SubCheck("bytes of optimizer state", _state_bytes),
    ),
}
