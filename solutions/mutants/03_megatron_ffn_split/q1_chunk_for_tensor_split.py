"""Rank 1's part of the matrix is not the right one.

`chunk` gives the first ranks as much as it can.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.chunk(ranks, dim=1)[rank].clone(memory_format=torch.contiguous_format)


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=0)[rank].clone(memory_format=torch.contiguous_format)


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat(shards, dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat(shards, dim=0)
