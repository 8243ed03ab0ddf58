"""Rank 0 made too many calls in forward: 2 where 1 would do

The mean of what is equal everywhere already: right, and twice the traffic.
"""

def mlp_shards(a, bias_a, b, bias_b, rank, ranks):
    """This rank's parts of a, bias_a, b and bias_b."""
    return (
        a.tensor_split(ranks, dim=1)[rank],
        bias_a.tensor_split(ranks)[rank],
        b.tensor_split(ranks, dim=0)[rank],
        bias_b,
    )


def parallel_mlp(x, a, bias_a, b, bias_b):
    """y = GeLU(xA + bias_a) B + bias_b from this rank's parts."""
    inner = F.gelu(copy_to_group(x) @ a + bias_a)
    y = reduce_from_group(inner @ b) + bias_b
    same = y.detach().clone()
    dist.all_reduce(same)
    return y
