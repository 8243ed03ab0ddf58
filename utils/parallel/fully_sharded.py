"""PyTorch's own ZeRO, `fully_shard` (FSDP2), on a model of the course, to compare the hand-written stages with.

>>> model = shard_with_torch(LanguageModel(shape))                   # doctest: +SKIP
>>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)       # doctest: +SKIP

It averages gradients over the ranks by itself, so each rank's loss is the mean over its own samples and the parts must
be of equal size. A parameter without a gradient is left out of the step, weight decay included.
"""

import torch

from utils.parallel.zero_shards import default_blocks


def shard_with_torch(
    model, reshard_after_forward=True, cpu_offload=False, mixed=False, blocks=None, mesh=None
):
    """Call `fully_shard` on each block and then on the model, and return the model; every rank calls it.

    reshard_after_forward  True is ZeRO-3: 3Ψ sent. False keeps what forward gathered until backward has used it: 2Ψ sent
                           as in ZeRO-2, and all weights whole in between
    cpu_offload            shards, gradients and the optimizer's state stay in main memory (`CPUOffloadPolicy`)
    mixed                  gather, compute and reduce in bf16; the shards keep their own dtype
    blocks                 submodules that are gathered together; by default those that `Zero3` would take
    mesh                   a one-dimensional mesh of the ranks; by default all of them
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    options = dict(
        mesh=mesh,
        reshard_after_forward=reshard_after_forward,
        mp_policy=bf16 if mixed else MixedPrecisionPolicy(),
        # Pinned memory is for copies to a GPU, and needs one.
        offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy(),
    )
    for block in default_blocks(model) if blocks is None else blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def whole_state(model):
    """Every entry of a sharded model's state whole, by name: copies. All ranks must call it, since it gathers."""
    return {
        name: getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)().detach().clone()
        for name, tensor in model.state_dict().items()
    }
