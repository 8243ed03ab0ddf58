"""The loss must be a number, not a Tensor

The loss is a tensor with one number.
"""

def run_schedule(actions, stage, loss_fn, boundary, inputs, targets):
    """Do this rank's actions; add the gradients of the mean loss; return it on the last rank, None elsewhere."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    micro_batches = sum(kind == "F" for kind, _ in actions)
    waiting, sends, losses = {}, [], []

    def send(tensor, to, tag):
        sends.append((dist.isend(tensor, to, tag=tag), tensor))

    def receive(source, tag):
        tensor = torch.empty_like(boundary)
        dist.recv(tensor, source, tag=tag)
        return tensor

    for kind, i in actions:
        if kind == "F":
            x = inputs[i] if rank == 0 else receive(rank - 1, 2 * i).requires_grad_()
            out = stage(x)
            if rank == last:
                out = loss_fn(out, targets[i]) / micro_batches
                losses.append(out.detach())
            else:
                send(out.detach(), rank + 1, 2 * i)
            waiting[i] = x, out
        else:
            x, out = waiting.pop(i)
            out.backward(None if rank == last else receive(rank + 1, 2 * i + 1))
            if rank > 0:
                send(x.grad, rank - 1, 2 * i + 1)
    for handle, _ in sends:
        handle.wait()
    return sum(losses) if rank == last else None
