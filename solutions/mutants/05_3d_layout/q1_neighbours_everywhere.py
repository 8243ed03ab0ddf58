"""neighbouring ranks form a group only along the first dimension

A group is a stretch of neighbouring ranks, whatever the dimension.
"""

def coordinates(rank, sizes):
    """A dict with the rank's coordinate in each dimension; the first of `sizes` varies fastest."""
    place = {}
    for name in sizes:
        place[name] = rank % sizes[name]
        rank //= sizes[name]
    return place


def rank_at(position, sizes):
    """The rank at these coordinates."""
    number = 0
    for name in reversed(list(sizes)):
        number = number * sizes[name] + position[name]
    return number


def groups(dimension, sizes):
    """The groups of ranks that differ only along `dimension`, a name or a list of names."""
    along = [dimension] if isinstance(dimension, str) else dimension
    world_size = 1
    for size in sizes.values():
        world_size *= size
    size = 1
    for name in along:
        size *= sizes[name]
    return [list(range(first, first + size)) for first in range(0, world_size, size)]
