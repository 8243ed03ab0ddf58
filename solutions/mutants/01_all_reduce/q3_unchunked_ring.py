"""Ranks 0 and 1 do not end with the same bits: the replicas would drift apart.

Whole tensors travel round the ring; every rank adds in another order, and sends N/2 times too much.
"""

def all_reduce(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = tensor.contiguous().clone()
    passing = total.clone()
    for _ in range(world_size - 1):
        received = torch.empty_like(passing)
        sending = dist.isend(passing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        total += received
        passing = received
    tensor.copy_(total)
