"""What tensor parallelism exchanges: f, g and their relatives, as operators that autograd understands.

All follow from one question: what is the gradient of a tensor that every rank holds? If a rank uses it for its own
part of the work, it sees its own part of the gradient, and the parts must be added. If all ranks do the same with it,
each already has the whole gradient, and adding would count it t times.

So an operator is two exchanges, one for the way there (forward) and one for the way back (backward):

========================  ===================  ===================  ======================================
operator                  there                back                 where
========================  ===================  ===================  ======================================
copy_to_group (f)         nothing              all-reduce           a whole tensor enters the split
reduce_from_group (g)     all-reduce           nothing              partial sums leave the split
gather_from_parts         all-gather           reduce-scatter       parts of the sequence enter it
reduce_scatter_to_parts   reduce-scatter       all-gather           partial sums leave it, in parts
split_to_parts            keep the own part    all-gather           a whole tensor is cut
join_parts                all-gather           keep the own part    all ranks want the whole
copy_to_sharers           nothing              all-reduce           some ranks hold the same piece
========================  ===================  ===================  ======================================

The first six are three pairs: each is the other one backwards. f and g: Shoeybi et al. 2019 (arXiv 1909.08053),
section 3; the pair for sequence parallelism: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2. All take a
process group, None for all ranks.
"""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch.autograd import Function

# torch 2.13 renamed these two and warns about the old names; we go back to torch 2.10.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _ThereAndBack(Function):
    """Forward, one exchange; backward, the other one. The gradient's gradient takes the first way again."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx, gradient):
        return _ThereAndBack.apply(gradient, ctx.back, ctx.there), None, None


# The operators


def copy_to_group(x, group=None):
    """f: the same tensor forward; backward, the sum over the ranks of their gradients."""
    return _ThereAndBack.apply(x, _same, partial(_sum, group=group))


def reduce_from_group(x, group=None):
    """g: the sum over the ranks forward; the same gradient backward."""
    return _ThereAndBack.apply(x, partial(_sum, group=group), _same)


def gather_from_parts(x, group=None, dim=1):
    """Join the ranks' parts (…, s/t, …) along `dim` to (…, s, …); backward, sum the gradients and keep the own part."""
    where = {"group": group, "dim": dim}
    return _ThereAndBack.apply(x, partial(_joined, **where), partial(_own_part_of_sum, **where))


def reduce_scatter_to_parts(x, group=None, dim=1):
    """Sum over the ranks and keep the own part along `dim`; backward, join the parts' gradients.

    Raises ValueError when the group's size does not divide `dim`.
    """
    where = {"group": group, "dim": dim}
    return _ThereAndBack.apply(x, partial(_own_part_of_sum, **where), partial(_joined, **where))


def split_to_parts(x, group=None, dim=-1):
    """Keep the own part of a tensor that all ranks hold; backward, join the parts' gradients.

    Raises ValueError when the group's size does not divide `dim`.
    """
    where = {"group": group, "dim": dim}
    return _ThereAndBack.apply(x, partial(_own_part, **where), partial(_joined, **where))


def join_parts(x, group=None, dim=-1):
    """Join the ranks' parts for a use that is the same on all ranks; backward, keep the own part of the gradient."""
    where = {"group": group, "dim": dim}
    return _ThereAndBack.apply(x, partial(_joined, **where), partial(_own_part, **where))


def copy_to_sharers(x, pieces, group=None):
    """f for a piece that several ranks hold: backward, the sum over the ranks with the same piece.

    Of t ranks the first t/pieces hold piece 0, and so on. One all-reduce over the whole group, in which each piece
    has its own place, does it without further groups.
    """
    return _ThereAndBack.apply(x, _same, partial(_sum_of_sharers, pieces=pieces, group=group))


def piece_of(pieces, group=None):
    """Which of `pieces` (at most t, and dividing it) this rank holds."""
    return dist.get_rank(group) * pieces // dist.get_world_size(group)


# The exchanges, of plain tensors


def _same(x):
    return x.view_as(x)


def _sum(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _joined(x, group, dim):
    front = x.movedim(dim, 0).contiguous()  # collectives join and cut along the first dimension
    whole = front.new_empty(len(front) * dist.get_world_size(group), *front.shape[1:])
    _all_gather(whole, front, group=group)
    return whole.movedim(0, dim)


def _own_part_of_sum(x, group, dim):
    front = x.movedim(dim, 0).contiguous()
    own = front.new_empty(_part_length(x, group, dim), *front.shape[1:])
    _reduce_scatter(own, front, group=group)
    return own.movedim(0, dim)


def _own_part(x, group, dim):
    length = _part_length(x, group, dim)
    return x.narrow(dim, dist.get_rank(group) * length, length).clone()


def _sum_of_sharers(x, pieces, group):
    mine = piece_of(pieces, group)
    placed = x.new_zeros(pieces, *x.shape)
    placed[mine] = x
    dist.all_reduce(placed, group=group)
    return placed[mine].clone()


def _part_length(x, group, dim):
    world_size = dist.get_world_size(group)
    if x.shape[dim] % world_size:
        raise ValueError(
            f"Dimension {dim} of a tensor of shape {tuple(x.shape)} is cut into {world_size} equal parts, but "
            f"{world_size} does not divide {x.shape[dim]}. Pad it to a multiple of {world_size}."
        )
    return x.shape[dim] // world_size


# Random numbers


@contextlib.contextmanager
def rank_randomness(group=None, device="cpu"):
    """Inside the block every rank draws other random numbers; after it all ranks go on in step.

    Dropout of a tensor that all ranks hold must drop the same elements everywhere: it runs outside. Dropout of parts
    must not repeat one mask in every part: it runs inside. The seed is drawn from the common sequence, so
    that recomputation, which restores that sequence, draws the same masks again.
    """
    seed = int(torch.randint(2**62, ()))
    devices = [device] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed + dist.get_rank(group))
        yield
