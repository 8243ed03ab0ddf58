"""What a collective costs each rank: elements sent, steps, seconds.

Volumes count what a rank sends; over all ranks as much is received. They are exact for sizes that the
world size does not divide: the tensor is then cut as ``torch.tensor_split`` cuts it.

Times follow the α–β model: every step pays α once, and the bytes on the critical path pay 1 / bandwidth
(Thakur et al. 2005; NCCL's own tuner has the same form). Adding the numbers up is taken as free.
"""

import math

import numpy as np

from .arguments import non_negative, one_of, positive, whole_number
from .link import Link
from .ring import ALL_GATHER, REDUCE_SCATTER, RingMove, chunk_sizes, ring_schedule

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE_ALGORITHMS",
    "CHUNKED_ALGORITHMS",
    "Link",
    "REDUCE_SCATTER",
    "RingMove",
    "algbw",
    "all_gather_elements_sent",
    "all_gather_seconds",
    "all_gather_steps",
    "all_reduce_elements_sent",
    "all_reduce_lower_bound_seconds",
    "all_reduce_seconds",
    "all_reduce_steps",
    "all_to_all_elements_sent",
    "all_to_all_seconds",
    "broadcast_elements_sent",
    "broadcast_seconds",
    "busbw",
    "busbw_factor",
    "chunk_sizes",
    "hierarchical_all_reduce_seconds",
    "parameter_server_elements",
    "pipelined_tree_all_reduce_seconds",
    "point_to_point_seconds",
    "reduce_scatter_elements_sent",
    "reduce_scatter_seconds",
    "reduce_scatter_steps",
    "ring_schedule",
]

ALL_REDUCE_ALGORITHMS = (
    "ring",
    "recursive_halving_doubling",
    "tree",
    "gather_broadcast",
    "all_gather_sum",
    "unchunked_ring",
)
"""Ways to all-reduce:

ring                        reduce-scatter, then all-gather, each passing chunks to the next rank
recursive_halving_doubling  reduce-scatter by halves with ever nearer partners, then all-gather by doubling
tree                        reduce up a binomial tree to rank 0, then broadcast down it; whole tensors
gather_broadcast            all ranks send to rank 0, which adds and sends the sum to each, one by one
all_gather_sum              every rank sends its whole tensor to every other; each adds on its own
unchunked_ring              whole tensors travel round the ring; each rank adds what passes by
"""

CHUNKED_ALGORITHMS = ("ring", "recursive_halving_doubling")
"""Ways to reduce-scatter or to all-gather without sending anything twice."""

# Elements sent per rank


def reduce_scatter_elements_sent(algorithm, elements, world_size):
    """Elements that each rank sends in a reduce-scatter of `elements` elements; int array indexed by rank.

    A rank sends every chunk except the one that it ends up with: Ψ(N−1)/N when N divides Ψ.
    Ring: rank r ends up with chunk (r + 1) mod N. Recursive halving: with chunk r.
    Raises ValueError for an unknown algorithm, or for halving over a world size that is no power of two.
    """
    sizes = _checked_chunks(algorithm, elements, world_size)
    owned = np.roll(sizes, -1) if algorithm == "ring" else sizes
    return sizes.sum() - owned


def all_gather_elements_sent(algorithm, elements, world_size):
    """Elements that each rank sends in an all-gather that ends with `elements` elements; array by rank.

    Ring: rank r starts with chunk (r + 1) mod N, as the reduce-scatter left it, and forwards every chunk
    but the one that its right neighbour owns. Recursive doubling: rank r starts with chunk r and each
    time sends all that it has. Both are Ψ(N−1)/N when N divides Ψ.
    """
    sizes = _checked_chunks(algorithm, elements, world_size)
    if algorithm == "ring":
        return sizes.sum() - np.roll(sizes, -2)
    sent = np.zeros_like(sizes)
    for block in (2**k for k in range(_log2(len(sizes)))):
        sent += sizes.reshape(-1, block).sum(axis=1).repeat(block)
    return sent


def all_reduce_elements_sent(algorithm, elements, world_size):
    """Elements that each rank sends in an all-reduce of `elements` elements; int array indexed by rank.

    Chunked algorithms send 2Ψ(N−1)/N, the least possible (Patarasu and Yuan 2009). Over a world size that
    is no power of two, recursive halving first folds the surplus ranks into their neighbours (Thakur et
    al. 2005): of the first 2(N − 2^k) ranks the even ones hand everything over and get the result back.
    """
    one_of("algorithm", algorithm, ALL_REDUCE_ALGORITHMS)
    elements = whole_number("elements", elements, minimum=0)
    n = whole_number("world_size", world_size)
    ranks = np.arange(n)
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    if algorithm == "ring" or (algorithm == "recursive_halving_doubling" and _is_power_of_two(n)):
        return reduce_scatter_elements_sent(algorithm, elements, n) + all_gather_elements_sent(
            algorithm, elements, n
        )
    if algorithm == "recursive_halving_doubling":
        core = 2 ** (n.bit_length() - 1)
        surplus = n - core
        folded = ranks < 2 * surplus
        active = ~folded | (ranks % 2 == 1)
        sent = np.where(folded, elements, 0)
        sent[active] += all_reduce_elements_sent(algorithm, elements, core)
        return sent
    if algorithm == "tree":
        return elements * ((ranks > 0) + _binomial_children(n))
    if algorithm == "gather_broadcast":
        return np.where(ranks == 0, (n - 1) * elements, elements)
    return np.full(n, (n - 1) * elements)


def all_to_all_elements_sent(elements, world_size):
    """Elements that each rank sends when it scatters its own `elements` elements over all ranks.

    Rank r keeps chunk r and sends the rest: Ψ(N−1)/N when N divides Ψ. Array indexed by rank.
    """
    sizes = chunk_sizes(elements, world_size)
    return sizes.sum() - sizes


def broadcast_elements_sent(elements, world_size):
    """Elements that each rank sends when rank 0 broadcasts down a binomial tree. Array indexed by rank."""
    elements = whole_number("elements", elements, minimum=0)
    return elements * _binomial_children(whole_number("world_size", world_size))


# Steps and seconds


def all_reduce_steps(algorithm, world_size):
    """Messages that follow one another on the critical path of an all-reduce.

    >>> all_reduce_steps("ring", 8), all_reduce_steps("tree", 8)
    (14, 6)
    """
    one_of("algorithm", algorithm, ALL_REDUCE_ALGORITHMS)
    n = whole_number("world_size", world_size)
    return {
        "ring": 2 * (n - 1),
        "recursive_halving_doubling": 2 * (n.bit_length() - 1) + (0 if _is_power_of_two(n) else 2),
        "tree": 2 * _log2(n),
        "gather_broadcast": 2 * (n - 1),
        "all_gather_sum": n - 1,
        "unchunked_ring": n - 1,
    }[algorithm]


def all_reduce_seconds(algorithm, n_bytes, world_size, link):
    """Seconds of an all-reduce of `n_bytes` bytes over `link` (a Link), by the α–β model.

    Chunked: steps·α + 2(N−1)/N · n/bandwidth. Whole-tensor algorithms pay n/bandwidth in every step.
    The tree is not pipelined: 2⌈log₂N⌉(α + n/bandwidth).
    """
    n = whole_number("world_size", world_size)
    non_negative("n_bytes", n_bytes)
    steps = all_reduce_steps(algorithm, n)
    if algorithm == "ring":
        tensors = 2 * (n - 1) / n
    elif algorithm == "recursive_halving_doubling":
        core = 2 ** (n.bit_length() - 1)
        tensors = 2 * (core - 1) / core + (0 if _is_power_of_two(n) else 2)
    else:
        tensors = steps
    return _seconds(link, tensors * n_bytes, messages=steps)


def reduce_scatter_steps(algorithm, world_size):
    """Messages that follow one another in a reduce-scatter: N − 1 in a ring, log₂N by halving."""
    _checked_chunks(algorithm, 0, world_size)
    return world_size - 1 if algorithm == "ring" else _log2(world_size)


def reduce_scatter_seconds(algorithm, n_bytes, world_size, link):
    """Seconds of a reduce-scatter of `n_bytes`, one rank's input: steps·α + (N−1)/N · n/bandwidth."""
    non_negative("n_bytes", n_bytes)
    steps = reduce_scatter_steps(algorithm, world_size)
    return _seconds(link, (world_size - 1) / world_size * n_bytes, messages=steps)


def all_gather_steps(algorithm, world_size):
    """Messages that follow one another in an all-gather: N − 1 in a ring, log₂N by doubling."""
    return reduce_scatter_steps(algorithm, world_size)


def all_gather_seconds(algorithm, n_bytes, world_size, link):
    """Seconds of an all-gather whose result has `n_bytes`: a reduce-scatter run backwards."""
    return reduce_scatter_seconds(algorithm, n_bytes, world_size, link)


def all_to_all_seconds(n_bytes, world_size, link):
    """Seconds in which each rank spreads its `n_bytes` over all ranks: (N−1)α + (N−1)/N · n/bandwidth."""
    n = whole_number("world_size", world_size)
    non_negative("n_bytes", n_bytes)
    return _seconds(link, (n - 1) / n * n_bytes, messages=n - 1)


def broadcast_seconds(n_bytes, world_size, link):
    """Seconds of a broadcast down a binomial tree, not pipelined: ⌈log₂N⌉(α + n/bandwidth)."""
    steps = _log2(whole_number("world_size", world_size))
    return _seconds(link, steps * non_negative("n_bytes", n_bytes), messages=steps)


def point_to_point_seconds(n_bytes, link):
    """Seconds to send `n_bytes` to one other rank: α + n/bandwidth."""
    return _seconds(link, non_negative("n_bytes", n_bytes))


def hierarchical_all_reduce_seconds(n_bytes, gpus_per_node, nodes, intra, inter):
    """Seconds of an all-reduce in three stages, G ranks in a node and n nodes.

    Reduce-scatter inside the node; all-reduce of n/G bytes across nodes, all G ranks at once, each on its
    own `inter` link; all-gather inside the node. Every stage is a ring.
    """
    shard_bytes = non_negative("n_bytes", n_bytes) / whole_number("gpus_per_node", gpus_per_node)
    return (
        reduce_scatter_seconds("ring", n_bytes, gpus_per_node, intra)
        + all_reduce_seconds("ring", shard_bytes, nodes, inter)
        + all_gather_seconds("ring", n_bytes, gpus_per_node, intra)
    )


def pipelined_tree_all_reduce_seconds(n_bytes, world_size, link):
    """Seconds of NCCL's double binary tree, pipelined: 2⌈log₂N⌉α + 2n/bandwidth (large messages)."""
    steps = 2 * _log2(whole_number("world_size", world_size))
    return _seconds(link, 2 * non_negative("n_bytes", n_bytes) if steps else 0, messages=steps)


def all_reduce_lower_bound_seconds(n_bytes, world_size, link):
    """No all-reduce is faster: the larger of ⌈log₂N⌉α and 2(N−1)/N · n/bandwidth (Chan et al. 2007)."""
    n = whole_number("world_size", world_size)
    bandwidth_term = _seconds(link, 2 * (n - 1) / n * non_negative("n_bytes", n_bytes), messages=0)
    return max(_seconds(link, 0, messages=_log2(n)), bandwidth_term)


# Bandwidth as nccl-tests reports it


def algbw(n_bytes, seconds):
    """Algorithm bandwidth in bytes per second: the size of the whole buffer over the time.

    For all-gather and reduce-scatter the whole buffer is that of all ranks together.
    """
    return non_negative("n_bytes", n_bytes) / positive("seconds", seconds)


def busbw_factor(collective, world_size):
    """busbw / algbw as in nccl-tests (doc/PERFORMANCE.md): what the hardware moves per byte of buffer."""
    n = whole_number("world_size", world_size)
    factors = {
        "all_reduce": 2 * (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_gather": (n - 1) / n,
        "all_to_all": (n - 1) / n,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    return factors[one_of("collective", collective, tuple(factors))]


def busbw(collective, n_bytes, seconds, world_size):
    """Bus bandwidth in bytes per second: comparable with a link's peak whatever the number of ranks."""
    return algbw(n_bytes, seconds) * busbw_factor(collective, world_size)


# Parameter server


def parameter_server_elements(parameters, workers, servers=1):
    """Elements through ONE server's link in a step: each of N workers pushes Ψ and pulls Ψ, 2NΨ/S per server.

    A worker's own link carries 2Ψ; a ring's carries 2Ψ(N−1)/N sent by every rank (Li et al. 2014).
    """
    parameters = whole_number("parameters", parameters, minimum=0)
    return 2 * whole_number("workers", workers) * parameters / whole_number("servers", servers)


def _seconds(link, n_bytes, messages=1):
    if not isinstance(link, Link):
        raise ValueError(
            f"link must be a Link of hardware.py, such as LINKS['nvlink4'], but {link!r} was given."
        )
    return link.seconds(n_bytes, messages)


def _checked_chunks(algorithm, elements, world_size):
    one_of("algorithm", algorithm, CHUNKED_ALGORITHMS)
    sizes = chunk_sizes(elements, world_size)
    if algorithm == "recursive_halving_doubling" and not _is_power_of_two(len(sizes)):
        raise ValueError(
            f"world_size must be a power of two for recursive halving, but {world_size} was given. "
            "Take the ring, or a world size such as 2, 4 or 8."
        )
    return sizes


def _binomial_children(n):
    """Children of each rank in the binomial tree that is rooted at rank 0."""
    ranks = np.arange(n)
    children = np.zeros(n, dtype=np.int64)
    for bit in (2**k for k in range(_log2(n))):
        children += (ranks % (2 * bit) == 0) & (ranks + bit < n)
    return children


def _log2(n):
    """⌈log₂n⌉"""
    return math.ceil(math.log2(n))


def _is_power_of_two(n):
    return n & (n - 1) == 0
