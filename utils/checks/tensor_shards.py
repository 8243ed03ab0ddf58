"""Lab 03, q1, and the cuts that q3 to q5 ask for: which numbers does a rank hold, and in whose memory?"""

import numpy as np

from utils.checks.tensor_compare import close
from utils.checks.verdict import SubCheck, outputs_of, wrong

# What a list of shards must be


def distinct(seed, *shape):
    """Numbers, none of them twice: where one stands tells where it comes from.

    They are whole but for a part that only double precision holds.
    """
    numbers = np.random.default_rng([seed, *shape]).permutation(int(np.prod(shape)))
    return ((1.0 + numbers) * (1 + 2.0**-30)).reshape(shape)


def cut(call, which, cases):
    """The shards that the student's function makes of each case, {"tensors", "numbers", "ranks"}.

    For each case and each rank a list of {"values", "contiguous", "memory"}.
    """
    words = (f"matrices of shapes {[t.shape for t in c['tensors']]} for {c['ranks']} ranks" for c in cases)
    outputs = outputs_of(call, "tensor.cut", 1, "; ".join(words), which=which, cases=cases)
    return outputs["results"][0]


def check_cut(cuts, expected, names, given, whole, hints=None):
    """Compare shards with those expected; `whole` are the matrices, in the order of `names`.

    hints(name, rank, came) may return a sentence for shards that are wrong in a known way.
    """
    for rank, (shards, right) in enumerate(zip(cuts, expected, strict=True)):
        if len(shards) != len(right):
            raise wrong(
                f"Rank {rank} gets {len(shards)} tensors, but {len(right)} are expected: {', '.join(names)}.", given
            )
        for name, shard, part, matrix in zip(names, shards, right, whole, strict=True):
            came = shard["values"]
            if np.array_equal(came, part):
                continue
            hint = hints(name, rank, came) if hints else None
            raise wrong(
                f"Rank {rank}'s part of {name} is not the right one.",
                given,
                f"shape {came.shape}: {_rows(came)}",
                f"shape {part.shape}: {_rows(part)}",
                hint or _usual(came, part, matrix, rank, len(cuts)),
            )


def check_memory(cuts, names, given):
    """Each shard is contiguous and keeps no more memory alive than its own numbers need."""
    for rank, shards in enumerate(cuts):
        for name, shard in zip(names, shards, strict=True):
            if not shard["contiguous"]:
                raise wrong(
                    f"Rank {rank}'s part of {name} is not contiguous: it is a view that steps over other ranks' numbers.",
                    given, look_at=".contiguous() makes a copy with its own memory if the tensor is not contiguous",
                )  # fmt: skip
            if shard["memory"] > shard["values"].nbytes:
                raise wrong(
                    f"Rank {rank}'s part of {name} keeps the whole matrix alive: it is a view of it.",
                    given, f"{shard['memory']:,} bytes", f"{shard['values'].nbytes:,} bytes",
                    ".clone() makes a copy with its own memory, also of a view that is contiguous",
                )  # fmt: skip


def _usual(came, part, matrix, rank, ranks):
    """The classical mistakes with blocks of rows or columns."""
    if matrix.ndim == 2:
        axis = 1 if part.shape[0] == matrix.shape[0] else 0
        words = ("rows", "columns")
        other = np.array_split(matrix, ranks, axis=1 - axis)[rank]
        if np.array_equal(came, other):
            return f"this is a block of {words[1 - axis]}, but {words[axis]} are to be cut"
        if axis < matrix.ndim and np.array_equal(came, matrix[:, rank::ranks] if axis else matrix[rank::ranks]):
            return f"the {words[axis]} are dealt out one by one; a rank holds a block of neighbours"
    if np.array_equal(came, matrix):
        return "this is the whole of it: nothing was cut"
    if came.ndim == part.ndim and came.size < part.size:
        return "some numbers are in nobody's part: the first ranks hold one more when the division leaves a rest"
    return None


def _rows(array):
    return np.array2string(array, precision=6, threshold=12, edgeitems=2, separator=" ").replace("\n", "")


# q1

_CASES = ((2, (4, 6)), (4, (8, 4)), (3, (7, 10)), (4, (6, 13)))  # ranks, shape
_EVEN, _UNEVEN = slice(0, 2), slice(2, 4)
_WAYS = (("columns", 1), ("rows", 0))  # what is cut, along which dimension


def _made(call, seed, way):
    """All cases of column_shard or row_shard: (cuts, matrix, ranks, description)."""
    matrices = [distinct(seed + way, *shape) for _, shape in _CASES]
    cases = [
        {"tensors": [matrix], "numbers": [], "ranks": ranks, "transposed": ranks == 3}
        for matrix, (ranks, _) in zip(matrices, _CASES, strict=True)
    ]
    given = [f"a matrix of shape {shape}, {n} ranks, to be cut by {_WAYS[way][0]}" for n, shape in _CASES]
    return list(zip(cut(call, way, cases), matrices, [n for n, _ in _CASES], given, strict=True))


def _shards(way, chosen):
    """column_shard or row_shard: the block of neighbours that tensor_split gives this rank."""

    def check(call, seed):
        for cuts, matrix, ranks, given in _made(call, seed, way)[chosen]:
            expected = [[block] for block in np.array_split(matrix, ranks, axis=_WAYS[way][1])]
            check_cut(cuts, expected, ["the matrix"], given, [matrix])

    return check


def _memory(call, seed):
    """Both kinds of shards own their memory."""
    for way in range(len(_WAYS)):
        for cuts, _, _, given in _made(call, seed, way):
            check_memory(cuts, ["the matrix"], given)


def _join(way):
    """The whole matrix from its blocks."""
    name, axis = _WAYS[way]

    def check(call, seed):
        matrices = [distinct(seed + way, *shape) for _, shape in _CASES]
        cases = [
            [np.ascontiguousarray(block) for block in np.array_split(matrix, ranks, axis=axis)]
            for matrix, (ranks, _) in zip(matrices, _CASES, strict=True)
        ]
        shapes = ["shards of shapes " + ", ".join(str(shard.shape) for shard in shards) for shards in cases]
        outputs = outputs_of(call, "tensor.join", 1, shapes[0], which=2 + way, cases=cases)
        for came, matrix, given in zip(outputs["results"][0], matrices, shapes, strict=True):
            if not isinstance(came, np.ndarray) or not np.array_equal(came, matrix):
                found = f"shape {came.shape}: {_rows(came)}" if isinstance(came, np.ndarray) else came
                raise wrong(
                    f"The blocks of {name} do not give the whole matrix again.", given, found,
                    f"shape {matrix.shape}: {_rows(matrix)}",
                    "the numbers are float64, and stay so" if close(came, matrix)
                    else "along which dimension do the shards stand side by side?",
                )  # fmt: skip

    return check


QUESTIONS = {
    "q1": (
        SubCheck("blocks of columns", _shards(0, _EVEN)),
        SubCheck("blocks of rows", _shards(1, _EVEN)),
        SubCheck("columns that the number of ranks does not divide", _shards(0, _UNEVEN)),
        SubCheck("rows that the number of ranks does not divide", _shards(1, _UNEVEN)),
        SubCheck("memory of their own", _memory),
        SubCheck("the whole from columns", _join(0)),
        SubCheck("the whole from rows", _join(1)),
    ),
}
