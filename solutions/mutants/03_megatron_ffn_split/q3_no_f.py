"""The gradient of x on rank 0 is that of this rank's part of the work only

Without f each rank sends its own part of the gradient down.
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
    inner = F.gelu(x @ a + bias_a)
    return reduce_from_group(inner @ b) + bias_b
