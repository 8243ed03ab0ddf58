"""Shrink a layout to at most eight real ranks, train a small Llama in it, and predict what its dimensions send."""
from dataclasses import dataclass

from utils import launch
from utils.theory.layout import Layout, groups
from utils.theory.layout_traffic import rank_elements, rank_parameters
from utils.theory.models import Transformer
from utils.widgets import layout_on_ranks

SMALL_LLAMA = Transformer(layers=4, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=64, sequence=16,
                          activation="swiglu", tied=False)
BATCH = 8
TRAINED = ("tensor", "pipeline", "data")
"""The dimensions that utils.parallel.mesh trains along."""
_ELEMENT_BYTES = 8  # fp64, so that the loss shows whether the step is right


@dataclass(frozen=True)
class LayoutRun:
    """One step of SMALL_LLAMA in `layout`: bytes that all ranks sent, by dimension; its loss, and that of one process."""

    layout: Layout
    sent_bytes: dict
    loss: float
    loss_alone: float


def small_layout(layout: Layout) -> Layout:
    """The same kind of layout on at most 2 · 2 · 2 ranks: each dimension that is cut stays cut, in two.

    Micro-batches of one sequence, at most two chunks, at most ZeRO-1; no recomputation and no sequence parallelism,
    which sends the same bytes in other calls.
    """
    sizes = {name: min(getattr(layout, name), 2) for name in TRAINED}
    chunks = min(layout.chunks, 2) if sizes["pipeline"] > 1 else 1
    return Layout(**sizes, chunks=chunks, schedule="interleaved 1f1b" if chunks > 1 else "1f1b",
                  zero_stage=min(layout.zero_stage, 1), recomputation="none", order=layout.order)


def predict_layout(layout: Layout) -> dict:
    """{dimension: bytes that all ranks of a small layout send in one step}, of the dimensions that are cut."""
    total = dict.fromkeys(TRAINED, 0.0)
    for pipeline_rank in range(layout.pipeline):
        parameters = rank_parameters(SMALL_LLAMA, layout, pipeline_rank)
        elements = rank_elements(SMALL_LLAMA, layout, BATCH, pipeline_rank, parameters)
        elements["tensor"] += elements.pop("loss")
        for name, each in elements.items():
            total[name] += each * layout.tensor * layout.data * _ELEMENT_BYTES
    return {name: n_bytes for name, n_bytes in total.items() if getattr(layout, name) > 1}


def measure_layout(layout: Layout) -> LayoutRun:
    """Train SMALL_LLAMA for a step in a small layout on real ranks and count bytes by the groups of the calls.

    Raises RankError when a rank fails.
    """
    run = launch(layout_on_ranks.train, SMALL_LLAMA, layout, BATCH, world_size=layout.world_size, timeout=120, echo=False)
    calls = [call for record in run.records for call in record.calls if call.elements > 1]  # but for the loss, one number
    sent = {}
    for name in predict_layout(layout):
        members = {tuple(ranks) for ranks in groups(name, layout.sizes)}
        sent[name] = sum(call.sent for call in calls if call.ranks in members)
    loss, alone = run.results[0]
    return LayoutRun(layout, sent, loss, alone)


def last_run(runs, layout: Layout) -> LayoutRun | None:
    """The latest of `runs` in this small layout."""
    return next((run for run in reversed(runs) if run.layout == layout), None)
