"""Rank 0 sent too much: 24 elements in 3 messages.

Everything goes through rank 0: right sums and equal replicas, but rank 0 sends N − 1 whole tensors.
"""

def all_reduce(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = tensor.contiguous().clone()
    if rank == 0:
        received = torch.empty_like(total)
        for other in range(1, world_size):
            dist.recv(received, other)
            total += received
        for other in range(1, world_size):
            dist.send(total, other)
    else:
        dist.send(total, 0)
        dist.recv(total, 0)
    tensor.copy_(total)
