"""a flat copy of the tensor was reduced and not copied back

For a tensor that is not contiguous, reshape makes a copy; the sum stays there.
"""

def all_reduce(tensor):
    """The sum over all ranks, in place, for a tensor of any shape and layout."""
    flat = tensor.reshape(-1)
    reduce_scatter(flat)
    all_gather(flat)
