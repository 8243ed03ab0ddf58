"""Tensor parallelism: every layer of the model, cut over the ranks of a group (Shoeybi et al. 2019, arXiv 1909.08053).

A parallel layer is built from a whole one and keeps its own part of the whole one's weights, under the same names.
So any number of ranks t gives the same model, and a checkpoint is cut as the weights are. The rule of the cuts:
columns first, rows second. Then the two matrices of an MLP, or the four of attention, need one exchange before
them and one after, and nothing between.

What costs what, forward and backward of a block on x (b, s, h): two all-reduces of b·s·h elements each way. With
`sequence_parallel` (Korthikanti et al. 2022, arXiv 2205.05198) norms and dropout work on (b, s/t, h), and each all-reduce
becomes a reduce-scatter and an all-gather. The gathered input of a split layer is kept for backward; Megatron keeps
the part and gathers again, which costs one more all-gather.

Each rank passes the same tokens and ends with the same loss; with data parallelism that means: the same within `group`.
"""

from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from utils.parallel.model import Dropout, activate, attend, positions
from utils.parallel.tensor_ops import (
    copy_to_group,
    copy_to_sharers,
    gather_from_parts,
    piece_of,
    rank_randomness,
    reduce_from_group,
    reduce_scatter_to_parts,
)
from utils.theory.activations import check_tensor

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
        self.weight = _cut(linear.weight, 0, start, end)
        self.bias = None if linear.bias is None else _cut(linear.bias, 0, start, end)

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
        self.weight = _cut(linear.weight, 1, *shard_range(linear.in_features, group))
        self.bias = None if linear.bias is None else _cut(linear.bias, 0, 0, linear.out_features)

    def forward(self, x):
        y = leave_split(F.linear(x, self.weight), self.group, self.sequence_parallel)
        if self.bias is None:
            return y
        # Added to a part of the sequence, the bias sees a part of its gradient.
        return y + (copy_to_group(self.bias, self.group) if self.sequence_parallel else self.bias)


# The vocabulary


class VocabParallelEmbedding(nn.Module):
    """Token ids (b, s) to vectors (b, s, h); each rank holds its rows of the table and gives zeros for other tokens.

    Sum over the ranks is the look-up. V may be any number ≥ t. Raises IndexError for an id outside 0 … V − 1, which no
    rank would hold.
    """

    def __init__(self, embedding, group=None, sequence_parallel=False):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.vocab = embedding.num_embeddings
        self.start, self.end = shard_range(self.vocab, group)
        self.weight = _cut(embedding.weight, 0, self.start, self.end)

    def forward(self, tokens):
        _check_ids("A token id", tokens, self.vocab)
        elsewhere = (tokens < self.start) | (tokens >= self.end)
        rows = F.embedding((tokens - self.start).masked_fill(elsewhere, 0), self.weight)
        return leave_split(
            rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group, self.sequence_parallel
        )


def vocab_parallel_cross_entropy(logits, targets, vocab, group=None, reduction="mean", ignore_index=-100):
    """F.cross_entropy of logits that are cut along the vocabulary; no rank ever holds them whole.

    logits        (…, V_r), this rank's columns, as `shard_range(vocab)` cuts them
    targets       (…), the same on all ranks; positions with `ignore_index` do not count
    vocab         V, the size of the whole vocabulary
    reduction     "mean" (over the targets that count), "sum" or "none"

    The ranks exchange three numbers per token: the maximum, the sum of exponentials and the target's logit. Half
    precision is computed in fp32. Raises IndexError for a target outside 0 … V − 1, ValueError for other shapes.
    """
    start, end = shard_range(vocab, group)
    if logits.shape != (*targets.shape, end - start):
        raise ValueError(
            f"Of {vocab} words this rank holds {end - start}, so that targets of shape {tuple(targets.shape)} need logits "
            f"of shape {(*targets.shape, end - start)}, but {tuple(logits.shape)} was given."
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", but {reduction!r} was given.')
    counts = targets != ignore_index
    _check_ids("A target", targets[counts], vocab)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()

    maximum = logits.detach().amax(-1)
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - maximum.unsqueeze(-1)
    total = reduce_from_group(shifted.exp().sum(-1), group)
    elsewhere = (targets < start) | (targets >= end)
    column = (targets - start).masked_fill(elsewhere, 0)
    here = shifted.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    target_logit = reduce_from_group(here, group)

    losses = (total.log() - target_logit).masked_fill(~counts, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()


def _check_ids(what, ids, vocab):
    wrong = ids[(ids < 0) | (ids >= vocab)]
    if len(wrong):
        raise IndexError(f"{what} is between 0 and {vocab - 1}, but {int(wrong[0])} was given.")


# Layers of the model


class ParallelMLP(nn.Module):
    """`model.MLP` with w1 (and w3) cut by columns and w2 by rows: one exchange before, one after."""

    def __init__(self, mlp, group=None, sequence_parallel=False):
        super().__init__()
        check_tensor(mlp.config, dist.get_world_size(group))
        self.config, self.group, self.sequence_parallel = mlp.config, group, sequence_parallel
        self.w1 = ColumnParallelLinear(mlp.w1, group, entered=True)
        self.w2 = RowParallelLinear(mlp.w2, group, sequence_parallel)
        self.w3 = None if mlp.w3 is None else ColumnParallelLinear(mlp.w3, group, entered=True)

    def forward(self, x):
        return self.w2(activate(self, enter_split(x, self.group, self.sequence_parallel)))


class ParallelAttention(nn.Module):
    """`model.Attention` with whole heads per rank: wq, wk, wv cut by columns, wo by rows.

    t must divide the query heads. With fewer key and value heads than ranks (a divisor of t), each of them is on
    several ranks, whose gradients are summed. Raises ValueError for other numbers, see `check_tensor`.
    """

    def __init__(self, attention, group=None, sequence_parallel=False):
        super().__init__()
        config, world_size = attention.config, dist.get_world_size(group)
        check_tensor(config, world_size)
        self.config, self.fused = config, attention.fused
        self.group, self.sequence_parallel = group, sequence_parallel
        pieces = config.kv_heads if config.kv_heads < world_size else None
        self.wq = ColumnParallelLinear(attention.wq, group, entered=True)
        self.wk = ColumnParallelLinear(attention.wk, group, entered=True, pieces=pieces)
        self.wv = ColumnParallelLinear(attention.wv, group, entered=True, pieces=pieces)
        self.wo = RowParallelLinear(attention.wo, group, sequence_parallel)
        self.dropout = SplitDropout(attention.dropout.p, group)

    def forward(self, x):
        return self.wo(attend(self, enter_split(x, self.group, self.sequence_parallel)))


class SplitDropout(Dropout):
    """Dropout of a part: every rank draws its own mask."""

    def __init__(self, p, group=None):
        super().__init__(p)
        self.group = group

    def forward(self, x):
        if not (self.training and self.p > 0):
            return x
        with rank_randomness(self.group, x.device):
            return super().forward(x)


class ParallelBlock(nn.Module):
    """`model.Block`, cut: (b, s, h) to (b, s, h) on every rank, or (b, s/t, h) with `sequence_parallel`."""

    def __init__(self, block, group=None, sequence_parallel=False):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.attention_norm, self.ffn_norm = deepcopy(block.attention_norm), deepcopy(block.ffn_norm)
        self.attention = ParallelAttention(block.attention, group, sequence_parallel)
        self.feed_forward = ParallelMLP(block.feed_forward, group, sequence_parallel)
        self.dropout = SplitDropout(block.dropout.p, group) if sequence_parallel else block.dropout

    def forward(self, x):
        x = x + self.dropout(self.attention(self._whole(self.attention_norm, x)))
        return x + self.dropout(self.feed_forward(self._whole(self.ffn_norm, x)))

    def _whole(self, norm, x):
        return call_on_part(norm, x, self.group) if self.sequence_parallel else norm(x)


class ParallelLanguageModel(nn.Module):
    """`model.LanguageModel`, cut over `group`: tokens (b, s) to this rank's columns of the logits, (b, s, V_r).

    model              the whole model, the same on all ranks (same seed); it is copied from, and can be let go
    sequence_parallel  also cut what lies between the split layers along the sequence; t must divide s

    A tied head stays tied: both ends use the same rows of the vocabulary. Raises ValueError for a t that does not fit.
    """

    def __init__(self, model, group=None, sequence_parallel=False):
        super().__init__()
        self.config, self.group, self.sequence_parallel = model.config, group, sequence_parallel
        self.tok_embeddings = VocabParallelEmbedding(model.tok_embeddings, group, sequence_parallel)
        self.pos_embeddings = deepcopy(model.pos_embeddings)
        self.dropout = SplitDropout(model.dropout.p, group) if sequence_parallel else model.dropout
        self.layers = nn.ModuleList(ParallelBlock(block, group, sequence_parallel) for block in model.layers)
        self.norm = deepcopy(model.norm)
        self.output = ColumnParallelLinear(model.output, group, sequence_parallel)
        if model.output.weight is model.tok_embeddings.weight:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        if self.pos_embeddings is not None:
            x = x + self._positions(tokens)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        x = call_on_part(self.norm, x, self.group) if self.sequence_parallel else self.norm(x)
        return self.output(x)

    def loss(self, tokens, targets):
        """Mean cross-entropy, the same on all ranks; a target of −100 does not count."""
        return vocab_parallel_cross_entropy(self(tokens), targets, self.config.vocab, self.group)

    def _positions(self, tokens):
        numbers = positions(tokens, self.config)
        if not self.sequence_parallel:
            return self.pos_embeddings(numbers)
        mine = slice(*shard_range(len(numbers), self.group))
        return call_on_part(self.pos_embeddings, numbers[mine], self.group)


def _cut(parameter, dim, start, end):
    """Elements start … end along `dim` as a parameter of its own; the memory of the whole one is not kept."""
    part = parameter.detach().narrow(dim, start, end - start).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)
