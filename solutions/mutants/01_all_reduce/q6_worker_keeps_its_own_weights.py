"""did not receive the weights into its own

The worker takes the gradient at a copy.
"""

def server_round(weights, gradient, learning_rate):
    """One round with rank 0 as the server: weights out, gradients in, one update in place."""
    workers = range(1, dist.get_world_size())
    if dist.get_rank() != 0:
        new = torch.empty_like(weights); dist.recv(new, src=0)
        dist.send(gradient(new), dst=0)
        return
    for worker in workers:
        dist.send(weights, dst=worker)
    total, received = torch.zeros_like(weights), torch.empty_like(weights)
    for worker in workers:
        dist.recv(received, src=worker)
        total += received
    weights -= learning_rate * total / len(workers)


def elements_through_server(parameters, workers):
    """Elements that the server sends and receives in one round."""
    return 2 * workers * parameters


def elements_through_ring_rank(parameters, ranks):
    """Elements that one rank sends and receives in a ring all-reduce."""
    return 4 * parameters * (ranks - 1) // ranks
