"""The ring: how it cuts a tensor into chunks, and which chunk goes where in every step."""

from dataclasses import dataclass

import numpy as np

from .arguments import whole_number

REDUCE_SCATTER, ALL_GATHER = "reduce-scatter", "all-gather"


def chunk_sizes(elements, world_size):
    """Sizes of the chunks that ``torch.tensor_split(x, world_size)`` makes of `elements` elements.

    The first ``elements % world_size`` chunks are one element longer. Returns an int array of length N.
    """
    elements = whole_number("elements", elements, minimum=0)
    world_size = whole_number("world_size", world_size)
    base, longer = divmod(elements, world_size)
    return base + (np.arange(world_size) < longer).astype(np.int64)


@dataclass(frozen=True)
class RingMove:
    """What one rank does in one step of the ring: send one chunk to the right, receive one from the left.

    In the reduce-scatter phase the received chunk is added; in the all-gather phase it replaces.
    """

    rank: int
    phase: str
    send_chunk: int
    to_rank: int
    receive_chunk: int
    from_rank: int


def ring_schedule(world_size):
    """The 2(N−1) steps of a ring all-reduce; each step is a list of N RingMoves, indexed by rank.

    In step s of the reduce-scatter rank r sends chunk (r − s) mod N to rank r + 1. After N − 1 steps
    rank r owns the complete sum of chunk (r + 1) mod N, and the all-gather goes on from there:
    in its step s rank r sends chunk (r + 1 − s) mod N.

    >>> [move.send_chunk for move in ring_schedule(3)[0]]
    [0, 1, 2]
    """
    n = whole_number("world_size", world_size)
    return [
        [
            RingMove(
                rank=rank,
                phase=phase,
                send_chunk=(rank + first_chunk - step) % n,
                to_rank=(rank + 1) % n,
                receive_chunk=(rank - 1 + first_chunk - step) % n,
                from_rank=(rank - 1) % n,
            )
            for rank in range(n)
        ]
        for phase, first_chunk in ((REDUCE_SCATTER, 0), (ALL_GATHER, 1))
        for step in range(n - 1)
    ]
