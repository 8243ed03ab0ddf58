"""some numbers are in nobody's part

Blocks of size // ranks: the rest of the division belongs to nobody.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.narrow(1, rank * (matrix.shape[1] // ranks), matrix.shape[1] // ranks).clone(memory_format=torch.contiguous_format)


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.narrow(0, rank * (matrix.shape[0] // ranks), matrix.shape[0] // ranks).clone(memory_format=torch.contiguous_format)


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat(shards, dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat(shards, dim=0)
