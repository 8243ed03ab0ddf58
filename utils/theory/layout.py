"""Which layout: ranks on a grid (see `grid`), bytes on a rank, and a planner that ranks every layout.

>>> from .hardware import selene
>>> from .presets import MODELS
>>> best = plan(MODELS["narayanan-18.4b"], selene(256), batch=1024).best
>>> best.layout.tensor * best.layout.pipeline * best.layout.data
256
"""

from collections import Counter
from dataclasses import dataclass
from itertools import product

from .activations import check_tensor, layer_activation_bytes
from .arguments import divides, fraction, several, whole_number
from .grid import (
    DIMENSIONS,
    Layout,
    coordinates,
    group_link,
    groups,
    link_name,
    rank_at,
    ranks_per_node,
)
from .memory import recipe_of, training_state
from .pipeline import in_flight_micro_batches
from .throughput import RATES, StepTime, layers_per_rank, micro_batches, parameters_per_rank, step_time

__all__ = [
    "DIMENSIONS",
    "Layout",
    "Plan",
    "Planned",
    "RankBytes",
    "Rejected",
    "coordinates",
    "group_link",
    "groups",
    "link_name",
    "plan",
    "rank_at",
    "rank_bytes",
    "ranks_per_node",
]


@dataclass(frozen=True)
class RankBytes:
    """Bytes on the fullest rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total_bytes(self):
        return self.parameters + self.gradients + self.optimizer + self.activations


def rank_bytes(model, layout, batch, recipe="mixed adam, fp32 gradients"):
    """RankBytes of one rank of the first stage.

    Training state of its share of the parameters, sharded over data and context ranks by the ZeRO stage (from
    stage 1 on the optimizer, 2 the gradients, 3 the parameters and, beside them, one layer gathered whole).
    Activations of the micro-batches in flight under the schedule; under full recomputation also one layer's
    whole activations while it is computed again. Two copies of the parameters under DualPipe.
    """
    m = micro_batches(layout, batch)
    copies = 2 if layout.schedule == "dualpipe" else 1
    parameters = copies * parameters_per_rank(model, layout)
    state = training_state(parameters, recipe, layout.zero_stage, layout.data * layout.context)
    gathered = 0
    if layout.zero_stage == 3:
        gathered = recipe_of(recipe).parameters * model.layer_parameters / layout.tensor
    in_flight = in_flight_micro_batches(layout.schedule, layout.pipeline, m, 0, layout.chunks)
    shape = (model, layout.micro_batch, layout.tensor, layout.sequence_parallel)
    whole = "selective" if layout.flash_attention else "none"
    recomputation = whole if layout.recomputation == "none" else layout.recomputation
    kept = layer_activation_bytes(*shape, recomputation, layout.context)
    activations = in_flight * layers_per_rank(model, layout) * kept
    if layout.recomputation == "full":
        activations += layer_activation_bytes(*shape, whole, layout.context)
    return RankBytes(state.parameters + gathered, state.gradients, state.optimizer, activations)


@dataclass(frozen=True)
class Planned:
    """A layout that fits: its StepTime and its RankBytes."""

    layout: Layout
    step: StepTime
    memory: RankBytes


@dataclass(frozen=True)
class Rejected:
    """A layout that falls out, and why.

    reason: "heads", "sequence", "layers", "batch", "schedule" (what must divide does not), or "memory".
    sentence: the same with its numbers.
    """

    layout: Layout
    reason: str
    sentence: str


@dataclass(frozen=True)
class Plan:
    """What `plan` found: layouts that fit, fastest first, and those that do not."""

    ranked: tuple
    rejected: tuple

    @property
    def best(self):
        """The fastest layout that fits; ValueError when none does."""
        if self.ranked:
            return self.ranked[0]
        reasons = ", ".join(f"{count:,} for {reason}" for reason, count in self.reasons.items())
        raise ValueError(f"No layout fits; they fall out: {reasons}. Take more GPUs, or a smaller model or batch.")

    @property
    def reasons(self):
        """{reason: how many layouts fall out for it}, the most frequent first."""
        return dict(Counter(each.reason for each in self.rejected).most_common())


def plan(
    model,
    cluster,
    batch,
    micro_batch_sizes=(1, 2, 4, 8, 16),
    chunks=(1, 2, 3, 4),
    recomputations=("none", "selective", "full"),
    zero_stages=(0, 1, 2, 3),
    contexts=(1,),
    experts=(1,),
    largest_tensor=None,
    flash_attention=False,
    recipe="mixed adam, fp32 gradients",
    memory_share=0.95,
    rates=RATES,
    dtype="bf16",
):
    """Try every layout of `model` on all GPUs of `cluster` for `batch` sequences a step; returns a Plan.

    Enumerated: every t up to `largest_tensor` (default: the node) and every p and d that together fill the
    cluster; each micro-batch size; 1F1B and, for more chunks, its interleaved form; each recomputation; each
    ZeRO stage. Sequence parallelism goes with t > 1. ZeRO stages 2 and 3 are tried without pipeline only:
    with it, every micro-batch would reduce or gather again.

    memory_share: of the chip's memory, what training may use; the rest is for buffers and fragments.
    """
    whole_number("batch", batch)
    fraction("memory_share", memory_share)
    choices = {
        "micro_batch_sizes": micro_batch_sizes, "chunks": chunks, "recomputations": recomputations,
        "zero_stages": zero_stages, "contexts": contexts, "experts": experts,
    }  # fmt: skip
    for name, values in choices.items():
        several(name, values)
    for value in (*contexts, *experts):
        whole_number("contexts and experts", value)
    gpus = cluster.gpus
    largest_tensor = cluster.gpus_per_node if largest_tensor is None else whole_number("largest_tensor", largest_tensor)
    ranked, rejected = [], []
    budget_bytes = memory_share * cluster.chip.memory_bytes
    for tensor, pipeline, context in product(_divisors(gpus), _divisors(gpus), contexts):
        if tensor > largest_tensor or gpus % (tensor * pipeline * context):
            continue
        data = gpus // (tensor * pipeline * context)
        shape = {"tensor": tensor, "pipeline": pipeline, "data": data, "context": context}
        for b, v, expert in product(micro_batch_sizes, chunks if pipeline > 1 else (1,), experts):
            if data % expert or model.experts % expert:
                continue
            layout = Layout(
                **shape,
                expert=expert,
                micro_batch=b,
                chunks=v,
                schedule="interleaved 1f1b" if v > 1 else "1f1b",
                sequence_parallel=tensor > 1,
                flash_attention=flash_attention,
            )
            problem = _problem(model, layout, batch)
            if problem:
                rejected.append(Rejected(layout, *problem))
                continue
            for recomputation, stage in product(recomputations, zero_stages):
                if stage and data * context == 1 or stage > 1 and pipeline > 1:
                    continue
                candidate = layout.replace(recomputation=recomputation, zero_stage=stage)
                memory = rank_bytes(model, candidate, batch, recipe)
                if memory.total_bytes > budget_bytes:
                    sentence = (
                        f"needs {memory.total_bytes / 1e9:.1f} GB on a rank, and {budget_bytes / 1e9:.1f} GB "
                        f"of {cluster.chip.name} may be used"
                    )
                    rejected.append(Rejected(candidate, "memory", sentence))
                    continue
                step = step_time(model, cluster, candidate, batch, rates, dtype)
                ranked.append(Planned(candidate, step, memory))
    ranked.sort(key=lambda each: each.step.seconds)
    return Plan(tuple(ranked), tuple(rejected))


def _problem(model, layout, batch):
    """(reason, sentence) when something does not divide, else None."""
    def sequence_divides():
        divides("context", layout.context, "sequence", model.sequence)
        if layout.sequence_parallel:
            divides("tensor", layout.tensor, "sequence", model.sequence // layout.context)

    checks = (
        ("heads", lambda: check_tensor(model, layout.tensor)),
        ("sequence", sequence_divides),
        ("layers", lambda: layers_per_rank(model, layout)),
        ("batch", lambda: micro_batches(layout, batch)),
        (
            "schedule",
            lambda: in_flight_micro_batches(
                layout.schedule, layout.pipeline, micro_batches(layout, batch), 0, layout.chunks
            ),
        ),
    )
    for reason, check in checks:
        try:
            check()
        except ValueError as error:
            return reason, str(error)
    return None


def _divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
