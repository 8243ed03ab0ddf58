"""Lab 03, q3 and q4: an MLP cut over the ranks, with GeLU or gated, against one process in double precision."""

import numpy as np
import torch
import torch.nn.functional as F

from utils.checks.tensor_compare import (
    Layer,
    check_calls,
    check_gradient_of_x,
    check_gradients_of_parts,
    check_output,
    check_replicas,
    close,
    compare,
)
from utils.checks.tensor_shards import check_cut, cut, distinct
from utils.checks.verdict import SubCheck

_BATCH, _SEQUENCE, _HIDDEN = 2, 3, 4
_EVEN, _UNEVEN = (2, 8), (3, 10)  # ranks, inner size
_MESSAGE = _BATCH * _SEQUENCE * _HIDDEN


def columns(matrix, rank, ranks):
    return np.array_split(matrix, ranks, axis=-1)[rank]


def rows(matrix, rank, ranks):
    return np.array_split(matrix, ranks, axis=0)[rank]


def run_layer(layer, call, seed, ranks, weights, words, shape=(_BATCH, _SEQUENCE, _HIDDEN), **arguments):
    """Compare `layer` with one process on random x (b, s, h) and a random gradient of the result."""
    x, gradient = np.random.default_rng([seed, 30]).standard_normal((2, *shape))
    given = f"{ranks} ranks, x of shape {shape}, {words}"
    return compare(layer, call, given, ranks, x, weights, gradient, **arguments)


def _distinct(seed):
    return lambda *shape: distinct(seed, *shape)


def _cut_as_student_does(call, sizes, weights_of):
    """The student's cuts of one of the two sizes, and the matrices; both sizes are cut in one run."""
    both = [(ranks, weights_of(inner)) for ranks, inner in (_EVEN, _UNEVEN)]
    cuts = cut(call, 0, [{"tensors": whole, "numbers": [], "ranks": ranks} for ranks, whole in both])
    chosen = (_EVEN, _UNEVEN).index(sizes)
    return cuts[chosen], both[chosen][1]


# q3: GeLU


def _mlp_cut(weights, rank, ranks):
    a, bias_a, b, bias_b = weights
    return [columns(a, rank, ranks), columns(bias_a, rank, ranks), rows(b, rank, ranks), bias_b]


def _mlp_partial(x, a, bias_a, b, bias_b):
    return F.gelu(x @ a + bias_a) @ b


def _mlp_whole(x, a, bias_a, b, bias_b):
    return _mlp_partial(x, a, bias_a, b, bias_b) + bias_b


def _mlp_hints(x, weights, y, ranks):
    bias = weights[3]
    yield y + (ranks - 1) * bias, f"bias_b is in it {ranks} times: every rank added it before the sum"
    yield y - bias, "bias_b is missing"


_MLP = Layer("tensor.layer", ("a", "bias_a", "b", "bias_b"), _mlp_cut, _mlp_whole, _mlp_partial, _mlp_hints)


def _mlp_weights(make, inner):
    return [make(_HIDDEN, inner), make(inner), make(inner, _HIDDEN), make(_HIDDEN)]


def _mlp_shards(sizes):
    def check(call, seed):
        ranks, inner = sizes
        cuts, whole = _cut_as_student_does(call, sizes, lambda inner: _mlp_weights(_distinct(seed), inner))
        given = f"{ranks} ranks, a of shape {whole[0].shape}, b of shape {whole[2].shape}"
        expected = [_mlp_cut(whole, rank, ranks) for rank in range(ranks)]

        def hints(name, rank, came):
            if name == "a" and np.array_equal(came, rows(whole[0], rank, ranks)):
                return (
                    "a is cut by rows: each rank then has a part of a sum, and GeLU of a sum is not the sum of GeLUs; "
                    "the ranks would have to add up before it"
                )
            if name == "b" and np.array_equal(came, columns(whole[2], rank, ranks)):
                return "b is cut by columns, but a rank that has some columns of GeLU(xA) needs those rows of b"
            if name == "bias_a" and np.array_equal(came, whole[1]):
                return "bias_a belongs to the columns of a: it is cut as they are"
            if name == "bias_b" and came.size < _HIDDEN:
                return "bias_b is added to the whole result, after the sum: it is not cut"
            return None

        check_cut(cuts, expected, _MLP.names, given, whole, hints)

    return check


def _mlp_run(call, seed):
    ranks, inner = _UNEVEN
    rng = np.random.default_rng([seed, 31])
    weights = _mlp_weights(lambda *shape: rng.standard_normal(shape), inner)
    return run_layer(_MLP, call, seed, ranks, weights, f"{inner} inner columns", numbers=[])


# q4: SwiGLU


def _gated_cut(weights, rank, ranks):
    gate_up, down = weights
    gate, up = np.split(gate_up, 2, axis=1)
    return [np.concatenate([columns(gate, rank, ranks), columns(up, rank, ranks)], axis=1), rows(down, rank, ranks)]


def _gated(x, gate_up, down):
    gate, up = (x @ gate_up).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ down


def _gated_hints(x, weights, y, ranks):
    x, gate_up, down = (torch.from_numpy(array) for array in (x, *weights))
    gate, up = (x @ gate_up).chunk(2, dim=-1)
    yield ((F.silu(up) * gate) @ down).numpy(), "SiLU is applied to the second half, up; it belongs to gate"
    yield ((gate * up) @ down).numpy(), "SiLU is missing"
    yield (F.silu(gate * up) @ down).numpy(), "SiLU is applied to the product; it belongs to gate alone"


_GATED = Layer("tensor.layer", ("gate_up", "down"), _gated_cut, _gated, _gated, _gated_hints)


def _gated_weights(make, inner):
    return [make(_HIDDEN, 2 * inner), make(inner, _HIDDEN)]


def _gated_shards(sizes):
    def check(call, seed):
        ranks, inner = sizes
        cuts, whole = _cut_as_student_does(call, sizes, lambda inner: _gated_weights(_distinct(seed), inner))
        given = f"{ranks} ranks, gate_up of shape {whole[0].shape}, its first {inner} columns are gate"
        expected = [_gated_cut(whole, rank, ranks) for rank in range(ranks)]
        gate, up = np.split(whole[0], 2, axis=1)

        def hints(name, rank, came):
            if name != "gate_up":
                return None
            if np.array_equal(came, columns(whole[0], rank, ranks)):
                return "the fused matrix is cut in one piece: the first ranks get gate only, the last ones up only"
            halves = np.array_split(came, 2, axis=1)
            if close(halves[0], columns(gate, rank, ranks)) and halves[1].shape == halves[0].shape:
                return "gate and up are cut differently: a rank multiplies column i of one with column i of the other"
            if close(came, np.concatenate([columns(up, rank, ranks), columns(gate, rank, ranks)], axis=1)):
                return "gate comes first, then up"
            return None

        check_cut(cuts, expected, _GATED.names, given, whole, hints)

    return check


def _gated_run(call, seed):
    ranks, inner = _UNEVEN
    rng = np.random.default_rng([seed, 41])
    weights = _gated_weights(lambda *shape: rng.standard_normal(shape), inner)
    return run_layer(_GATED, call, seed, ranks, weights, f"{inner} inner columns", numbers=[])


# Both


def _output(layer, run):
    def check(call, seed):
        check_output(layer, run(call, seed))

    return check


def _gradients(layer, run):
    def check(call, seed):
        compared = run(call, seed)
        check_gradients_of_parts(layer, compared)
        check_gradient_of_x(compared)

    return check


def _replicas(run, also=()):
    def check(call, seed):
        check_replicas(run(call, seed), also)

    return check


def _calls(run):
    def check(call, seed):
        compared = run(call, seed)
        hints = {
            "forward": "the partial results are added up once, at the end; nothing is exchanged before",
            "backward": "x enters the split once: one f, whose result all matrices use",
        }
        check_calls(compared.outputs, compared.given, [_MESSAGE], [_MESSAGE], hints)

    return check


QUESTIONS = {
    "q3": (
        SubCheck("who holds what", _mlp_shards(_EVEN)),
        SubCheck("an inner size that the number of ranks does not divide", _mlp_shards(_UNEVEN)),
        SubCheck("the result of one process", _output(_MLP, _mlp_run)),
        SubCheck("the gradients of one process", _gradients(_MLP, _mlp_run)),
        SubCheck("replicas bitwise equal", _replicas(_mlp_run, [("bias_b", 3)])),
        SubCheck("one all-reduce forward, one backward", _calls(_mlp_run)),
    ),
    "q4": (
        SubCheck("who holds what", _gated_shards(_EVEN)),
        SubCheck("an inner size that the number of ranks does not divide", _gated_shards(_UNEVEN)),
        SubCheck("the result of one process", _output(_GATED, _gated_run)),
        SubCheck("the gradients of one process", _gradients(_GATED, _gated_run)),
        SubCheck("replicas bitwise equal", _replicas(_gated_run)),
        SubCheck("one all-reduce forward, one backward", _calls(_gated_run)),
    ),
}
