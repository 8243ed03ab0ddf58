"""is not contiguous: it is a view

The clone of a part of a transposed matrix is transposed, too.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=1)[rank].clone()


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=0)[rank].clone()


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat(shards, dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat(shards, dim=0)
