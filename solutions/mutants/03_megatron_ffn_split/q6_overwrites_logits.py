"""Your function changed the logits or the targets

The padding is written into what was given.
"""

def parallel_embedding(tokens, rows):
    """Vectors (b, s, h) of the tokens (b, s), from a table of which this rank holds `rows`."""
    mine = tokens - dist.get_rank() * len(rows)
    elsewhere = (mine < 0) | (mine >= len(rows))
    found = F.embedding(mine.masked_fill(elsewhere, 0), rows)
    return reduce_from_group(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


def parallel_cross_entropy(logits, targets, vocab):
    """Mean loss over the targets that are not −100; this rank holds `logits` (b, s, columns) of a padded vocabulary."""
    columns = logits.shape[-1]
    first = dist.get_rank() * columns
    logits.data.masked_fill_(first + torch.arange(columns) >= vocab, -torch.inf)

    maximum = logits.detach().amax(-1)
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
    shifted = logits - maximum.unsqueeze(-1)
    total = reduce_from_group(shifted.exp().sum(-1))

    mine = targets - first
    elsewhere = (mine < 0) | (mine >= columns)
    hit = shifted.gather(-1, mine.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1)
    hit = reduce_from_group(hit.masked_fill(elsewhere, 0.0))
    return (total.log() - hit)[targets != -100].mean()
