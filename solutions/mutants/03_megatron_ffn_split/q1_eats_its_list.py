"""Your function changed the list of shards

The list of shards is empty afterwards.
"""

def column_shard(matrix, rank, ranks):
    """This rank's block of columns, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=1)[rank].clone(memory_format=torch.contiguous_format)


def row_shard(matrix, rank, ranks):
    """This rank's block of rows, contiguous and in memory of its own."""
    return matrix.tensor_split(ranks, dim=0)[rank].clone(memory_format=torch.contiguous_format)


def join_columns(shards):
    """The whole matrix from all blocks of columns."""
    return torch.cat([shards.pop(0) for _ in range(len(shards))], dim=1)


def join_rows(shards):
    """The whole matrix from all blocks of rows."""
    return torch.cat(shards, dim=0)
