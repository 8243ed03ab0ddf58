"""Linear layers cut over a group of ranks, by columns and by rows, and what stands at the edge of the split region.

Shoeybi et al. 2019 (arXiv 1909.08053), section 3. A parallel layer is built from a whole one and keeps its own part of
the whole one's weights, under the same names.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from utils.parallel.tensor_ops import (
    copy_to_group,
    copy_to_sharers,
    gather_from_parts,
    piece_of,
    reduce_from_group,
    reduce_scatter_to_parts,
)

# Into the split region and out of it


def enter_split(x, group=None, sequence_parallel=False):
    """f, or the all-gather of the sequence: what every rank needs before a column-parallel layer, (b, s, h)."""
    return gather_from_parts(x, group) if sequence_parallel else copy_to_group(x, group)


def leave_split(x, group=None, sequence_parallel=False):
    """g, or the reduce-scatter to parts of the sequence: the sum of the ranks' partial results."""
    return reduce_scatter_to_parts(x, group) if sequence_parallel else reduce_from_group(x, group)


def shard_range(size, group=None):
    """(start, end) of this rank's part of `size` rows, cut as `torch.tensor_split` cuts: sizes differ by at most one.

    Raises ValueError when there are fewer rows than ranks.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if size < world_size:
        raise ValueError(f"A dimension of {size} cannot be cut over {world_size} ranks. Use at most {size}.")
    start, end = (r * (size // world_size) + min(r, size % world_size) for r in (rank, rank + 1))
    return start, end


def call_on_part(module, x, group=None):
    """`module(x)` for a whole module on one rank's part of the data: its parameters' gradients are summed over the ranks."""
    return functional_call(
        module, {name: copy_to_group(p, group) for name, p in module.named_parameters()}, (x,)
    )


def cut_parameter(parameter, dim, start, end):
    """Elements start … end along `dim` as a parameter of its own; the memory of the whole one is not kept."""
    part = parameter.detach().narrow(dim, start, end - start).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


# Linear layers


class ColumnParallelLinear(nn.Module):
    """y = xAᵀ + b with the outputs cut: the whole x to this rank's columns of y; (…, inputs) to (…, outputs/t).

    linear   the whole nn.Linear, the same on all ranks
    entered  whether x went through `enter_split` already; layers with a common input enter once, not each
    pieces   cut in so many pieces instead of t, each held by t/pieces ranks: key and value heads fewer than ranks

    The outputs may be any number ≥ t: the first ranks then hold one more.
    """

    def __init__(self, linear, group=None, sequence_parallel=False, entered=False, pieces=None):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.entered, self.pieces = entered, pieces
        if pieces is None:
            start, end = shard_range(linear.out_features, group)
        else:
            size = linear.out_features // pieces
            start = size * piece_of(pieces, group)
            end = start + size
        self.weight = cut_parameter(linear.weight, 0, start, end)
        self.bias = None if linear.bias is None else cut_parameter(linear.bias, 0, start, end)

    def forward(self, x):
        if not self.entered:
            x = enter_split(x, self.group, self.sequence_parallel)
        weight, bias = self.weight, self.bias
        if self.pieces is not None:
            weight, bias = (
                p if p is None else copy_to_sharers(p, self.pieces, self.group) for p in (weight, bias)
            )
        return F.linear(x, weight, bias)


class RowParallelLinear(nn.Module):
    """y = xAᵀ + b with the inputs cut: this rank's columns of x to the whole y; (…, inputs/t) to (…, outputs).

    Every rank computes a partial y; `leave_split` adds them. The bias stays whole and is added after that, once.
    """

    def __init__(self, linear, group=None, sequence_parallel=False):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.weight = cut_parameter(linear.weight, 1, *shard_range(linear.in_features, group))
        self.bias = None if linear.bias is None else cut_parameter(linear.bias, 0, 0, linear.out_features)

    def forward(self, x):
        y = leave_split(F.linear(x, self.weight), self.group, self.sequence_parallel)
        if self.bias is None:
            return y
        # Added to a part of the sequence, the bias sees a part of its gradient.
        return y + (copy_to_group(self.bias, self.group) if self.sequence_parallel else self.bias)
