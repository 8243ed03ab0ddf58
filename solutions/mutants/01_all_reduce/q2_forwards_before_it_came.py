"""Rank 0 does not end with chunk 0, which rank 1 had.

The chunk that leaves is the one that only comes in this step: the counting starts at r instead of r + 1.
"""

def all_gather(tensor):
    """Hand the chunks round, in place: at first rank r has chunk (r + 1) mod N, in the end everybody has all."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size)
        dist.recv(chunks[(rank - 1 - step) % world_size], (rank - 1) % world_size)
        sending.wait()
