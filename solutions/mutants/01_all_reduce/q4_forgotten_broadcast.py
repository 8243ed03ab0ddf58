"""After broadcast_model, rank 1's parameter first.weight is not that of rank 0.

Every rank keeps its own initial weights.
"""

def broadcast_model(model):
    """Overwrite all parameters and buffers with those of rank 0."""
    pass


def data_parallel_step(model, loss_fn, optimizer, inputs, targets, batch_size):
    """One training step on this rank's samples; all ranks end with what one process would compute."""
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    share = len(inputs) / batch_size
    for parameter in model.parameters():
        if parameter.grad is not None:
            weighted = share * parameter.grad.contiguous()
            dist.all_reduce(weighted)
            parameter.grad.copy_(weighted)
    optimizer.step()
