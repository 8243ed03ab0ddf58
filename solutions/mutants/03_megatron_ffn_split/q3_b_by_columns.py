"""b is cut by columns, but a rank that has some columns of GeLU(xA) needs those rows of b

Columns twice: the inner numbers would have to be gathered.
"""

def mlp_shards(a, bias_a, b, bias_b, rank, ranks):
    """This rank's parts of a, bias_a, b and bias_b."""
    return (
        a.tensor_split(ranks, dim=1)[rank],
        bias_a.tensor_split(ranks)[rank],
        b.tensor_split(ranks, dim=1)[rank],
        bias_b,
    )


def parallel_mlp(x, a, bias_a, b, bias_b):
    """y = GeLU(xA + bias_a) B + bias_b from this rank's parts."""
    inner = F.gelu(copy_to_group(x) @ a + bias_a)
    return reduce_from_group(inner @ b) + bias_b
