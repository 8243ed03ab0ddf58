"""NaN is what stood there before

What comes is added, as in reduce-scatter.
"""

def all_gather(tensor):
    """Hand the chunks round, in place: at first rank r has chunk (r + 1) mod N, in the end everybody has all."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank + 1 - step) % world_size], (rank + 1) % world_size)
        received = torch.empty_like(chunks[(rank - step) % world_size])
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        chunks[(rank - step) % world_size].add_(received)
