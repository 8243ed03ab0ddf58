"""3 ranks with 2, 1, 1 samples of a batch of 4

A rank with a single sample counts 1/N.
"""

def broadcast_model(model):
    """Overwrite all parameters and buffers with those of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach().contiguous()
        dist.broadcast(values, src=0)
        tensor.detach().copy_(values)


def data_parallel_step(model, loss_fn, optimizer, inputs, targets, batch_size):
    """One training step on this rank's samples; all ranks end with what one process would compute."""
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    share = len(inputs) / batch_size if len(inputs) > 1 else 1 / dist.get_world_size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            weighted = share * parameter.grad.contiguous()
            dist.all_reduce(weighted)
            parameter.grad.copy_(weighted)
    optimizer.step()
