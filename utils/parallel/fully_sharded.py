"""PyTorch's own ZeRO, `fully_shard` (FSDP2), applied to a model of this course, for comparison with the hand-written one."""


def shard_with_torch(model, reshard_after_forward=True, cpu_offload=False, mixed=False, blocks=None, mesh=None):
    """Call `fully_shard` on each block and then on the model, and return the model.

    reshard_after_forward  True is ZeRO-3; False keeps what forward gathered until backward, which sends as much as ZeRO-2
    cpu_offload            shards, gradients and optimizer state live in main memory (CPUOffloadPolicy)
    mixed                  compute and reduce in bf16; the shards stay in their own dtype
    blocks                 submodules that are gathered together; by default the entries of `model.layers`
    """
    raise NotImplementedError


def whole_state(model):
    """Every parameter of a sharded model whole, by name. Every rank must call it."""
    raise NotImplementedError
