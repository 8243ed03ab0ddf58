"""Lesson 05's planner: every layout of a model on a cluster that fits, ranked, and why the others fall out.

    plan_layouts()          a widget; draw_plan("narayanan-18.4b", gpus=256, batch=1024) is its picture alone
"""
from dataclasses import dataclass, replace
from functools import lru_cache

import ipywidgets

from utils.theory.arguments import one_of, whole_number
from utils.theory.hardware import CHIPS, LINKS, Cluster
from utils.theory.layout import Layout, Plan, plan
from utils.theory.papers.llama3 import table_4_runs
from utils.theory.papers.narayanan import table_1_runs
from utils.theory.presets import MODELS
from utils.widgets import style
from utils.widgets.frame import Frame
from utils.widgets.layout_picture import HEIGHT_INCHES, draw_ranking, draw_small
from utils.widgets.layout_run import LayoutRun, last_run, measure_layout, predict_layout, small_layout
from utils.widgets.style import bytes_text, seconds_text

__all__ = ["MACHINES", "Choice", "LayoutRun", "cluster_of", "draw_plan", "find_plan", "measure_best", "paper_choice",
           "plan_layouts", "plan_sentence"]

MACHINES = {
    "A100, InfiniBand HDR": ("A100-80GB", 8, "nvlink3", "infiniband hdr"),
    "H100, InfiniBand NDR": ("H100-80GB", 8, "nvlink4", "infiniband ndr"),
    "A100, Ethernet 100": ("A100-80GB", 8, "nvlink3", "ethernet 100"),
    "V100, InfiniBand EDR": ("V100-32GB", 8, "nvlink2", "infiniband edr"),
    "T4, Ethernet 10": ("T4", 2, "pcie3 x16", "ethernet 10"),
}
"""Servers by chip and the link between them: the chip, how many in one server, the link inside it, the link between servers."""

METHODS = {
    "all": {"recomputations": ("none", "selective", "full"), "zero_stages": (0, 1, 2, 3)},
    "as in 2021": {"recomputations": ("full",), "zero_stages": (0,)},
}
"""What the layouts may use. Narayanan et al. recomputed all in their runs; selective recomputation and ZeRO came later."""

SHOWN_MODELS = [name for name in MODELS if name.startswith(("gpt", "narayanan", "llama"))]
GPUS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1536, 1920, 2048, 2520, 3072, 4096, 8192, 16384]
BATCHES = [8, 16, 32, 64, 128, 256, 512, 1024, 1536, 1792, 2048, 2160, 2304, 2520, 3072, 4096]
SEQUENCES = [512, 1024, 2048, 4096, 8192, 16384]
_CHUNKS = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Choice:
    """What the authors of a paper chose: the model, the machine and the batch that it stands for, and the layout."""
    model: str
    machine: str
    gpus: int
    batch: int
    layout: Layout


def paper_choices() -> dict[str, Choice]:
    """{label: Choice} of the rows of Narayanan et al. 2021, table 1, and of Llama 3, table 4."""
    selene, eos = list(MACHINES)[:2]
    choices = {}
    for run in table_1_runs():
        model = f"narayanan-{run.name}b"
        choices[f"Narayanan 2021: {run.name}B"] = Choice(model, selene, run.cluster.gpus, run.batch, run.layout)
    for run in table_4_runs():
        if run.layout.context == 1:
            label = f"Llama 3 405B on {run.cluster.gpus:,} GPUs"
            choices[label] = Choice("llama3-405b", eos, run.cluster.gpus, run.batch, run.layout)
    return choices


PAPER_CHOICES = paper_choices()


def plan_layouts(model: str = "narayanan-145.6b", machine: str = "A100, InfiniBand HDR", gpus: int = 1536,
                 batch: int = 2304, sequence: int = 2048, attention: str = "plain", methods: str = "as in 2021") -> Frame:
    """A widget that ranks all layouts of a model on a cluster.

    model      a name in utils.theory.presets.MODELS
    machine    a name in MACHINES
    gpus       all of the cluster's
    batch      B, sequences of `sequence` tokens per step, over all ranks
    attention  "plain" writes the scores to memory, "flash" does not
    methods    a name in METHODS: which recomputations and ZeRO stages are tried

    The papers' own choices are presets; their layout is marked in the ranking. A student's two T4 and a single server
    of eight are presets too. The button trains a small Llama in the fastest layout, each dimension cut to two, on at
    most 8 real ranks, and lays the bytes that each dimension sent beside the formulas.
    """
    controls = {
        "model": ipywidgets.Dropdown(value=model, options=SHOWN_MODELS, description="model"),
        "machine": ipywidgets.Dropdown(value=machine, options=list(MACHINES), description="machine"),
        "gpus": ipywidgets.SelectionSlider(value=gpus, options=GPUS, description="GPUs"),
        "batch": ipywidgets.SelectionSlider(value=batch, options=BATCHES, description="batch"),
        "sequence": ipywidgets.SelectionSlider(value=sequence, options=SEQUENCES, description="s tokens"),
        "attention": ipywidgets.Dropdown(value=attention, options=["plain", "flash"], description="attention"),
        "methods": ipywidgets.Dropdown(value=methods, options=list(METHODS), description="methods"),
    }
    presets = {label: {"model": choice.model, "machine": choice.machine, "gpus": choice.gpus, "batch": choice.batch,
                       "sequence": MODELS[choice.model].sequence,
                       "attention": "flash" if choice.layout.flash_attention else "plain",
                       "methods": "all" if choice.layout.zero_stage else "as in 2021"}
               for label, choice in PAPER_CHOICES.items()}
    presets["a single server: Llama 3 8B on 8 H100"] = {
        "model": "llama3-8b", "machine": list(MACHINES)[1], "gpus": 8, "batch": 128, "sequence": 8192, "attention": "flash",
        "methods": "all"}
    presets["a student's two T4: GPT-2 1.5B"] = {
        "model": "gpt2-1.5b", "machine": list(MACHINES)[4], "gpus": 2, "batch": 32, "sequence": 1024, "attention": "flash",
        "methods": "all"}
    return Frame(controls, draw_plan, plan_sentence, measure_best, presets, announce=announce_best)


def cluster_of(machine: str, gpus: int) -> Cluster:
    """The Cluster of `gpus` chips in servers called `machine`. Raises ValueError for servers that would be half full."""
    chip, per_node, intra, inter = MACHINES[one_of("machine", machine, tuple(MACHINES))]
    whole_number("gpus", gpus)
    if gpus > per_node and gpus % per_node:
        raise ValueError(f"gpus must be a multiple of the {per_node} of a server, but {gpus} was given.")
    return Cluster(max(1, gpus // per_node), min(gpus, per_node), CHIPS[chip], LINKS[intra], LINKS[inter])


@lru_cache(maxsize=64)
def find_plan(model: str, machine: str, gpus: int, batch: int, sequence: int, attention: str = "plain",
              methods: str = "all") -> Plan:
    """The theory's `plan` for these names; kept, since a widget asks again and again."""
    cluster = cluster_of(machine, gpus)
    shape = replace(MODELS[one_of("model", model, tuple(MODELS))], sequence=sequence)
    flash = one_of("attention", attention, ("plain", "flash")) == "flash"
    tried = METHODS[one_of("methods", methods, tuple(METHODS))]
    return plan(shape, cluster, batch, chunks=_CHUNKS, flash_attention=flash, **tried)


def measure_best(**state) -> LayoutRun:
    """Train a small Llama in the small form of the fastest layout for this state of the widget.

    Raises ValueError when no layout fits, RankError when a rank fails.
    """
    return measure_layout(small_layout(find_plan(**state).best.layout))


def announce_best(**state) -> str:
    """What the widget says while the ranks run."""
    found = find_plan(**state)
    return f"Training a small Llama as {cut_text(small_layout(found.best.layout))} …" if found.ranked else "No layout fits …"


def paper_choice(model: str, machine: str, gpus: int, batch: int, sequence: int, **_) -> Choice | None:
    """The paper's choice for exactly this state of the widget, if there is one."""
    state = (model, machine, gpus, batch, sequence)
    fitting = [choice for choice in PAPER_CHOICES.values()
               if (choice.model, choice.machine, choice.gpus, choice.batch, MODELS[choice.model].sequence) == state]
    return fitting[0] if fitting else None


def plan_sentence(model="narayanan-145.6b", machine="A100, InfiniBand HDR", gpus=1536, batch=2304,
                  sequence=2048, attention="plain", methods="as in 2021", runs=()) -> str:
    """The best layout, how many fit, why the others fall out, and where the paper's own choice stands."""
    state = dict(model=model, machine=machine, gpus=gpus, batch=batch, sequence=sequence,
                 attention=attention, methods=methods)
    found = find_plan(**state)
    tried = len(found.ranked) + len(found.rejected)
    text = f"{len(found.ranked):,} of {tried:,} layouts fit"
    reasons = found.reasons
    if reasons:
        text += " (" + ", ".join(f"{count:,} fall out for {name}" for name, count in reasons.items()) + ")"
    if not found.ranked:
        return text + " · take more GPUs, or a smaller model or batch"
    best = found.best
    text += (f" · fastest: {layout_text(best.layout)}: {seconds_text(best.step.seconds)} per step, "
             f"{100 * best.step.mfu:.0f} % of the peak (MFU), {bytes_text(best.memory.total_bytes)} on the fullest rank")
    place = place_of(found, paper_choice(**state))
    if place is not None:
        slower = found.ranked[place].step.seconds / best.step.seconds - 1
        text += f" · the paper's layout is no. {place + 1}, {100 * slower:.0f} % slower by this model"
    run = last_run(runs, small_layout(best.layout))
    if run is None:
        return text
    predicted = predict_layout(run.layout)
    sent = [f"{bytes_text(run.sent_bytes[name])} along {name} (ratio {run.sent_bytes[name] / n_bytes:.2f})"
            for name, n_bytes in predicted.items()]
    return (f"{text} · a small Llama as {cut_text(run.layout)}: sent {', '.join(sent) or 'nothing'}; "
            f"loss {run.loss:.6f}, in one process {run.loss_alone:.6f}")


def place_of(found: Plan, choice: Choice | None) -> int | None:
    """Where the ranking has the paper's t, p, d, b and v (with whatever recomputation and ZeRO stage is fastest)."""
    if choice is None:
        return None
    def cut(layout):
        return layout.tensor, layout.pipeline, layout.data, layout.micro_batch, layout.chunks
    return next((i for i, each in enumerate(found.ranked) if cut(each.layout) == cut(choice.layout)), None)


def layout_text(layout: Layout) -> str:
    """A layout in a few letters: t8 p4 d32 · b2 v3 · full recomputation · ZeRO-1."""
    text = f"{_sizes_text(layout)} · b{layout.micro_batch}"
    text += f" v{layout.chunks}" if layout.chunks > 1 else ""
    text += f" · {layout.recomputation} recomputation" if layout.recomputation != "none" else ""
    return text + (f" · ZeRO-{layout.zero_stage}" if layout.zero_stage else "")


def cut_text(layout: Layout) -> str:
    """A small layout and its ranks: t2 p1 d2 on 4 real ranks."""
    return f"{_sizes_text(layout)} on {layout.world_size} real rank{'s' * (layout.world_size > 1)}"


def _sizes_text(layout):
    return f"t{layout.tensor} p{layout.pipeline} d{layout.data}"


def draw_plan(model="narayanan-145.6b", machine="A100, InfiniBand HDR", gpus=1536, batch=2304,
              sequence=2048, attention="plain", methods="as in 2021", runs=(), figure=None):
    """Draw the fastest layouts as stacked bars of seconds, the paper's own marked, why the others fall out, and a run.

    runs: LayoutRuns; the latest of the fastest layout's small form is drawn over the prediction.
    Returns the matplotlib Figure.
    """
    state = dict(model=model, machine=machine, gpus=gpus, batch=batch, sequence=sequence,
                 attention=attention, methods=methods)
    found = find_plan(**state)
    chip = CHIPS[MACHINES[machine][0]]
    with style.drawing(figure, height=HEIGHT_INCHES) as figure:
        draw_ranking(figure, found, place_of(found, paper_choice(**state)), found.reasons, layout_text, chip)
        if found.ranked:
            small = small_layout(found.best.layout)
            draw_small(figure, cut_text(small), predict_layout(small), last_run(runs, small))
    return figure
