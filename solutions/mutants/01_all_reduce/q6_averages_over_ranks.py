"""the sum was divided by 4 ranks, but only 3 of them are workers

The server counts itself.
"""

def server_round(weights, gradient, learning_rate):
    """One round with rank 0 as the server: weights out, gradients in, one update in place."""
    workers = range(1, dist.get_world_size())
    if dist.get_rank() != 0:
        dist.recv(weights, src=0)
        dist.send(gradient(weights), dst=0)
        return
    for worker in workers:
        dist.send(weights, dst=worker)
    total, received = torch.zeros_like(weights), torch.empty_like(weights)
    for worker in workers:
        dist.recv(received, src=worker)
        total += received
    weights -= learning_rate * total / dist.get_world_size()


def elements_through_server(parameters, workers):
    """Elements that the server sends and receives in one round."""
    return 2 * workers * parameters


def elements_through_ring_rank(parameters, ranks):
    """Elements that one rank sends and receives in a ring all-reduce."""
    return 4 * parameters * (ranks - 1) // ranks
