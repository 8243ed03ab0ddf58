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

The linear layers are in `tensor_linear`, the vocabulary in `tensor_vocabulary`, the exchanges in `tensor_ops`;
`tensor_plans` gives the same cuts to PyTorch's own tensor parallelism.
"""

from copy import deepcopy

import torch.distributed as dist
from torch import nn

from utils.parallel.model import Dropout, activate, attend, positions
from utils.parallel.tensor_linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    call_on_part,
    enter_split,
    shard_range,
)
from utils.parallel.tensor_ops import rank_randomness
from utils.parallel.tensor_vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
from utils.theory.activations import check_tensor


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
        self.core = attention.core

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
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def embed(self, tokens):
        """What comes before the blocks: tokens (b, s) to (b, s, h), or (b, s/t, h) with `sequence_parallel`."""
        x = self.tok_embeddings(tokens)
        if self.pos_embeddings is not None:
            x = x + _positions_of(self, tokens)
        return self.dropout(x)

    def head(self, x):
        """What comes after the blocks: to this rank's columns of the logits, (b, s, V_r)."""
        x = call_on_part(self.norm, x, self.group) if self.sequence_parallel else self.norm(x)
        return self.output(x)

    def loss(self, tokens, targets):
        """Mean cross-entropy, the same on all ranks; a target of −100 does not count."""
        return vocab_parallel_cross_entropy(self(tokens), targets, self.config.vocab, self.group)


def _positions_of(model, tokens):
    numbers = positions(tokens, model.config)
    if not model.sequence_parallel:
        return model.pos_embeddings(numbers)
    mine = slice(*shard_range(len(numbers), model.group))
    return call_on_part(model.pos_embeddings, numbers[mine], model.group)
