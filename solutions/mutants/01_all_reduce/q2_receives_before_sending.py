"""all wait in recv, and nobody sends

Every rank receives first.
"""

def all_gather(tensor):
    """Hand the chunks round, in place: at first rank r has chunk (r + 1) mod N, in the end everybody has all."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        dist.recv(chunks[(rank - step) % world_size], (rank - 1) % world_size)
        dist.send(chunks[(rank + 1 - step) % world_size], (rank + 1) % world_size)
