"""All-reduce by hand: real ranks, plain sends and receives, one function per algorithm.

Every function has the signature `(tensor, group=None)` and works in place, as `dist.all_reduce` does: all
ranks of the group call it with a contiguous tensor of the same shape and dtype, and it returns the part of
that tensor which is complete afterwards (the whole of it, except for `ring_reduce_scatter`). A tensor that is
not contiguous is refused with a ValueError. What each algorithm sends, as a number:
:mod:`utils.theory.collectives`, under the same names.

Chunks are those of `torch.tensor_split`, so any length goes: the first chunks are one element longer when N
does not divide it, and empty when there are fewer elements than ranks.
"""

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    """Pass partial sums round the ring: rank r ends with, and returns, the sum of chunk (r + 1) mod N.

    N − 1 steps, Ψ(N−1)/N elements sent per rank. The other chunks of `tensor` hold partial sums afterwards.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = _flat(tensor).tensor_split(world_size)
    for step in range(world_size - 1):
        mine, theirs = chunks[(rank - step) % world_size], chunks[(rank - 1 - step) % world_size]
        received = torch.empty_like(theirs)
        _exchange(mine, (rank + 1) % world_size, received, (rank - 1) % world_size, group)
        theirs += received
    return chunks[(rank + 1) % world_size]


def ring_all_gather(tensor, group=None):
    """Pass finished chunks round the ring: rank r starts with chunk (r + 1) mod N and ends with all.

    N − 1 steps, Ψ(N−1)/N elements sent per rank. Starts where `ring_reduce_scatter` stopped.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = _flat(tensor).tensor_split(world_size)
    for step in range(world_size - 1):
        mine, theirs = chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size]
        _exchange(mine, (rank + 1) % world_size, theirs, (rank - 1) % world_size, group)
    return tensor


def ring_all_reduce(tensor, group=None):
    """Sum over the ranks in 2(N−1) steps, reduce-scatter and then all-gather; each rank sends 2Ψ(N−1)/N.

    No algorithm sends less (Patarasu and Yuan 2009). All replicas are bitwise equal: every chunk is summed
    once, at its owner, and then copied.
    """
    ring_reduce_scatter(tensor, group)
    return ring_all_gather(tensor, group)


def unchunked_ring_all_reduce(tensor, group=None):
    """Whole tensors travel round the ring and each rank adds what passes by: (N−1)Ψ sent per rank.

    That is N/2 times what the chunked ring sends. Every rank adds in another order, so that replicas of floats
    differ in their last bits.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = _flat(tensor)
    passing = total.clone()
    for _ in range(world_size - 1):
        received = torch.empty_like(passing)
        _exchange(passing, (rank + 1) % world_size, received, (rank - 1) % world_size, group)
        total += received
        passing = received
    return tensor


def gather_broadcast_all_reduce(tensor, group=None):
    """Everybody sends to rank 0, which adds and sends the sum to each: rank 0 sends (N−1)Ψ, the others Ψ.

    2(N−1) messages pass through rank 0, one after the other. Replicas are bitwise equal.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = _flat(tensor)
    if rank != 0:
        dist.send(total, group=group, group_dst=0)
        dist.recv(total, group=group, group_src=0)
        return tensor
    received = torch.empty_like(total)
    for other in range(1, world_size):
        dist.recv(received, group=group, group_src=other)
        total += received
    for other in range(1, world_size):
        dist.send(total, group=group, group_dst=other)
    return tensor


def all_gather_sum_all_reduce(tensor, group=None):
    """Every rank sends its whole tensor to every other, and each adds on its own: (N−1)Ψ sent per rank.

    It also holds N tensors at once. Replicas are bitwise equal because all add in the order of the ranks.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = _flat(tensor)
    gathered = [total.clone() if other == rank else torch.empty_like(total) for other in range(world_size)]
    for step in range(1, world_size):
        to_rank, from_rank = (rank + step) % world_size, (rank - step) % world_size
        _exchange(gathered[rank], to_rank, gathered[from_rank], from_rank, group)
    total.copy_(sum(gathered))
    return tensor


def tree_all_reduce(tensor, group=None):
    """Add up a binomial tree to rank 0, then copy down it: 2⌈log₂N⌉ steps of the whole tensor.

    Rank r's parent is r without its lowest set bit. Replicas are bitwise equal.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = _flat(tensor)
    received = torch.empty_like(total)
    bits = [2**k for k in range((world_size - 1).bit_length())]
    for bit in bits:
        if rank % (2 * bit) == bit:
            dist.send(total, group=group, group_dst=rank - bit)
        elif rank % (2 * bit) == 0 and rank + bit < world_size:
            dist.recv(received, group=group, group_src=rank + bit)
            total += received
    for bit in reversed(bits):
        if rank % (2 * bit) == bit:
            dist.recv(total, group=group, group_src=rank - bit)
        elif rank % (2 * bit) == 0 and rank + bit < world_size:
            dist.send(total, group=group, group_dst=rank + bit)
    return tensor


def recursive_halving_doubling_all_reduce(tensor, group=None):
    """Reduce-scatter by halves with ever nearer partners, then all-gather by doubling: 2 log₂N steps.

    Each rank sends 2Ψ(N−1)/N, like the ring. Over a world that is no power of two, the surplus ranks first
    hand everything to a neighbour and get the result back at the end: two steps and Ψ more (Thakur,
    Rabenseifner and Gropp 2005). Replicas are bitwise equal.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = _flat(tensor)
    surplus = world_size - 2 ** (world_size.bit_length() - 1)
    core = [*range(1, 2 * surplus, 2), *range(2 * surplus, world_size)]
    if rank not in core:
        dist.send(total, group=group, group_dst=rank + 1)
        dist.recv(total, group=group, group_src=rank + 1)
        return tensor
    if rank < 2 * surplus:
        received = torch.empty_like(total)
        dist.recv(received, group=group, group_src=rank - 1)
        total += received
    _halve_and_double(total, core, core.index(rank), group)
    if rank < 2 * surplus:
        dist.send(total, group=group, group_dst=rank - 1)
    return tensor


def _halve_and_double(total, ranks, position, group):
    """All-reduce `total` among `ranks`, a power of two of them, of which this one stands at `position`."""
    chunks = total.tensor_split(len(ranks))
    distances = [2**k for k in range(len(ranks).bit_length() - 1)]

    def block(member, width):
        """The chunks from the multiple of `width` at or below `member` on, as one view."""
        first = member // width * width
        start = sum(len(chunk) for chunk in chunks[:first])
        return total[start : start + sum(len(chunk) for chunk in chunks[first : first + width])]

    for distance in reversed(distances):
        partner = position ^ distance
        mine, theirs = block(position, distance), block(partner, distance)
        received = torch.empty_like(mine)
        _exchange(theirs, ranks[partner], received, ranks[partner], group)
        mine += received
    for distance in distances:
        partner = position ^ distance
        _exchange(block(position, distance), ranks[partner], block(partner, distance), ranks[partner], group)


ALGORITHMS = {
    "ring": ring_all_reduce,
    "recursive_halving_doubling": recursive_halving_doubling_all_reduce,
    "tree": tree_all_reduce,
    "gather_broadcast": gather_broadcast_all_reduce,
    "all_gather_sum": all_gather_sum_all_reduce,
    "unchunked_ring": unchunked_ring_all_reduce,
}
"""All-reduce functions under the names of `utils.theory.collectives.ALL_REDUCE_ALGORITHMS`."""


def _exchange(send, to_rank, receive, from_rank, group):
    """Send one tensor and receive another at the same time; ranks are counted within the group.

    Both are under way before either is waited for. If all ranks waited for their send first, none would go
    on.
    """
    sending = dist.P2POp(dist.isend, send, group=group, group_peer=to_rank)
    receiving = dist.P2POp(dist.irecv, receive, group=group, group_peer=from_rank)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


def _flat(tensor):
    """A one-dimensional view of `tensor`: what is written there is written to the tensor."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"The tensor is not contiguous (shape {tuple(tensor.shape)}, strides {tensor.stride()}), so its "
            "chunks are no stretches of memory. Pass tensor.contiguous() and copy the result back."
        )
    return tensor.detach().view(-1)
