"""The seconds of one training step, as a sum of named parts.

A roofline for each kind of work: matrix products at a fraction of the chip's peak, everything else at the
memory's bandwidth, messages by the α–β model. The form follows section 3 of Narayanan et al. 2021
(arXiv 2104.04473); what is counted is written beside each part.

`Rates` holds what no data sheet says. Two of its numbers are fitted, `matmul_efficiency` and
`attention_efficiency`, to the ten rows of table 1 of that paper (`papers.narayanan.fit_table_1` does it
again); the others are measurements or round numbers, and their docstring says which. Those rows ran on A100s
with full recomputation and without flash attention. Elsewhere the sum shows where time goes, rather than how
much of it (`papers` prints how far other runs are).
"""

from dataclasses import dataclass

from .activations import check_tensor
from .arguments import divides, fraction, non_negative, whole_number
from .collectives import all_gather_seconds, all_reduce_seconds, all_to_all_seconds, point_to_point_seconds
from .grid import group_link
from .hardware import Link
from .models import hardware_flops, layer_attention_flops, layer_matmul_flops, logits_flops, model_flops
from .pipeline import Costs, bubble_time
from .traffic import context_elements_per_layer, expert_elements_per_layer

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Rates:
    """Shares of the peaks that software reaches.

    matmul_efficiency: weight matrices' products, of the chip's peak. FITTED, see the module.
    attention_efficiency: the attention core's batched products, of the same peak. FITTED on the same rows.
    memory_share: element-wise operations, of the memory's bandwidth; what copy benchmarks usually reach.
    intra_share: collectives inside a server, of the link: an all-reduce over 8 A100s reaches a bus bandwidth
        of 230 of 300 GB/s (traces of vTrain, MICRO 2024).
    inter_share: messages between servers, of the adapter.
    collective_seconds: start of one collective.
    gather_share, exposed_gather_share: ZeRO-3's gathers: the share of the network that they reach, and how
        much of the shorter of computing and gathering the other does not hide.
    """

    matmul_efficiency: float = 0.69
    attention_efficiency: float = 0.36
    memory_share: float = 0.75
    intra_share: float = 230 / 300
    inter_share: float = 0.8
    collective_seconds: float = 20e-6
    gather_share: float = 0.8
    exposed_gather_share: float = 0.3

    def __post_init__(self):
        for name in (
            "matmul_efficiency",
            "attention_efficiency",
            "memory_share",
            "intra_share",
            "inter_share",
        ):
            fraction(name, getattr(self, name))
        fraction("gather_share", self.gather_share)
        non_negative("collective_seconds", self.collective_seconds)
        if non_negative("exposed_gather_share", self.exposed_gather_share) > 1:
            raise ValueError(
                f"exposed_gather_share must be from 0 to 1, but {self.exposed_gather_share!r} was given."
            )


RATES = Rates()


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step on the busiest rank, by part; `parts` adds up to `seconds`.

    gpus, model_flops, hardware_flops: for the rates below; operations of the whole step on all GPUs.
    """

    parts: dict
    gpus: int
    model_flops: float
    hardware_flops: float
    peak_flops_per_second: float

    @property
    def seconds(self):
        return sum(self.parts.values())

    @property
    def flops_per_second_per_gpu(self):
        """Achieved rate per GPU, recomputation counted, as papers print TFLOP/s."""
        return self.hardware_flops / self.seconds / self.gpus

    @property
    def mfu(self):
        """Share of the peak, recomputation not counted."""
        return self.model_flops / self.seconds / self.gpus / self.peak_flops_per_second

    @property
    def hfu(self):
        """Share of the peak, recomputation counted."""
        return self.flops_per_second_per_gpu / self.peak_flops_per_second


def micro_batches(layout, batch):
    """m = B/(d·b), or ValueError when the batch does not divide."""
    per_step = layout.data * layout.micro_batch
    if whole_number("batch", batch) % per_step:
        raise ValueError(
            f"batch must be a multiple of data · micro_batch = {layout.data} · {layout.micro_batch}, "
            f"but {batch} was given."
        )
    return batch // per_step


def layers_per_rank(model, layout):
    """Layers on the fullest rank: L/p, or (L + 2)/p when the first and last stage hold one layer fewer.

    Raises ValueError when neither divides by p·v.
    """
    pieces = layout.pipeline * layout.chunks
    if model.layers % pieces == 0:
        return model.layers // layout.pipeline
    if layout.pipeline > 1 and (model.layers + 2) % pieces == 0:
        return (model.layers + 2) // layout.pipeline
    raise ValueError(
        f"pipeline · chunks must divide layers (or layers + 2, with one layer fewer at both ends), but "
        f"{layout.pipeline} · {layout.chunks} and layers = {model.layers} were given."
    )


def parameters_per_rank(model, layout):
    """Parameters on a rank of the first or the last stage, whichever holds more; layers spread evenly.

    Without pipeline the rank holds embedding and head; with it, a tied head is a second copy.
    """
    t, e = layout.tensor, layout.expert
    layer = (model.layer_parameters - model.mlp_parameters + model.mlp_parameters / e) / t
    parts = model.parameters_by_part()
    ends = parts["embedding"] + parts["positions"] + (parts["head"] if layout.pipeline == 1 else 0)
    return layers_per_rank(model, layout) * layer + ends / t


def step_time(model, cluster, layout, batch, rates=RATES, dtype="bf16"):
    """StepTime of one optimizer step over `batch` sequences.

    model: Transformer. cluster: Cluster with as many GPUs as the layout has ranks. layout: Layout.
    batch: B sequences over all ranks. Raises ValueError for a layout that does not fit the three.
    """
    if layout.world_size > cluster.gpus:
        raise ValueError(
            f"layout must fit the cluster's {cluster.gpus} GPUs, but it has {layout.world_size} ranks."
        )
    check_tensor(model, layout.tensor)
    divides("context", layout.context, "sequence", model.sequence)
    divides("expert", layout.expert, "experts", model.experts)
    m = micro_batches(layout, batch)
    layers = layers_per_rank(model, layout)
    layer = layer_seconds(model, cluster, layout, rates, dtype)
    parts = {f"{name}": m * layers * sum(phases) for name, phases in layer.items()}
    forward, backward_input, backward_weight = (layers * sum(phases) for phases in zip(*layer.values()))
    parts["logits"] = m * logits_seconds(model, cluster, layout, rates, dtype)
    boundary = boundary_seconds(model, cluster, layout, rates)
    parts["pipeline messages"] = m * boundary
    parts["bubble"] = 0.0
    if layout.pipeline > 1:
        costs = Costs(forward, backward_input + boundary, backward_weight)
        parts["bubble"] = bubble_time(layout.schedule, layout.pipeline, m, costs, layout.chunks)
    computing = sum(parts.values())
    last_backward = backward_input + backward_weight
    parts.update(_once_per_step(model, cluster, layout, rates, m, computing, last_backward))
    return StepTime(
        parts,
        layout.world_size,
        model_flops(model, batch),
        hardware_flops(model, batch, layout.recomputation),
        cluster.chip.peak(dtype),
    )


def layer_seconds(model, cluster, layout, rates=RATES, dtype="bf16"):
    """Seconds of a layer and micro-batch on a rank, by part: (forward, backward for input, for weights).

    Recomputation is counted with the backward for the input. The parts:

    matmul        weight products at matmul_efficiency; each backward half costs as much as the forward
    attention     scores and weighted sum at attention_efficiency; no weights
    element-wise  bytes read and written by norms, dropout, residual additions, activation function and
                  softmax, at memory_share of the memory's bandwidth
    tensor all-reduce   2 forward, 2 backward, 2 when all is recomputed (or reduce-scatters and all-gathers)
    context all-gather  keys and values forward, again in backward, and their gradients
    expert all-to-all   out and back in forward, and again in backward
    """
    b, t, c = layout.micro_batch, layout.tensor, layout.context
    again_all = layout.recomputation == "full"
    again_core = layout.recomputation != "none"
    # Flash attention's backward has 5 products to the forward's 2; only "full" runs the forward again.
    core_backward_products = 2.5 + again_all if layout.flash_attention else 2 + again_core
    peak = cluster.chip.peak(dtype)
    matmul = layer_matmul_flops(model, b) / (t * c) / (peak * rates.matmul_efficiency)
    core = layer_attention_flops(model, b) / (t * c) / (peak * rates.attention_efficiency)
    bandwidth = cluster.chip.memory_bytes_per_second * rates.memory_share
    (rest_forward, rest_backward), (core_forward, core_backward) = _element_wise_bytes(model, layout)
    recomputed_bytes = again_all * rest_forward + again_core * core_forward
    parts = {
        "matmul": (matmul, matmul * (1 + again_all), matmul),
        "attention": (core, core * core_backward_products, 0.0),
        "element-wise": (
            (rest_forward + core_forward) / bandwidth,
            (rest_backward + core_backward + recomputed_bytes) / bandwidth,
            0.0,
        ),
    }
    if t > 1:
        n_bytes = ELEMENT_BYTES * b * model.sequence * model.hidden / c
        once = all_reduce_seconds("ring", n_bytes, t, _collective_link(cluster, layout, "tensor", rates))
        once += rates.collective_seconds
        parts["tensor all-reduce"] = (2 * once, (2 + 2 * again_all) * once, 0.0)
    if c > 1:
        n_bytes = ELEMENT_BYTES * context_elements_per_layer(model, b, c) / t * c / (c - 1)
        once = all_gather_seconds("ring", n_bytes, c, _collective_link(cluster, layout, "context", rates))
        once += rates.collective_seconds
        parts["context all-gather"] = (once, 2 * once, 0.0)
    if layout.expert > 1:
        e = layout.expert
        n_bytes = ELEMENT_BYTES * expert_elements_per_layer(model, b, e) / (t * c) * e / (e - 1)
        link = _collective_link(cluster, layout.replace(data=e, expert=1), "data", rates)
        both = all_to_all_seconds(n_bytes, e, link) + 2 * rates.collective_seconds
        parts["expert all-to-all"] = (both, both * (1 + again_all), 0.0)
    return parts


def logits_seconds(model, cluster, layout, rates=RATES, dtype="bf16"):
    """Seconds of the output head and the loss for one micro-batch: 6bshV/t operations and 16bsV/t bytes."""
    b, split = layout.micro_batch, layout.tensor * layout.context
    product = 3 * logits_flops(model, b) / split / (cluster.chip.peak(dtype) * rates.matmul_efficiency)
    n_bytes = 16 * b * model.sequence * model.vocab / split
    return product + n_bytes / (cluster.chip.memory_bytes_per_second * rates.memory_share)


def boundary_seconds(model, cluster, layout, rates=RATES):
    """Seconds of a rank's point-to-point messages for one micro-batch: v forward and v backward, not hidden.

    Each tensor rank sends its 1/t of the b·s·h elements, and the receivers gather them (scatter/gather,
    Narayanan et al. 2021, section 4.1).
    """
    if layout.pipeline == 1:
        return 0.0
    t = layout.tensor
    n_bytes = ELEMENT_BYTES * layout.micro_batch * model.sequence * model.hidden / layout.context
    near = layout.stride("pipeline") < cluster.gpus_per_node
    link = _scaled(cluster.intra, rates.intra_share) if near else _scaled(cluster.inter, rates.inter_share)
    once = point_to_point_seconds(n_bytes / t, link)
    if t > 1:
        gather_link = _collective_link(cluster, layout, "tensor", rates)
        once += all_gather_seconds("ring", n_bytes, t, gather_link) + rates.collective_seconds
    return 2 * layout.chunks * once


def _once_per_step(model, cluster, layout, rates, m, computing, last_backward):
    """Parts of a step outside its micro-batches: gradients, ZeRO's gathers, tied embedding, optimizer.

    computing, last_backward: seconds behind which gathers, and overlapping gradients, can hide.
    """
    parameters = parameters_per_rank(model, layout)
    shards = layout.data * layout.context
    n_bytes = ELEMENT_BYTES * parameters
    parts = {}
    if shards > 1:
        dimension = "data" if layout.data > 1 else "context"
        link = _collective_link(cluster, layout, dimension, rates)
        if layout.zero_stage == 3:
            gathering = m * 3 * all_gather_seconds("ring", n_bytes, shards, _gather_link(link, rates))
            hidden_badly = rates.exposed_gather_share * min(computing, gathering)
            parts["parameter gathers"] = max(0.0, gathering - computing) + hidden_badly
        else:
            # All-reduce = reduce-scatter + all-gather; stage 2 scatters the gradients of every micro-batch.
            times = m + 1 if layout.zero_stage == 2 else 2
            reduction = times * all_gather_seconds("ring", n_bytes, shards, link)
            parts["gradient all-reduce"] = max(0.0, reduction - layout.overlap_gradients * last_backward)
    if layout.pipeline > 1 and model.tied:
        link = _scaled(cluster.inter, rates.inter_share)
        table_bytes = ELEMENT_BYTES * model.vocab * model.hidden / layout.tensor
        parts["embedding all-reduce"] = all_reduce_seconds("ring", table_bytes, 2, link)
    # The optimizer reads and writes master copy and moments, and reads gradients: 48 bytes per parameter.
    owned = parameters / (shards if layout.zero_stage else 1)
    parts["optimizer"] = 48 * owned / (cluster.chip.memory_bytes_per_second * rates.memory_share)
    return parts


def _element_wise_bytes(model, layout):
    """Bytes that element-wise operations move in a layer: (forward, backward) around and in attention.

    Per token and unit of width, 16-bit, forward | backward:
    two norms 8 | 12; dropout and residual addition, twice 14 | 22 (10 | 18 without dropout): replicated over
    the tensor ranks unless sequence parallelism splits them. Split: activation function 2·2 | 3·2 for each
    unit of ffn (twice the reading for a gated one), heads' layouts 2·2·4 | 2·2·4. Attention core, per score:
    softmax 4 | 6, dropout 5 | 5.
    """
    t, b = layout.tensor, layout.micro_batch
    tokens = b * model.sequence / layout.context
    h, dropout = model.hidden, model.gpt_style
    around = (h * (8 + 10 + 4 * dropout), h * (12 + 18 + 4 * dropout))
    ffn = model.ffn * model.experts_per_token * (model.mlp_matrices - 1)
    heads = 2 * ELEMENT_BYTES * (2 * h + 2 * model.kv_hidden)
    inside = (2 * ELEMENT_BYTES * ffn + heads, 3 * ELEMENT_BYTES * ffn + heads)
    replication = 1 / t if layout.sequence_parallel else 1
    rest = tuple(tokens * (outer * replication + inner / t) for outer, inner in zip(around, inside))
    scores = 0 if layout.flash_attention else model.heads * model.sequence * tokens / t
    return rest, (scores * (4 + 5 * dropout), scores * (6 + 5 * dropout))


def _collective_link(cluster, layout, dimension, rates):
    """The link of a group with what collectives reach of it; their start is counted apart."""
    link = group_link(layout, dimension, cluster)
    share = rates.intra_share if link == cluster.intra else rates.inter_share
    return _scaled(Link(0.0, link.bandwidth_bytes_per_second), share)


def _gather_link(link, rates):
    return _scaled(link, rates.gather_share / rates.inter_share)


def _scaled(link, share):
    return Link(link.alpha_seconds, link.bandwidth_bytes_per_second * share)
