"""saved_bytes left gradients behind

Runs backward, which is no business of a counter.
"""

def saved_bytes(forward, exclude):
    """Bytes that autograd keeps for the backward pass of `forward()`, without the memory of the tensors in `exclude`."""
    left_out = {tensor.untyped_storage().data_ptr() for tensor in exclude}
    memory = {}

    def look(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            memory[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        forward().sum().backward()
    return sum(storage.nbytes() for storage in memory.values())


def layer_activation_bytes(sequence, micro_batch, hidden, heads, recomputation="none"):
    """Bytes that one GPT layer keeps in 16 bits, after Korthikanti et al. 2022."""
    sbh = sequence * micro_batch * hidden
    if recomputation == "full":
        return 2 * sbh
    core = 5 * heads * sequence**2 * micro_batch if recomputation == "none" else 0
    return 34 * sbh + core
