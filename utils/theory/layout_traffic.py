"""What one rank of a layout sends in one step, by dimension.

The three formulas of lesson 05 in one place: tensor parallelism meets in every layer, pipeline parallelism passes
activations on, data parallelism averages the gradients once.
"""

from .arguments import whole_number
from .pipeline import build
from .throughput import layers_per_rank, micro_batches
from .traffic import (
    pipeline_elements_per_boundary,
    tensor_elements_per_layer,
    vocabulary_loss_elements,
    zero_elements_per_step,
)


def rank_elements(model, layout, batch, pipeline_rank, parameters, scatter_gather=False):
    """Elements that a rank sends in one step: {"tensor": …, "loss": …, "pipeline": …, "data": …}.

    tensor    m · (4L/p + ends) · 2bsh(t − 1)/t; ends: 1 on the rank with the embedding, 1 on the one with the head
    loss      m · 3 · 2bs(t − 1)/t on the rank with the head: over a split vocabulary three numbers per token meet
    pipeline  m · bsh for every stage boundary between this rank and another, in the direction in which it sends
    data      2Ψ_r(d − 1)/d, or what the ZeRO stage sends

    pipeline_rank: the rank's coordinate along the pipeline. parameters: Ψ_r, the parameters that it holds.
    scatter_gather: a boundary's activations are sent in t parts and gathered again behind it.
    Raises ValueError for what is not counted here: context parallelism, experts, DualPipe, and more tensor ranks than
    key-value heads, which exchange the gradients of their copies too.
    """
    _check(model, layout, pipeline_rank)
    m, b, t = micro_batches(layout, batch), layout.micro_batch, layout.tensor
    schedule = build(layout.schedule, layout.pipeline, m, layout.chunks)
    holders = [schedule.rank_of(stage) for stage in range(schedule.stages)]
    boundaries = [pair for pair in zip(holders, holders[1:]) if pair[0] != pair[1]]
    first, last = (holder == pipeline_rank for holder in (holders[0], holders[-1]))
    all_reduce, bsh = 2 * (t - 1) / t, b * model.sequence * model.hidden
    per_layer = tensor_elements_per_layer(model, b, t, layout.recomputation)
    boundary = pipeline_elements_per_boundary(model, b, t, scatter_gather or layout.sequence_parallel)
    return {
        "tensor": m * (layers_per_rank(model, layout) * per_layer + (first + last) * all_reduce * bsh),
        "loss": m * last * 3 * all_reduce * vocabulary_loss_elements(model, b),
        "pipeline": m * sum(pair.count(pipeline_rank) for pair in boundaries) * boundary,
        "data": zero_elements_per_step(parameters, layout.zero_stage, layout.data, m),
    }


def rank_parameters(model, layout, pipeline_rank):
    """Parameters of a rank as `utils.parallel` cuts them: matrices by t, norms and the biases behind a sum whole.

    pipeline_rank: the rank's coordinate along the pipeline. The same layers on every rank; with a pipeline, a tied
    head is a second copy of the embedding. Raises ValueError as `rank_elements` does.
    """
    _check(model, layout, pipeline_rank)
    schedule = build(layout.schedule, layout.pipeline, layout.pipeline, layout.chunks)
    first, last = (schedule.rank_of(stage) == pipeline_rank for stage in (0, schedule.stages - 1))
    parts, t = model.parameters_by_part(), layout.tensor
    whole = 2 * model.norm_parameters + 2 * model.gpt_style * model.hidden
    layer = (model.layer_parameters - whole) / t + whole
    own_head = last and not (model.tied and first)
    return (layers_per_rank(model, layout) * layer + first * (parts["embedding"] / t + parts["positions"])
            + last * parts["final_norm"] + own_head * parts["embedding"] / t)


def _check(model, layout, pipeline_rank):
    whole_number("pipeline_rank", pipeline_rank, minimum=0, maximum=layout.pipeline - 1)
    if layout.context > 1 or model.experts > 1 or layout.schedule == "dualpipe":
        raise ValueError("Only tensor, pipeline and data parallelism are counted here: no context, no experts, no DualPipe.")
    if layout.tensor > model.kv_heads:
        raise ValueError(f"tensor must be at most the {model.kv_heads} key-value heads, but {layout.tensor} was given: copies of "
                         "heads, and the sums of their gradients, are not counted here.")
