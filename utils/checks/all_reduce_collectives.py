"""Lab 01, q1 to q3: collectives by hand. Given arrays, what stands in the tensors afterwards, who sent how much to whom?"""

import itertools

import numpy as np

from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.theory.collectives import (
    all_gather_elements_sent,
    all_reduce_elements_sent,
    chunk_sizes,
    reduce_scatter_elements_sent,
)


def _after(call, world_size, arrays, transposed=False):
    """Run the function on one or more lists of arrays, one array per rank; return (tensors[rank][case], calls[rank])."""
    given = "; ".join(_size_in_words(case[0].shape, world_size) for case in arrays)
    cases = [{"arrays": case, "transposed": transposed} for case in arrays]
    outputs = outputs_of(call, "all_reduce.in_place", world_size, given, cases=cases)
    calls_only_in(outputs, range(len(cases)), given)
    return outputs["results"], outputs["calls"]


def _size_in_words(shape, world_size):
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    if len(shape) > 1:
        return f"{ranks}, a tensor of shape {tuple(shape)} on each"
    sizes = ", ".join(map(str, chunk_sizes(shape[0], world_size)))
    return f"{ranks}, {shape[0]} elements on each, in chunks of {sizes}"


def _distinct(seed, world_size, shape):
    """Numbers, none of them twice, so that sums are exact and tell where they come from: an array per rank.

    They are whole but for a part that only double precision holds.
    """
    numbers = np.random.default_rng([seed, world_size, *shape]).permutation(world_size * int(np.prod(shape)))
    return list(((1.0 + numbers) * _FINE).reshape(world_size, *shape))


_FINE = 1 + 2.0**-30


def _only_rounded(came, expected):
    """Whether `came` is right but for its last digits."""
    return came.shape == expected.shape and bool(np.allclose(came, expected, rtol=1e-2, atol=0))


_ROUNDED = "right but for the last digits: the numbers are float64, and buffers must be of the same kind"


def _where_from(values, contributions):
    """In words, how often each rank's numbers are in `values`; "" if they are no such sum."""
    for times in itertools.product(range(3), repeat=len(contributions)):
        if np.array_equal(values, sum(n * part for n, part in zip(times, contributions, strict=True))):
            ranks = [f"rank {rank}{' twice' * (n == 2)}" for rank, n in enumerate(times) if n]
            return f"what stands there is made of {' and '.join(ranks) or 'nothing'}"
    return ""


def _neighbours(call, seed):
    """All sends go to the right neighbour, all receives come from the left one."""
    world_size = 4
    _, calls = _after(call, world_size, [_distinct(seed, world_size, (8,))])
    given = _size_in_words((8,), world_size)
    for rank, of_rank in enumerate(calls):
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        for made in of_rank:
            if made["op"] not in ("send", "recv"):
                raise wrong(
                    f"Rank {rank} called {made['op']}; here only sends and receives are wanted.", given,
                    look_at="dist.isend with dist.recv, or dist.batch_isend_irecv",
                )  # fmt: skip
            if made["op"] == "send" and made["peer"] != right:
                raise wrong(
                    f"Rank {rank} sent to rank {made['peer']}, but its right neighbour is rank {right}.",
                    given,
                )
            if made["op"] == "recv" and made["peer"] not in (left, None):
                raise wrong(
                    f"Rank {rank} received from rank {made['peer']}, but its left neighbour is rank {left}.",
                    given,
                )
        if not of_rank:
            raise wrong(f"Rank {rank} sent nothing and received nothing.", given)


def _volume(elements_sent, phases, sizes):
    """Every rank sends exactly what `elements_sent(elements, world_size)` says, in N − 1 messages per phase."""

    def check(call, seed):
        for world_size, shapes in sizes:
            arrays = [_distinct(seed, world_size, shape) for shape in shapes]
            _, calls = _after(call, world_size, arrays)
            length = int(np.prod(shapes[0]))  # of the first case; some of the others have empty chunks
            for rank, expected in enumerate(elements_sent(length, world_size)):
                sends = [
                    made["elements"] for made in calls[rank] if made["op"] == "send" and made["case"] == 0
                ]
                enough = f"{int(expected)} elements in {phases * (world_size - 1)} messages"
                came = f"{sum(sends)} elements in {len(sends)} messages"
                if came != enough:
                    whole = sum(sends) >= length * (world_size - 1)
                    raise wrong(
                        f"Rank {rank} sent {'too much' if sum(sends) > expected else 'the wrong amount'}: {came}.",
                        _size_in_words((length,), world_size), came, enough,
                        "what is sent in a step: one chunk, not the whole tensor" if whole else "how many steps there are",
                    )  # fmt: skip

    return check


def _alone(call, seed):
    """One rank: the tensor stays as it is, nobody is called."""
    (array,) = _distinct(seed, 1, (5,))
    results, calls = _after(call, 1, [[array]])
    if calls[0]:
        raise wrong(
            "A rank that is alone has nobody to talk to, but it communicated.", "1 rank", calls[0][0]["op"]
        )
    if not np.array_equal(results[0][0], array):
        raise wrong(
            "On a single rank the tensor must stay as it is.", "1 rank, 5 elements", results[0][0], array
        )


def _reduce_scatter_sums(sizes):
    """Rank r ends with the complete sum of chunk (r + 1) mod N; sizes: (world size, shapes) pairs."""

    def check(call, seed):
        for world_size, shapes in sizes:
            arrays = [_distinct(seed, world_size, shape) for shape in shapes]
            results, _ = _after(call, world_size, arrays)
            for number, given in enumerate(arrays):
                _nothing_left_over(given, [tensors[number] for tensors in results])
                for rank in range(world_size):
                    _reduce_scatter_sum(given, rank, results[rank][number])

    return check


def _nothing_left_over(given, came):
    """The elements beyond N equal chunks take part as well."""
    rest = len(given[0]) % len(given)
    if 0 < rest < len(given[0]) and all(
        np.array_equal(a[-rest:], b[-rest:]) for a, b in zip(came, given, strict=True)
    ):
        elements, are = ("element", "it is") if rest == 1 else (f"{rest} elements", "they are")
        raise wrong(
            f"The last {elements} never moved: {are} in no chunk.",
            _size_in_words(given[0].shape, len(given)), came[0],
            look_at="how the tensor is cut: tensor.tensor_split(N) keeps everything",
        )  # fmt: skip


def _reduce_scatter_sum(given, rank, came):
    world_size, owned = len(given), (rank + 1) % len(given)
    total, parts = sum(given), [np.array_split(array, world_size)[owned] for array in given]
    expected, found = np.array_split(total, world_size)[owned], np.array_split(came, world_size)[owned]
    if np.array_equal(found, expected):
        return
    others = [
        number for number, (a, b) in enumerate(zip(*(np.array_split(x, world_size) for x in (came, total)), strict=True))
        if a.size and np.array_equal(a, b)
    ]  # fmt: skip
    hint = _ROUNDED if _only_rounded(found, expected) else _where_from(found, parts)
    if np.array_equal(came, given[rank]):
        hint = "the tensor did not change at all: the function works in place"
    elif others:
        hint = f"rank {rank} holds the complete sum of chunk {others[0]} instead: which chunk travels in which step?"
    raise wrong(
        f"Rank {rank} does not end with the complete sum of chunk {owned}.",
        _size_in_words(given[0].shape, world_size), found, expected, hint or None,
    )  # fmt: skip


def _all_gather_chunks(sizes):
    """Everybody ends with every chunk; before, all but the own chunk is NaN."""

    def check(call, seed):
        for world_size, shapes in sizes:
            totals = [_distinct(seed, 1, shape)[0] for shape in shapes]
            arrays = [
                [_only_chunk(total, world_size, rank) for rank in range(world_size)] for total in totals
            ]
            results, _ = _after(call, world_size, arrays)
            for number, total in enumerate(totals):
                for rank in range(world_size):
                    _all_gather_chunk(total, world_size, rank, results[rank][number])

    return check


def _only_chunk(total, world_size, rank):
    array = np.full_like(total, np.nan)
    owned = np.array_split(np.arange(len(total)), world_size)[(rank + 1) % world_size]
    array[owned] = total[owned]
    return array


def _all_gather_chunk(total, world_size, rank, came):
    expected, found = np.array_split(total, world_size), np.array_split(came, world_size)
    for number in range(world_size):
        if np.array_equal(found[number], expected[number]):
            continue
        hint = "NaN is what stood there before: nothing came, or what came was added and not copied"
        others = [
            k for k in range(world_size) if found[number].size and np.array_equal(found[number], expected[k])
        ]
        if others:
            hint = f"what stands there are the numbers of chunk {others[0]}"
        elif not np.isnan(found[number]).any():
            hint = _ROUNDED if _only_rounded(found[number], expected[number]) else None
        raise wrong(
            f"Rank {rank} does not end with chunk {number}, which rank {(number - 1) % world_size} had.",
            _size_in_words(total.shape, world_size), found[number], expected[number], hint,
        )  # fmt: skip


def _all_reduce_sums(sizes, transposed=False):
    """All ranks end with the sum; sizes: (world size, shapes) pairs."""

    def check(call, seed):
        for world_size, shapes in sizes:
            arrays = [_distinct(seed, world_size, shape) for shape in shapes]
            results, _ = _after(call, world_size, arrays, transposed)
            for number, given in enumerate(arrays):
                for rank in range(world_size):
                    _all_reduce_sum(given, rank, results[rank][number], transposed)

    return check


def _all_reduce_sum(given, rank, came, transposed):
    total = sum(given)
    if np.array_equal(came, total):
        return
    where = _size_in_words(total.shape, len(given)) + (", not contiguous" if transposed else "")
    if np.array_equal(came, given[rank]):
        raise wrong(
            f"Rank {rank}'s tensor did not change.", where, came, total,
            "a flat copy of the tensor was reduced and not copied back" if transposed else "the function works in place",
        )  # fmt: skip
    first = int(np.flatnonzero(came.reshape(-1) != total.reshape(-1))[0])
    came_from = _where_from(came.reshape(-1)[first], [array.reshape(-1)[first] for array in given])
    if _only_rounded(came, total):
        came_from = _ROUNDED
    raise wrong(
        f"Rank {rank} does not end with the sum: element {first} is wrong.",
        where,
        came,
        total,
        came_from or None,
    )


def _replicas(call, seed):
    """The ranks' results have the same bits: numbers whose sum depends on the order of the additions."""
    world_size = 4
    arrays = list(
        np.random.default_rng([seed, world_size]).standard_normal((world_size, 1003)).astype(np.float32)
    )
    results, _ = _after(call, world_size, [arrays])
    first = results[0][0]
    for rank in range(1, world_size):
        ours = results[rank][0]
        if ours.tobytes() != first.tobytes():
            place = int(np.flatnonzero(ours.view(np.int32) != first.view(np.int32))[0])
            raise wrong(
                f"Ranks 0 and {rank} do not end with the same bits: the replicas would drift apart.",
                f"{world_size} ranks, 1,003 float32 numbers on each",
                f"element {place} is {ours[place]:.9g} on rank {rank} and {first[place]:.9g} on rank 0",
                "the same bits everywhere",
                "the order of the additions: each chunk is to be summed on one rank only, then copied",
            )  # fmt: skip


_EVEN = ((2, [(6,)]), (3, [(6,)]), (4, [(8,)]))
_UNEVEN = ((3, [(7,), (2,)]), (4, [(11,), (3,), (0,)]), (5, [(12,)]))
_SHAPES = ((2, [(6,)]), (3, [(2, 3)]), (4, [(2, 2, 2)]))
_COUNTED = (_EVEN[-1], _UNEVEN[0])


def _reduce_scatter_elements(elements, world_size):
    return reduce_scatter_elements_sent("ring", elements, world_size)


def _all_gather_elements(elements, world_size):
    return all_gather_elements_sent("ring", elements, world_size)


def _all_reduce_elements(elements, world_size):
    return all_reduce_elements_sent("ring", elements, world_size)


QUESTIONS = {
    "q1": (
        SubCheck("right neighbour, left neighbour", _neighbours),
        SubCheck("sums on 2, 3 and 4 ranks", _reduce_scatter_sums(_EVEN)),
        SubCheck("lengths that the number of ranks does not divide", _reduce_scatter_sums(_UNEVEN)),
        SubCheck("elements sent", _volume(_reduce_scatter_elements, phases=1, sizes=_COUNTED)),
        SubCheck("one rank alone", _alone),
    ),
    "q2": (
        SubCheck("right neighbour, left neighbour", _neighbours),
        SubCheck("all chunks on 2, 3 and 4 ranks", _all_gather_chunks(_EVEN)),
        SubCheck("lengths that the number of ranks does not divide", _all_gather_chunks(_UNEVEN)),
        SubCheck("elements sent", _volume(_all_gather_elements, phases=1, sizes=_COUNTED)),
        SubCheck("one rank alone", _alone),
    ),
    "q3": (
        SubCheck("sums on 2, 3 and 4 ranks", _all_reduce_sums(_SHAPES)),
        SubCheck("lengths that the number of ranks does not divide", _all_reduce_sums(_UNEVEN)),
        SubCheck("a tensor that is not contiguous", _all_reduce_sums(((3, [(4, 3)]),), transposed=True)),
        SubCheck("replicas bitwise equal", _replicas),
        SubCheck("elements sent", _volume(_all_reduce_elements, phases=2, sizes=(_SHAPES[-1], _UNEVEN[0]))),
        SubCheck("one rank alone", _alone),
    ),
}
