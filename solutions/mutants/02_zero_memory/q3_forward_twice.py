"""Not every function of losses was called once

A forward pass too many for each micro-batch.
"""

def zero2_step(blocks, losses, update):
    """One step: gradients are reduced block by block during backward, and only this rank's chunks are kept."""
    shards, missing = [0] * len(blocks), [0] * len(blocks)

    def gradient_is_ready(number):
        missing[number] -= 1
        if missing[number] == 0:
            gradients = flatten([parameter.grad for parameter in blocks[number]])
            for parameter in blocks[number]:
                parameter.grad = None
            shards[number] += ring_reduce_scatter(gradients) / (dist.get_world_size() * len(losses))

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: gradient_is_ready(number))
        for number, block in enumerate(blocks)
        for parameter in block
    ]
    for loss in losses:
        missing[:] = [len(block) for block in blocks]
        loss(); loss().backward()
    for hook in hooks:
        hook.remove()
    for number, block in enumerate(blocks):
        flat = flatten(block)
        update(number, own_chunk(flat), shards[number])
        ring_all_gather(flat)
        for parameter, view in zip(block, views(flat, [p.shape for p in block])):
            parameter.detach().copy_(view)
