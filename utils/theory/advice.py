"""The decision guide as a function: a model, a machine, a batch; what to do, in one sentence with its numbers.

>>> from .hardware import eos
>>> from .presets import MODELS
>>> advise(MODELS["llama3-8b"], eos(8), batch=64).technique
'sharded data parallelism'

The rule: of all techniques that fit, take the simplest whose step is at most TOLERANCE longer than the fastest one's.
From simple to involved: data parallelism; the same with a sharded state (ZeRO, FSDP); tensor parallelism beside it; a
pipeline beside it; all three. Fine-tuning asks first whether a few added parameters are enough (LoRA, QLoRA).

Times are those of `throughput`. ZeRO-3's gathers are taken as slow as they were in table 2 of Narayanan et al. 2021;
newer programs are faster, and `rates=RATES` shows what an ideal one would change.
"""

from dataclasses import dataclass, replace

from .activations import layer_activation_bytes
from .arguments import fraction
from .layout import Planned, plan
from .memory import NF4_BYTES_PER_PARAMETER, lora_parameters, lora_state
from .papers.narayanan import ZERO_3_RATES
from .throughput import step_time

TOLERANCE = 0.10
"""How much slower than the fastest a simpler technique may be."""

TECHNIQUES = (
    "data parallelism",
    "sharded data parallelism",
    "tensor and data parallelism",
    "pipeline and data parallelism",
    "tensor, pipeline and data parallelism",
)
"""From simple to involved; see `technique_of`. `advise` also knows LoRA, QLoRA, one GPU, and none."""

LORA_RANK = 16
_LORA = (("LoRA", 2.0), ("QLoRA", NF4_BYTES_PER_PARAMETER))


@dataclass(frozen=True)
class Advice:
    """What `advise` says.

    technique: one of TECHNIQUES, or "one GPU", "LoRA", "QLoRA", "none".
    sentence: the same with its numbers and reasons.
    planned: the layout with its step time and memory; None for "LoRA", "QLoRA" and "none".
    """

    technique: str
    sentence: str
    planned: Planned | None = None


def technique_of(layout):
    """The one of TECHNIQUES that `layout` is.

    >>> from .grid import Layout
    >>> technique_of(Layout(data=8, zero_stage=3)), technique_of(Layout(tensor=8, data=4))
    ('sharded data parallelism', 'tensor and data parallelism')
    """
    if layout.tensor > 1:
        return TECHNIQUES[4] if layout.pipeline > 1 else TECHNIQUES[2]
    if layout.pipeline > 1:
        return TECHNIQUES[3]
    return TECHNIQUES[1] if layout.zero_stage else TECHNIQUES[0]


def advise(
    model, cluster, batch, fine_tune=False, flash_attention=True, memory_share=0.95, rates=ZERO_3_RATES
):
    """Advice for training `model` on all GPUs of `cluster` with `batch` sequences a step.

    fine_tune: the weights exist already, and a few added parameters may be enough.
    memory_share: of a GPU's memory, what training may use.
    rates: Rates of the throughput model.
    """
    budget_bytes = fraction("memory_share", memory_share) * cluster.chip.memory_bytes
    if fine_tune:
        adapted = _adapt(model, cluster, budget_bytes)
        if adapted is not None:
            return adapted
    found = plan(model, cluster, batch, flash_attention=flash_attention, memory_share=memory_share, rates=rates)
    if not found.ranked:
        return Advice("none", _nothing_fits(model, cluster, found, budget_bytes))
    fastest = {}  # technique -> its fastest layout
    for each in sorted((_overlapped(each, model, cluster, batch, rates) for each in found.ranked), key=_seconds_of):
        fastest.setdefault(technique_of(each.layout), each)
    limit_seconds = (1 + TOLERANCE) * min(map(_seconds_of, fastest.values()))
    chosen = next(name for name in TECHNIQUES if name in fastest and _seconds_of(fastest[name]) <= limit_seconds)
    simpler = TECHNIQUES[: TECHNIQUES.index(chosen)]
    reasons = [_why_not(name, fastest.get(name), fastest[chosen], found, budget_bytes, batch) for name in simpler]
    name = "one GPU" if cluster.gpus == 1 else chosen
    return Advice(name, _sentence(model, cluster, name, fastest[chosen], list(filter(None, reasons))), fastest[chosen])


def _seconds_of(planned):
    return planned.step.seconds


def _overlapped(planned, model, cluster, batch, rates):
    """The same layout with its gradients reduced during backward, as DDP does; a pipeline's stay at the end."""
    if planned.layout.pipeline > 1:
        return planned
    layout = planned.layout.replace(overlap_gradients=True)
    return replace(planned, layout=layout, step=step_time(model, cluster, layout, batch, rates))


def _adapt(model, cluster, budget_bytes):
    """Advice for a few added parameters on one GPU, or None when the frozen model does not fit with them."""
    adapter = lora_parameters(model, LORA_RANK)
    layer = layer_activation_bytes(model, 1, recomputation="selective")
    activations = model.layers * layer_activation_bytes(model, 1, recomputation="full") + layer
    for name, base_bytes in _LORA:
        needed = lora_state(model.parameters, adapter, base_bytes).total_bytes + activations
        if needed <= budget_bytes:
            more = ""
            if cluster.gpus > 1:
                more = f"; the {cluster.gpus:,} GPUs share the batch, and only the adapter's gradients are all-reduced"
            return Advice(
                name,
                f"{_subject(model, cluster)}: begin with {name}, which trains {adapter / 1e6:.1f} million added parameters of "
                f"rank {LORA_RANK} and needs {needed / 1e9:.1f} of the {budget_bytes / 1e9:.1f} GB that a GPU offers, with "
                f"full recomputation and one sequence at a time{more}.",
            )
    return None


def _sentence(model, cluster, name, planned, reasons):
    layout, step = planned.layout, planned.step
    sizes = {"t": layout.tensor, "p": layout.pipeline, "d": layout.data, "b": layout.micro_batch}
    details = ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items() if size > 1 or symbol == "b")
    if layout.zero_stage:
        details += f", ZeRO-{layout.zero_stage}"
    if layout.recomputation != "none":
        details += f", {layout.recomputation} recomputation"
    return (
        f"{_subject(model, cluster)}: use {name} ({details}), by the model {step.seconds:.2g} s per step, "
        f"{100 * step.mfu:.0f} % of the peak and {planned.memory.total_bytes / 1e9:.1f} GB on the fullest GPU, "
        f"{'since ' + '; '.join(reasons) if reasons else 'since nothing simpler exists'}."
    )


def _why_not(name, best_of_it, chosen, found, budget_bytes, batch):
    """Why a simpler technique was not taken; "" where `plan` never met it."""
    if best_of_it is not None:
        return f"{name} would take {best_of_it.step.seconds / chosen.step.seconds:.1f} times as long"
    rejected = [each for each in found.rejected if technique_of(each.layout) == name]
    reasons = {each.reason for each in rejected}
    if "memory" in reasons:
        return f"{name} does not fit in the {budget_bytes / 1e9:.1f} GB that a GPU offers"
    if reasons == {"batch"}:
        return f"{name} cannot share {batch:,} sequences among {rejected[0].layout.data:,} ranks"
    return f"{name} does not divide the model's {' and '.join(sorted(reasons))}" if reasons else ""


def _nothing_fits(model, cluster, found, budget_bytes):
    counts = {}
    for each in found.rejected:
        counts[each.reason] = counts.get(each.reason, 0) + 1
    listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))
    return (
        f"{_subject(model, cluster)}: nothing fits in the {budget_bytes / 1e9:.1f} GB that a GPU offers (layouts that "
        f"fall out, by reason: {listed}), so take more GPUs, a batch that divides, a smaller model, or offload."
    )


def _subject(model, cluster):
    chips = f"{cluster.gpus:,} {cluster.chip.name}" if cluster.gpus > 1 else f"one {cluster.chip.name}"
    return f"{model.parameters / 1e9:.1f} billion parameters on {chips}"
