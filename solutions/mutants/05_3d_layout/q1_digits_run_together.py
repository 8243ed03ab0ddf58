"""sizes = {'pipeline': 12, 'tensor': 2, 'data': 12}

Coordinates 1, 11 and 11, 1 get one key.
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
    together = {}
    for rank in range(world_size):
        place = coordinates(rank, sizes)
        others = ''.join(str(place[name]) for name in sizes if name not in along)
        together.setdefault(others, []).append(rank)
    return list(together.values())
