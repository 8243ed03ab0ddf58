"""The vocabulary cut over a group of ranks: look-up and loss without whole logits on any rank.

Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from utils.parallel.tensor_linear import cut_parameter, leave_split, shard_range
from utils.parallel.tensor_ops import reduce_from_group


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
        self.weight = cut_parameter(embedding.weight, 0, self.start, self.end)

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
