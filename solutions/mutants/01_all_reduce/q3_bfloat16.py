"""right but for the last digits: the numbers are float64, and buffers must be of the same kind

The tensor is reduced in 16 bits.
"""

def all_reduce(tensor):
    """The sum over all ranks, in place, for a tensor of any shape and layout."""
    flat = tensor.contiguous().view(-1).bfloat16()
    reduce_scatter(flat)
    all_gather(flat)
    tensor.copy_(flat.view(tensor.shape))
