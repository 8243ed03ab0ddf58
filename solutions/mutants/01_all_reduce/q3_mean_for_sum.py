"""Rank 0 does not end with the sum: element

An all-reduce sums; the division belongs to whoever wants a mean.
"""

def all_reduce(tensor):
    """The sum over all ranks, in place, for a tensor of any shape and layout."""
    flat = tensor.contiguous().view(-1)
    reduce_scatter(flat)
    all_gather(flat)
    tensor.copy_(flat.view(tensor.shape) / dist.get_world_size())
