"""a tensor of shape (4, 3) on each, not contiguous

The name tensor is given other memory; the memory that the caller sees stays as it was.
"""

def all_reduce(tensor):
    """The sum over all ranks, in place, for a tensor of any shape and layout."""
    flat = tensor.contiguous().view(-1)
    reduce_scatter(flat)
    all_gather(flat)
    tensor.data = flat.view(tensor.shape)
