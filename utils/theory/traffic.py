"""What each kind of parallelism sends: elements or bytes per rank, layer, micro-batch or step.

The collectives' own volumes are in `collectives`; here is how many of them, and of what size.
"""

from .arguments import divides, one_of, positive, whole_number
from .memory import STAGES
from .models import RECOMPUTATIONS


def zero_elements_per_step(parameters, stage, world_size=None, micro_batches=1):
    """Elements that a rank sends in one optimizer step under a ZeRO stage.

    Stages 0 and 1 reduce and gather once: 2Ψ. Stage 2 reduces the gradients of every micro-batch (else it
    would have to keep them whole) and gathers once: (m + 1)Ψ. Stage 3 gathers the parameters for forward
    and again for backward and reduces the gradients, in every micro-batch: 3mΨ.

    world_size: None gives the paper's large-N form (arXiv 1910.02054, section 7); a number, the exact one
        with its factor (N − 1)/N.
    """
    one_of("stage", stage, STAGES)
    m = whole_number("micro_batches", micro_batches)
    share = 1 if world_size is None else 1 - 1 / whole_number("world_size", world_size)
    return {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[stage] * positive("parameters", parameters) * share


def fsdp_cross_host_bytes(strategy, model_bytes, world_size, gpus_per_host):
    """Bytes per GPU between hosts in one step (PyTorch FSDP, arXiv 2304.11277, section 3.2.2).

    replicate    2M(W − 1)/W
    full shard   3M(W − 1)/W
    hybrid       2M(W − 1)/(GW): sharded inside a host of G GPUs, replicated across
    """
    w, g = whole_number("world_size", world_size), whole_number("gpus_per_host", gpus_per_host)
    factors = {"replicate": 2, "full shard": 3, "hybrid": 2 / g}
    return (
        factors[one_of("strategy", strategy, tuple(factors))]
        * positive("model_bytes", model_bytes)
        * (w - 1)
        / w
    )


def tensor_all_reduces_per_layer(recomputation="none"):
    """All-reduces of bsh elements per layer and micro-batch: 2 forward, 2 backward, 2 recomputing."""
    return 6 if one_of("recomputation", recomputation, RECOMPUTATIONS) == "full" else 4


def tensor_elements_per_layer(model, micro_batch, tensor, recomputation="none"):
    """Elements that a rank sends per layer and micro-batch: 8bsh(t − 1)/t (Narayanan et al. 2021, 3.2).

    Sequence parallelism sends the same: each all-reduce becomes a reduce-scatter and an all-gather.
    """
    t = whole_number("tensor", tensor)
    tokens = whole_number("micro_batch", micro_batch) * model.sequence
    return tensor_all_reduces_per_layer(recomputation) * 2 * (t - 1) / t * tokens * model.hidden


def vocabulary_loss_elements(model, micro_batch, parallel=True):
    """Elements per rank in the loss over a split vocabulary: bs if sums are exchanged, bsV if logits."""
    tokens = whole_number("micro_batch", micro_batch) * model.sequence
    return tokens * (1 if parallel else model.vocab)


def pipeline_elements_per_boundary(model, micro_batch, tensor=1, scatter_gather=False):
    """Elements over a stage boundary in one direction, per micro-batch and rank: bsh, or bsh/t scattered."""
    elements = whole_number("micro_batch", micro_batch) * model.sequence * model.hidden
    whole_number("tensor", tensor)
    return elements / tensor if scatter_gather else elements


def ulysses_elements_per_layer(model, micro_batch, ranks):
    """Elements that a rank sends per layer, forward: 4sh/P · (P − 1)/P (DeepSpeed-Ulysses, arXiv 2309.14509).

    All-to-alls of the queries, keys, values and the output; keys and values are narrower with grouped-query
    attention. The paper drops (P − 1)/P. P must divide the heads.
    """
    n = whole_number("ranks", ranks)
    divides("ranks", n, "heads", model.heads)
    widths = 2 * model.hidden + 2 * model.kv_hidden
    return whole_number("micro_batch", micro_batch) * model.sequence * widths * (n - 1) / n**2


def megatron_sp_elements_per_layer(model, micro_batch, ranks):
    """Elements that a rank sends per layer, forward, in Megatron's sequence parallelism: 4bsh(P − 1)/P."""
    n = whole_number("ranks", ranks)
    return 4 * whole_number("micro_batch", micro_batch) * model.sequence * model.hidden * (n - 1) / n


def context_elements_per_layer(model, micro_batch, context):
    """Elements that a rank sends per layer, forward, so that all see all keys and values: 2bs·h_kv(c − 1)/c.

    The same for Llama 3's all-gather and for a ring of key-value blocks (Ring Attention).
    """
    c = whole_number("context", context)
    return 2 * whole_number("micro_batch", micro_batch) * model.sequence * model.kv_hidden * (c - 1) / c


def ring_attention_min_block(flops_per_second, bytes_per_second):
    """Tokens per block from which ring attention hides its transfers: c ≥ F/B (arXiv 2310.01889, section 3).

    A sequence must have 6 such blocks per device.
    """
    return positive("flops_per_second", flops_per_second) / positive("bytes_per_second", bytes_per_second)


def expert_capacity(tokens, experts, capacity_factor=1.0):
    """Tokens that each expert takes: tokens / experts · capacity factor (Switch, arXiv 2101.03961, eq. 3)."""
    return (
        whole_number("tokens", tokens)
        / whole_number("experts", experts)
        * positive("capacity_factor", capacity_factor)
    )


def expert_elements_per_layer(model, micro_batch, expert, capacity_factor=1.0):
    """Elements that a rank sends per mixture layer, forward: two all-to-alls of (e − 1)/e · b·s·k·CF·h.

    As many again in the backward pass.
    """
    e = whole_number("expert", expert)
    tokens = whole_number("micro_batch", micro_batch) * model.sequence * model.experts_per_token
    return 2 * (e - 1) / e * tokens * positive("capacity_factor", capacity_factor) * model.hidden
