"""Lab 02, q1, q6 and q7: bytes of the training state, bytes of activations, and what fits where."""

import math

import numpy as np

from utils.checks.numbers import answers, compare, in_words
from utils.checks.probes.zero import SAVING
from utils.checks.verdict import SubCheck, outputs_of, wrong
from utils.parallel.activations import saved_bytes
from utils.theory.activations import layer_activation_bytes
from utils.theory.memory import Recipe, smallest_stage_that_fits, training_state_bytes
from utils.theory.models import RECOMPUTATIONS, Transformer
from utils.theory.papers.zero import PARAMETERS, V100_BYTES
from utils.theory.units import GB

# q1: three formulas

_DEGREES = (1, 4, 16, 64, 256, 1024)
_NAMES = {1: "zero1_bytes", 2: "zero2_bytes", 3: "zero3_bytes"}


def _with_k(question):
    return (*question, 12)[:3]


def _state_bytes(parameters, ranks, optimizer_bytes, stage):
    return training_state_bytes(parameters, Recipe(2, 2, optimizer_bytes), stage, ranks)


def _look_at_state(stage):
    def hint(question, value, right):
        parameters, ranks, k = _with_k(question)
        others = {other: _state_bytes(parameters, ranks, k, other) for other in range(4) if other != stage}
        for other, n_bytes in others.items():
            if math.isclose(value, n_bytes):
                return "this is stage 0: nothing is split" if other == 0 else f"this is what stage {other} takes"
        mistakes = {
            right + 2 * parameters: "gradients are kept in 16 bits here: 2 bytes each",
            right - 4 * parameters / ranks: f"K = {k} already counts the fp32 weights; nothing is taken off",
            12 * parameters / ranks + right - k * parameters / ranks: "K is an argument, not always 12",
        }
        return next((words for n_bytes, words in mistakes.items() if math.isclose(value, n_bytes)), None)

    return hint


def _table_1(stage):
    """A stage's 18 cells of ZeRO's table 1: three models, six degrees of data parallelism."""

    def check(call, seed):
        questions = [[int(parameters), ranks, 12] for parameters in PARAMETERS.values() for ranks in _DEGREES]
        _compare_state(call, stage, questions)

    return check


def _other_optimizers(call, seed):
    """Other numbers of parameters and ranks, and other K: 8 for momentum, 4 for plain SGD."""
    rng = np.random.default_rng([seed, 10])
    for stage in _NAMES:
        questions = [[int(rng.integers(1e6, 1e10)), int(rng.integers(2, 100)), k] for k in (8, 4, 6)]
        questions += [[1_000, 7, 12], [1_000, 7]]  # what the ranks do not divide; K has a default
        _compare_state(call, stage, questions)


def _compare_state(call, stage, questions):
    came = answers(call, stage - 1, questions, _NAMES[stage])
    expected = [_state_bytes(*_with_k(question), stage) for question in questions]
    compare(came, expected, _NAMES[stage], questions, _look_at_state(stage))


# q6: activations

GPT_LAYER = (2, 24, 96, 4)  # b, s, h, a


def _counts(which, what):
    """The student's counter on one computation; `what` says in words what autograd keeps there."""

    def check(call, seed):
        rng = np.random.default_rng([seed, 60])
        size = GPT_LAYER if which == "gpt_layer" else tuple(int(n) for n in rng.integers(5, 30, 3))
        given = f"{what}, sizes {size}"
        came = outputs_of(call, "zero.saved", 1, given, which=which, size=list(size))["results"][0]
        expected = saved_bytes(*SAVING[which](*size))
        if came["runs"] != 1:
            raise wrong("saved_bytes must call forward() once.", given, f"{came['runs']} times", "once")
        if came["gradients"]:
            raise wrong("saved_bytes left gradients behind: it only watches, and runs no backward.", given)
        came = came["bytes"]
        if isinstance(came, bool) or not isinstance(came, (int, float)):
            raise wrong("saved_bytes must return a number of bytes.", given, str(came), expected)
        if came != expected:
            raise wrong("saved_bytes counts wrong.", given, came, expected, _look_at_saved(which, size, came))

    return check


def _look_at_saved(which, size, came):
    rows, columns = size[-3], size[-2]
    mistakes = {
        "linear": (
            (4 * columns * (rows + size[-1]), "the layer's weight is saved as a transposed view: compare memory, not tensors"),
            (0, "the layer's input is not a parameter: it is kept for the gradient of the weight"),
        ),
        "shared": ((4 * rows * columns * 4, "the same memory was counted several times"),
                   (2 * 4 * rows * columns, "the same memory was counted twice")),
        "view": ((4 * 2 * columns, "a view keeps the whole of its memory alive: untyped_storage().nbytes()"),
                 (4 * columns, "a view keeps the whole of its memory alive: untyped_storage().nbytes()")),
        "mask": ((4 * 2 * rows * columns, "not every number takes 4 bytes"),
                 (2 * 2 * rows * columns, "a mask of True and False takes 1 byte per element")),
    }  # fmt: skip
    return next((words for n_bytes, words in mistakes.get(which, ()) if came == n_bytes), None)


def _formula(recomputation):
    """sbh(34 + 5as/h), 34sbh or 2sbh."""

    def check(call, seed):
        rng = np.random.default_rng([seed, 61])
        questions = [[2048, 1, 12288, 96, recomputation], [1024, 4, 1600, 25, recomputation]]
        heads = int(rng.integers(3, 12))
        questions += [
            [int(rng.integers(10, 99)), int(rng.integers(2, 9)), heads * int(rng.integers(4, 32)), heads, recomputation]
        ]
        if recomputation == "none":
            questions.append(questions[1][:4])  # it is the default
        came = answers(call, 1, questions, "layer_activation_bytes")
        expected = [
            layer_activation_bytes(Transformer(1, h, a, sequence=s), b, recomputation=recomputation)
            for s, b, h, a, *_ in questions
        ]
        compare(came, expected, "layer_activation_bytes", questions, _look_at_formula)

    return check


def _look_at_formula(question, value, right):
    s, b, h, a, recomputation = (*question, "none")[:5]
    core = 5 * a * s * s * b
    if recomputation == "none" and math.isclose(value, 34 * s * b * h):
        return "the attention core is missing: 5as/h"
    if recomputation == "none" and math.isclose(value, right / 2):
        return "the formula counts bytes already; dropout's masks take 1 byte, the rest 2"
    if recomputation == "none" and math.isclose(value, s * b * h * 34 + core / b):
        return "every sequence of the micro-batch has its own scores"
    if recomputation == "selective" and math.isclose(value, right + core):
        return "selective recomputation drops the attention core, which is computed again"
    if recomputation == "full" and math.isclose(value, s * b * h):
        return "the layer's input takes 2 bytes for each number"
    return None


# q7: what fits

_LLAMA_7B, _A100 = 7 * 10**9, 80 * GB


def _ask(call, which, name, questions):
    return zip(questions, answers(call, which, questions, name), strict=True)


def _smallest_stage(questions):
    """The lowest stage that fits; a question is (parameters, bytes of a GPU, ranks, bytes of activations)."""

    def check(call, seed):
        for question, came in _ask(call, 0, "smallest_stage", questions):
            parameters, memory_bytes, ranks, activation_bytes = question
            room = memory_bytes - activation_bytes
            right = smallest_stage_that_fits(parameters, room, ranks) if room > 0 else None
            if came == right and type(came) is type(right):
                continue
            look_at = None
            if right is None:
                look_at = "None, where not even stage 3 fits beside the activations"
            elif came == smallest_stage_that_fits(parameters, memory_bytes, ranks):
                look_at = "the activations are on every rank, and no stage splits them"
            elif isinstance(came, int) and came > right:
                look_at = f"stage {right} fits: {training_state_bytes(parameters, stage=right, world_size=ranks):,.0f} bytes"
            raise wrong(
                "smallest_stage returns a wrong stage.", in_words("smallest_stage", question),
                str(came), str(right), look_at,
            )  # fmt: skip

    return check


def _fewest_ranks(call, seed):
    """The smallest N that fits, None where no N does."""
    billions = int(np.random.default_rng([seed, 70]).integers(8, 15))
    questions = [[int(PARAMETERS["7.5B"]), V100_BYTES, stage, 0] for stage in (1, 2, 3)]
    questions += [
        [int(PARAMETERS["128B"]), V100_BYTES, stage, activations]
        for stage, activations in ((3, 0), (3, GB), (2, 0), (1, 0))
    ]
    questions += [[10**9, V100_BYTES, 0, 0], [_LLAMA_7B, _A100, 0, 0], [billions * 10**9, _A100, 2, 20 * GB]]
    questions += [[10**9, 16 * GB, 0, 0], [10**9, 17 * GB, 0, GB], [10**9, 4 * GB, 1, 0], [10**9, GB, 3, GB]]  # no room left
    for question, came in _ask(call, 1, "fewest_ranks", questions):
        parameters, memory_bytes, stage, activation_bytes = question
        given = in_words("fewest_ranks", question)
        right = _fewest(parameters, memory_bytes - activation_bytes, stage)
        if came == right and type(came) is type(right):
            continue
        if came is not None and (isinstance(came, bool) or not isinstance(came, int) or came < 1):
            raise wrong("fewest_ranks must return a whole number of ranks, or None.", given, came, str(right))
        look_at = "what no stage splits must fit on every rank: with that alone no number of ranks helps"
        if right is not None:
            look_at = "which part shrinks with the ranks? It may take what the other part and the activations leave"
        raise wrong("fewest_ranks returns a wrong number.", given, str(came), str(right), look_at)


def _fewest(parameters, room_bytes, stage):
    """The smallest N by trying: doubling, then halving the interval."""
    def fits(ranks):
        return training_state_bytes(parameters, stage=stage, world_size=ranks) <= room_bytes

    if fits(1):
        return 1
    high = next((2**power for power in range(1, 50) if fits(2**power)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


_TABLE_1_FITS = [
    [int(parameters), V100_BYTES, ranks, 0] for parameters in PARAMETERS.values() for ranks in _DEGREES
]
_BESIDE_ACTIVATIONS = [
    [10**9, V100_BYTES, 8, 0],
    [10**9, V100_BYTES, 8, 17 * GB],
    [_LLAMA_7B, _A100, 8, 10 * GB],
    [_LLAMA_7B, _A100, 8, 45 * GB],
    [_LLAMA_7B, _A100, 8, 60 * GB],
    [_LLAMA_7B, _A100, 8, 70 * GB],
    [_LLAMA_7B, _A100, 8, 90 * GB],
    [int(PARAMETERS["128B"]), V100_BYTES, 64, 1],
]

QUESTIONS = {
    "q1": (
        SubCheck("stage 1", _table_1(1)),
        SubCheck("stage 2", _table_1(2)),
        SubCheck("stage 3", _table_1(3)),
        SubCheck("other optimizers", _other_optimizers),
    ),
    "q6": (
        SubCheck("parameters left out", _counts("linear", "a linear layer, its parameters left out")),
        SubCheck("memory that several operators keep", _counts("shared", "x.sin() + x.cos() + x * x")),
        SubCheck("views", _counts("view", "operators that keep the first row of x")),
        SubCheck("numbers of one and two bytes", _counts("mask", "x * mask in 16 bits, then a sine")),
        SubCheck("a transformer layer", _counts("gpt_layer", "a GPT layer of b, s, h, a in 16 bits, parameters left out")),
        *(SubCheck(f"the formula, recomputing {how}", _formula(how)) for how in RECOMPUTATIONS),
    ),
    "q7": (
        SubCheck("table 1 on 32 GB", _smallest_stage(_TABLE_1_FITS)),
        SubCheck("beside the activations", _smallest_stage(_BESIDE_ACTIVATIONS)),
        SubCheck("fewest ranks", _fewest_ranks),
    ),
}
