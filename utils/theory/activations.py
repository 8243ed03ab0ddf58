"""Bytes of activations that a rank keeps for the backward pass of a transformer.

After Korthikanti et al. 2022 (arXiv 2205.05198): 16-bit activations, one byte for each element of a
dropout mask. The counts follow the tensors, so that they also hold for grouped-query attention, gated
MLPs and models without dropout; for GPT they are the paper's formulas.
"""

from .arguments import divides, one_of, positive, whole_number
from .models import RECOMPUTATIONS

ELEMENT_BYTES, MASK_BYTES = 2, 1


def layer_activation_bytes(
    model, micro_batch, tensor=1, sequence_parallel=False, recomputation="none", context=1
):
    """Bytes that one layer keeps of one micro-batch on one rank.

    For GPT, table 2 of the paper, in units of sbh bytes:
    none 34 + 5as/h; tensor-parallel 10 + 24/t + 5as/(ht); with sequence parallelism (34 + 5as/h)/t;
    selective recomputation drops the 5as/h; full recomputation keeps 2, the layer's input.

    model: a Transformer. micro_batch: b sequences. tensor: t, must divide the heads.
    context: ranks that share the sequence (context parallelism), c; must divide it.
    Raises ValueError for a t that does not divide, or sequence parallelism that t does not allow.
    """
    b = whole_number("micro_batch", micro_batch)
    t = check_tensor(model, tensor)
    one_of("recomputation", recomputation, RECOMPUTATIONS)
    divides("context", whole_number("context", context), "sequence", model.sequence)
    if sequence_parallel:
        divides("tensor", t, "sequence", model.sequence // context)
    tokens = model.sequence // context * b
    if recomputation == "full":
        return ELEMENT_BYTES * tokens * model.hidden

    replicated, split = (sum(part.values()) for part in _bytes_per_token(model, t))
    bytes_per_token = replicated / (t if sequence_parallel else 1) + split / t
    core = 0
    if recomputation == "none":
        core = model.heads * model.sequence * tokens / t * sum(_attention_core_bytes(model).values())
    return tokens * bytes_per_token + core


def layer_activation_terms(model, micro_batch):
    """Bytes that one layer keeps of one micro-batch on one rank, tensor by tensor: a dict from name to bytes.

    They add up to `layer_activation_bytes`. Section 4.1 of the paper has the same list in words. A tensor is called
    after the matrix that makes or keeps it: wq, wk, wv, wo of the attention; w1, w2 and, gated, w3 of the MLP.

    >>> from .presets import MODELS
    >>> gpt = MODELS["gpt3-175b"]
    >>> terms, sbh = layer_activation_terms(gpt, 1), gpt.sequence * gpt.hidden
    >>> terms["output of feed_forward.w1"] / sbh, terms["output of attention.softmax"] / sbh
    (8.0, 32.0)
    """
    tokens = model.sequence * whole_number("micro_batch", micro_batch)
    replicated, split = _bytes_per_token(model)
    scores = {
        name: model.heads * model.sequence * n_bytes for name, n_bytes in _attention_core_bytes(model).items()
    }
    return {name: tokens * n_bytes for name, n_bytes in {**replicated, **split, **scores}.items()}


def attention_core_share(model):
    """5as/h for GPT: the attention core's bytes beside the 34 of the rest, both per sbh bytes.

    >>> from .presets import MODELS
    >>> attention_core_share(MODELS["gpt3-175b"])
    80.0
    """
    return sum(_attention_core_bytes(model).values()) * model.heads * model.sequence / model.hidden


def interleaving_factor(pipeline, chunks):
    """How much more the first stage keeps under interleaved 1F1B: 1 + (p − 1)/(pv); 1 when v = 1.

    Korthikanti et al. 2022, section 4.2.3, where v is written m.
    """
    p, v = whole_number("pipeline", pipeline), whole_number("chunks", chunks)
    return 1 + (p - 1) / (p * v) if v > 1 else 1


def first_stage_activation_bytes(
    model,
    micro_batch,
    tensor=1,
    pipeline=1,
    chunks=1,
    sequence_parallel=False,
    recomputation="none",
    extras=False,
):
    """Bytes of activations on the first stage's ranks under 1F1B or, with chunks > 1, interleaved 1F1B.

    p micro-batches of L/p layers are in flight there, L layers' worth, eq. (5), times the interleaving
    factor. extras: adds what section 4.3 counts outside the layers, see `extra_activation_bytes`.
    """
    each = layer_activation_bytes(model, micro_batch, tensor, sequence_parallel, recomputation)
    total = model.layers * each * interleaving_factor(pipeline, chunks)
    return total + (extra_activation_bytes(model, micro_batch, tensor, pipeline) if extras else 0)


def extra_activation_bytes(model, micro_batch, tensor=1, pipeline=1):
    """Bytes outside the layers on the first stage, all split t ways: sbh/t · (p + 4(1 + V/h) when p = 1).

    The embedding's dropout mask for p micro-batches; without pipeline also the final norm's and the
    head's input, 2 bytes each, and the logits in fp32. Section 4.3.
    """
    tokens_hidden = model.sequence * whole_number("micro_batch", micro_batch) * model.hidden
    t, p = check_tensor(model, tensor), whole_number("pipeline", pipeline)
    last = 4 * (1 + model.vocab / model.hidden) if p == 1 else 0
    return tokens_hidden / t * (p + last)


def saved_output_bytes(model, micro_batch, pipeline):
    """Bytes that a first stage saves by freeing each output once it is sent: sbhp elements of 2 bytes.

    Korthikanti et al. 2022, appendix B: 2.73 for the 530B model, printed as GB; it is GiB.
    """
    tokens = model.sequence * whole_number("micro_batch", micro_batch)
    return ELEMENT_BYTES * tokens * model.hidden * whole_number("pipeline", pipeline)


def zero_style_activation_elements(model, batch):
    """Elements of activations by ZeRO's rule of thumb, 12 · h · B · s · L (arXiv 1910.02054, section 3.2)."""
    return 12 * model.hidden * whole_number("batch", batch) * model.sequence * model.layers


def best_checkpoints(layers, layer_input_bytes, layer_inner_bytes):
    """Number of checkpoints c that minimises c·A_in + (L/c)·A_inner: √(L·A_inner/A_in), not rounded.

    Narayanan et al. 2021, section 3.5.
    """
    whole_number("layers", layers)
    return (
        layers
        * positive("layer_inner_bytes", layer_inner_bytes)
        / positive("layer_input_bytes", layer_input_bytes)
    ) ** 0.5


def gpipe_activation_units(batch, micro_batches, layers, pipeline, recompute=True):
    """GPipe's peak of activations, in layers × samples: N + (L/K)(N/M), or N·L without recomputation.

    arXiv 1811.06965, section 2.3 (an order of growth, not bytes).
    """
    whole_number("batch", batch)
    whole_number("micro_batches", micro_batches)
    whole_number("layers", layers)
    if not recompute:
        return batch * layers
    whole_number("pipeline", pipeline)
    return batch + layers / pipeline * batch / micro_batches


def check_tensor(model, tensor):
    """Return t, or raise ValueError when the model cannot be cut in t: heads and the MLP must divide.

    Key and value heads fewer than t are allowed: they are replicated.
    """
    t = whole_number("tensor", tensor)
    divides("tensor", t, "heads", model.heads)
    divides("tensor", t, "ffn", model.ffn)
    if model.kv_heads % t and t % model.kv_heads:
        raise ValueError(
            f"tensor must divide kv_heads or be a multiple of it, but tensor = {t} and "
            f"kv_heads = {model.kv_heads}."
        )
    return t


def _bytes_per_token(model, tensor=1):
    """Bytes per token outside the attention core, by tensor: what tensor parallelism replicates, and the rest."""
    h, ffn = ELEMENT_BYTES * model.hidden, ELEMENT_BYTES * model.ffn * model.experts_per_token
    # A rank needs one whole key head even when there are fewer of them than ranks.
    kv = ELEMENT_BYTES * max(model.kv_hidden, tensor * model.hidden // model.heads)
    replicated = {
        "input of attention_norm": h,
        "input of attention.wq": h,  # and of wk and wv
        "input of ffn_norm": h,
        "input of feed_forward.w1": h,  # and of w3
    }
    if model.gpt_style:
        replicated["mask of dropout"] = 2 * model.hidden * MASK_BYTES
    split = {
        "output of attention.wq": h,
        "output of attention.wk": kv,
        "output of attention.wv": kv,
        "input of attention.wo": h,
        "output of feed_forward.w1": ffn,
        "input of feed_forward.w2": ffn,
    }
    if model.mlp_matrices == 3:
        split["output of feed_forward.w3"] = ffn
    return replicated, split


def _attention_core_bytes(model):
    """Bytes per score, by tensor: the softmax's output, and with dropout its mask and its result: 5 for GPT."""
    core = {"output of attention.softmax": ELEMENT_BYTES}
    if model.gpt_style:
        core |= {"mask of attention.dropout": MASK_BYTES, "output of attention.dropout": ELEMENT_BYTES}
    return core
