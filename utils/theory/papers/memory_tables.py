"""Memory by other sources: the Ultra-Scale Playbook, DeepSpeed's estimators, FSDP's traffic."""

from ..memory import as_gib, training_state_bytes, zero2_offload, zero3_offload
from ..traffic import fsdp_cross_host_bytes
from ..units import GB
from .tables import Table, exact, read_table

T5_3B, LARGEST_LAYER = 2851e6, 32e6


def playbook():
    """16 and 20 bytes per parameter."""
    cells = []
    for row in read_table("playbook_memory"):
        parameters = float(row["params"].removesuffix("B")) * 1e9
        for column, recipe in (
            ("no_fp32_grad_GB", "mixed adam"),
            ("fp32_grad_acc_GB", "mixed adam, both gradients"),
        ):
            n_bytes = training_state_bytes(parameters, recipe)
            cells.append(exact(f"{row['params']} {recipe}", row[column], n_bytes / GB))
    return Table("Ultra-Scale Playbook", "training state", "exact", tuple(cells))


def deepspeed():
    """The estimators' own example, T5-3B on one node of 8 GPUs; printed in GiB."""
    whole = zero2_offload(T5_3B, 8, cpu_optimizer=False)
    offloaded = zero2_offload(T5_3B, 8)
    everything = zero3_offload(T5_3B, LARGEST_LAYER, 8)
    on_gpu = zero3_offload(T5_3B, LARGEST_LAYER, 8, offload_parameters=False, offload_optimizer=False)
    cells = (
        exact("ZeRO-2, GPU", "15.93", as_gib(whole.gpu_bytes)),
        exact("ZeRO-2 offload, GPU", "5.31", as_gib(offloaded.gpu_bytes)),
        exact("ZeRO-2 offload, CPU", "127.45", as_gib(offloaded.cpu_bytes)),
        exact("ZeRO-3, GPU", "6.09", as_gib(on_gpu.gpu_bytes)),
        exact("ZeRO-3 all offloaded, GPU", "0.12", as_gib(everything.gpu_bytes)),
    )
    rule = "rounded half up, from 2851M parameters with 32M in the largest layer"
    return Table("DeepSpeed", "memory estimators", rule, cells)


def fsdp():
    """Section 3.2.2: cross-host traffic in units of the model, W = 64 ranks, G = 8 per host."""
    printed = {"replicate": "1.96875", "full shard": "2.953125", "hybrid": "0.24609375"}
    cells = tuple(exact(name, text, fsdp_cross_host_bytes(name, 1, 64, 8)) for name, text in printed.items())
    return Table("FSDP", "section 3.2.2", "formulas with W = 64 and G = 8, exact", cells)


TABLES = (playbook, deepspeed, fsdp)
