"""the numbers are float64, and stay so

The joined matrix has lost half of its digits.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=1)[rank].clone(memory_format=torch.contiguous_format)


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=0)[rank].clone(memory_format=torch.contiguous_format)


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat(shards, dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat([s.float() for s in shards], dim=0)
