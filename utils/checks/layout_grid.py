"""Lab 05, q1: ranks on a grid, and the groups of each dimension."""

import itertools

import numpy as np

from utils.checks.numbers import answers
from utils.checks.verdict import SubCheck, wrong
from utils.theory.grid import coordinates, groups, rank_at

_SIZES = (
    {"tensor": 2, "data": 3, "pipeline": 2},
    {"pipeline": 3, "tensor": 4, "data": 2},
    {"data": 5, "tensor": 1, "pipeline": 2},
    {"tensor": 2, "context": 2, "pipeline": 3, "data": 2},
    {"data": 7},
    {"expert": 2, "expert tensor": 3, "tensor": 2},  # names within names
    {"pipeline": 12, "tensor": 2, "data": 12},  # coordinates of two digits
)


def _grids(seed):
    """Fixed grids and two random ones: every order of the dimensions must do."""
    yield from _SIZES
    rng = np.random.default_rng([seed, 70])
    names = ("tensor", "data", "pipeline")
    for _ in range(2):
        yield {str(name): int(rng.integers(2, 6)) for name in rng.permutation(names)}


def _ranks(sizes):
    return range(int(np.prod(list(sizes.values()))))


def _in_words(sizes):
    return "sizes = {" + ", ".join(f"'{name}': {size}" for name, size in sizes.items()) + "}"


def _backwards(sizes):
    return dict(reversed(sizes.items()))


def _positions(call, seed):
    """The coordinates of every rank of every grid."""
    grids = list(_grids(seed))
    questions = [[rank, sizes] for sizes in grids for rank in _ranks(sizes)]
    for (rank, sizes), came in zip(questions, answers(call, 0, questions, "coordinates"), strict=True):
        right, given = coordinates(rank, sizes), f"rank {rank}, {_in_words(sizes)}"
        if not isinstance(came, dict) or set(came) != set(right):
            raise wrong("coordinates must return a dict with one number for each dimension.", given, came, right)
        if came == right:
            continue
        look_at = None
        if came == coordinates(rank, _backwards(sizes)):
            look_at = "the first name of sizes varies fastest: ranks 0 and 1 differ in it"
        elif came == {name: place + 1 for name, place in right.items()}:
            look_at = "a coordinate runs from 0 to size − 1"
        raise wrong("coordinates puts a rank at a wrong place.", given, came, right, look_at)


def _rank_again(call, seed):
    """From coordinates to the rank, whatever the order of the names in the position."""
    grids = list(_grids(seed))
    questions = []
    for sizes in grids:
        for rank in _ranks(sizes):
            position = coordinates(rank, sizes)
            questions.append([position if rank % 2 else _backwards(position), sizes])
    for (position, sizes), came in zip(questions, answers(call, 1, questions, "rank_at"), strict=True):
        right, given = rank_at(position, sizes), f"position {position}, {_in_words(sizes)}"
        if came != right or isinstance(came, bool):
            look_at = None
            if list(position) != list(sizes):
                look_at = "the names of position come in another order than those of sizes"
            elif came == rank_at(position, _backwards(sizes)):
                look_at = "the stride of a dimension is the product of the sizes that come before it in sizes"
            raise wrong("rank_at gives a wrong rank.", given, came, right, look_at)


def _asked_groups(call, seed, along):
    """(dimension, sizes), what came, what is right, in words; for one dimension, or for pairs of them."""
    questions = []
    for sizes in _grids(seed):
        chosen = sizes if along == 1 else [list(pair) for pair in itertools.combinations(sizes, 2)]
        questions += [[name if along == 1 else list(name), sizes] for name in chosen]
    for question, came in zip(questions, answers(call, 2, questions, "groups"), strict=True):
        yield *question, came, groups(*question), f"groups along {question[0]}, {_in_words(question[1])}"


def _of_each_rank(made, n):
    """For each rank the group that holds it, sorted; None where it is in none or in several."""
    found = [[sorted(group) for group in made if rank in group] for rank in range(n)]
    return [own[0] if len(own) == 1 else None for own in found]


def _groups(along):
    def check(call, seed):
        for dimension, sizes, came, right, given in _asked_groups(call, seed, along):
            if not isinstance(came, list) or not all(isinstance(group, list) for group in came):
                raise wrong("groups must return a list of lists of ranks.", given, came, right)
            n = len(_ranks(sizes))
            own, expected = _of_each_rank(came, n), _of_each_rank(right, n)
            if None in own:
                rank = own.index(None)
                times = sum(rank in group for group in came)
                sentence = f"Rank {rank} is in {times} groups of a dimension; every rank is in exactly one."
                raise wrong(sentence, given, came, right)
            if own == expected:
                continue
            look_at = None
            others = [name for name in sizes if name not in ([dimension] if along == 1 else dimension)]
            if others and own == _of_each_rank(groups(others, sizes), n):
                look_at = "the members of a group differ in the named dimension and in nothing else, not the other way round"
            elif own == _of_each_rank(groups(dimension, _backwards(sizes)), n):
                look_at = "the first name of sizes varies fastest"
            elif all(group == list(range(group[0], group[0] + len(group))) for group in own):
                look_at = "neighbouring ranks form a group only along the first dimension; elsewhere there is a stride"
            raise wrong("The groups of a dimension are wrong.", given, came, right, look_at)

    return check


QUESTIONS = {
    "q1": (
        SubCheck("the coordinates of a rank", _positions),
        SubCheck("the rank at coordinates", _rank_again),
        SubCheck("the groups of one dimension", _groups(1)),
        SubCheck("the groups of two dimensions together", _groups(2)),
    ),
}
