"""A layer's time over t: how much faster t GPUs are, and what of them the all-reduces leave for computing."""
from functools import cache

import ipywidgets
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from utils.theory.arguments import one_of, whole_number
from utils.theory.hardware import CHIPS, LINKS, Cluster
from utils.theory.models import RECOMPUTATIONS, Transformer
from utils.theory.papers.megatron import tensor_scaling_efficiency
from utils.theory.papers.tables import read_table
from utils.theory.presets import MODELS
from utils.theory.tensor import tensor_efficiency, tensor_layer_seconds
from utils.widgets import style
from utils.widgets.frame import Frame
from utils.widgets.style import seconds_text

LINK_NAMES = {
    "NVLink 2": "nvlink2", "NVLink 3": "nvlink3", "NVLink 4": "nvlink4", "NVLink 5": "nvlink5",
    "PCIe 4 x16": "pcie4 x16", "PCIe 5 x16": "pcie5 x16",
    "InfiniBand EDR": "infiniband edr", "InfiniBand HDR": "infiniband hdr", "InfiniBand NDR": "infiniband ndr",
    "Ethernet 25 Gb/s": "ethernet 25", "Ethernet 100 Gb/s": "ethernet 100", "Ethernet 400 Gb/s": "ethernet 400",
}
"""Names that readers see for links of utils.theory.hardware."""

TENSORS = (1, 2, 4, 8, 16, 32)
LAYER_CHIPS = ("V100-DGX-2H", "A100-80GB", "H100-80GB", "H200-141GB")
HIDDENS = [1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
SEQUENCES = [512, 1024, 2048, 4096, 8192]
MICRO_BATCHES = [1, 2, 4, 8, 16, 32]
SERVERS = [1, 2, 4, 8, 16, 32]


def layer_time(hidden: int = 3072, micro_batch: int = 8, sequence: int = 1024, tensor: int = 8, chip: str = "V100-DGX-2H",
               link: str = "NVLink 2", between: str = "InfiniBand EDR", gpus_per_server: int = 16,
               recomputation: str = "full") -> Frame:
    """A widget for the seconds of one layer over t, and the efficiency: what of the GPUs is left for computing.

    hidden, sequence  h and s of a GPT layer; micro_batch b sequences. Heads are a multiple of 32 and at least h/128
    tensor            the marked t, one of TENSORS
    chip              a name in LAYER_CHIPS
    link, between     the link inside a server and between servers, names in LINK_NAMES; an adapter for each GPU
    gpus_per_server   a t above it crosses between servers
    recomputation     "none", "selective" or "full"

    Beside it: Megatron-LM's weak scaling, printed and predicted (arXiv 1909.08053, figure 5).
    """
    controls = {
        "hidden": _slider("h", hidden, HIDDENS),
        "micro_batch": _slider("b", micro_batch, MICRO_BATCHES),
        "sequence": _slider("s tokens", sequence, SEQUENCES),
        "tensor": ipywidgets.SelectionSlider(value=tensor, options=TENSORS, description="t ranks"),
        "chip": ipywidgets.Dropdown(value=chip, options=LAYER_CHIPS, description="GPU"),
        "link": ipywidgets.Dropdown(value=link, options=list(LINK_NAMES), description="in server"),
        "between": ipywidgets.Dropdown(value=between, options=list(LINK_NAMES), description="between"),
        "gpus_per_server": _slider("per server", gpus_per_server, SERVERS),
        "recomputation": ipywidgets.Dropdown(value=recomputation, options=list(RECOMPUTATIONS), description="recompute"),
    }
    a100 = {"chip": "A100-80GB", "link": "NVLink 3", "between": "InfiniBand HDR", "gpus_per_server": 8}
    return Frame(controls, draw_layer_time, layer_time_sentence, presets={
        "Megatron-LM's 8.3B model, DGX-2": {
            "hidden": 3072, "micro_batch": 8, "sequence": 1024, "tensor": 8, "chip": "V100-DGX-2H", "link": "NVLink 2",
            "between": "InfiniBand EDR", "gpus_per_server": 16, "recomputation": "full"},
        "GPT-3 on A100s, t inside a server": {**a100, "hidden": 12288, "micro_batch": 1, "sequence": 2048, "tensor": 8},
        "GPT-3 on A100s, t across servers": {**a100, "hidden": 12288, "micro_batch": 1, "sequence": 2048, "tensor": 16},
        "A100s without NVLink": {**a100, "link": "PCIe 4 x16", "hidden": 4096, "micro_batch": 4, "sequence": 2048, "tensor": 8},
        "one GPU in each server": {**a100, "gpus_per_server": 1, "between": "Ethernet 100 Gb/s", "hidden": 4096,
                                   "micro_batch": 4, "sequence": 2048, "tensor": 8},
    })


def layer_time_sentence(hidden=3072, micro_batch=8, sequence=1024, tensor=8, chip="V100-DGX-2H", link="NVLink 2",
                        between="InfiniBand EDR", gpus_per_server=16, recomputation="full", runs=()) -> str:
    """Seconds of the layer at the marked t, the share of sending in it, the efficiency, and what Megatron-LM printed."""
    times, efficiencies = _times(hidden, micro_batch, sequence, chip, link, between, gpus_per_server, recomputation)
    one_of("tensor", tensor, TENSORS)
    seconds = sum(times[tensor].values())
    text = f"one layer, forward and backward, h = {hidden:,}, s = {sequence:,}, b = {micro_batch}: "
    if tensor == 1:
        text += f"{seconds_text(seconds)} on one {chip}"
    else:
        sending = _percent(times[tensor]["communication"] / seconds)
        text += (f"{seconds_text(sum(times[1].values()))} on one {chip}, {seconds_text(seconds)} on {tensor} over "
                 f"{link if tensor <= gpus_per_server else between}, {sending} of them for sending; "
                 f"efficiency {_percent(efficiencies[tensor])} (norms, dropout and additions are not cut)")
    row = next((row for row in weak_scaling() if row["tensor"] == tensor), None)
    if row:
        text += (f" · Megatron-LM's {row['name']} model at t = {tensor}: {row['printed']} % printed, "
                 f"{_percent(row['predicted'])} predicted")
    return text


@cache
def weak_scaling() -> list[dict]:
    """Megatron-LM's four models, one for each t: its name, efficiency printed (in %, as text) and predicted (a share).

    printed: tensor parallelism alone; printed_with_data: and 64 data-parallel groups. Arxiv 1909.08053, figure 5.
    """
    rows = []
    for row in read_table("megatron_2019"):
        t = int(row["MP_GPUs"])
        model = MODELS[f"megatron2019-{row['params_B']}b"]
        rows.append({"tensor": t, "name": f"{row['params_B']}B", "printed": row["eff_MP_pct"],
                     "printed_with_data": row["eff_MPDP_pct"], "predicted": tensor_scaling_efficiency(model, t)})
    return rows


def draw_layer_time(hidden=3072, micro_batch=8, sequence=1024, tensor=8, chip="V100-DGX-2H", link="NVLink 2",
                    between="InfiniBand EDR", gpus_per_server=16, recomputation="full", runs=(), figure=None):
    """Draw the layer's seconds over t by part, and beside it the efficiency with Megatron-LM's weak scaling.

    Returns the matplotlib Figure.
    """
    times, efficiencies = _times(hidden, micro_batch, sequence, chip, link, between, gpus_per_server, recomputation)
    one_of("tensor", tensor, TENSORS)
    with style.drawing(figure, height=3.7) as figure:
        seconds = figure.add_axes([0.02, 0.125, 0.45, 0.61])
        efficiency = figure.add_axes([0.575, 0.125, 0.41, 0.61])
        figure.text(0.012, 0.975, _title(tensor, efficiencies, link, between, gpus_per_server), va="top", fontsize=10,
                    fontweight="bold")
        _draw_seconds(seconds, times, tensor, gpus_per_server)
        _draw_efficiency(efficiency, efficiencies, tensor, gpus_per_server)
        figure.legend(handles=[Patch(**style.theory(part), label=part) for part in times[1]], ncols=2, loc="upper left",
                      bbox_to_anchor=(0.003, 0.905), columnspacing=1, handlelength=1.1, borderaxespad=0.3, labelspacing=0.3)
        figure.legend(handles=_lines(), ncols=2, loc="upper left", bbox_to_anchor=(0.49, 0.905), columnspacing=1,
                      handlelength=1.6, borderaxespad=0.3, labelspacing=0.3)
    return figure


@cache
def _times(hidden, micro_batch, sequence, chip, link, between, gpus_per_server, recomputation):
    """{t: seconds by part} and {t: efficiency} for every t of TENSORS."""
    for name, value in (("link", link), ("between", between)):
        one_of(name, value, tuple(LINK_NAMES))
    one_of("chip", chip, LAYER_CHIPS)
    whole_number("gpus_per_server", gpus_per_server)
    heads = 32 * -(-whole_number("hidden", hidden) // (32 * 128))  # every t divides them
    model = Transformer(1, hidden, heads, sequence=sequence)
    cluster = Cluster(max(TENSORS), gpus_per_server, CHIPS[chip], LINKS[LINK_NAMES[link]], LINKS[LINK_NAMES[between]])
    choices = (micro_batch, recomputation)
    return ({t: tensor_layer_seconds(model, cluster, t, *choices) for t in TENSORS},
            {t: tensor_efficiency(model, cluster, t, *choices) for t in TENSORS})


def _title(tensor, efficiencies, link, between, gpus_per_server):
    if tensor == 1:
        return "On one GPU there is nothing to send"
    where = "leaves the server" if tensor > gpus_per_server > 1 else f"over {link if tensor <= gpus_per_server else between}"
    return f"t = {tensor} {where}: {_percent(efficiencies[tensor])} of the GPUs is left for computing"


def _percent(share):
    """ "65 %", and two digits of what is small. """
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def _slider(symbol, value, options):
    """A slider over `options` and, wherever it lies between them, the value to start with."""
    options = [(f"{option:,}", option) for option in sorted({*options, value})]
    return ipywidgets.SelectionSlider(value=value, options=options, description=symbol)


# ---- the picture's parts ------------------------------------------------------------------------------------------

_WIDEST = 2
"""Bars end at so many times the seconds of one GPU; longer ones are cut off there."""


def _draw_seconds(ax, times, tensor, gpus_per_server):
    places = range(len(TENSORS))
    bottoms = [0.0] * len(TENSORS)
    top = min(max(sum(parts.values()) for parts in times.values()), _WIDEST * sum(times[1].values()))
    for part in times[1]:
        heights = [times[t][part] for t in TENSORS]
        ax.bar(places, heights, bottom=bottoms, width=0.66, **style.theory(part))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for place, total in zip(places, bottoms):
        ax.annotate(f"{'▲' if total > top else ''}\n{seconds_text(total)}".strip(), (place, min(total, top)), (0, 2),
                    textcoords="offset points", ha="center", fontsize=7, linespacing=1)
        if total > top:
            ax.bar(place, total, bottom=top, width=0.8, facecolor="white", zorder=2)
    ax.set_ylim(0, 1.14 * top)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.annotate("seconds of one layer", (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=8,
                color=style.QUIET)
    _mark(ax, tensor, gpus_per_server)


def _draw_efficiency(ax, efficiencies, tensor, gpus_per_server):
    ax.plot(range(len(TENSORS)), [efficiencies[t] for t in TENSORS], **_OURS)
    place = TENSORS.index(tensor)
    ax.plot([place], [efficiencies[tensor]], "o", color=style.colour("communication"), markersize=7, zorder=5)
    rows = weak_scaling()
    places = [TENSORS.index(row["tensor"]) for row in rows]
    ax.plot(places, [row["predicted"] for row in rows], **_PREDICTED)
    ax.plot(places, [float(row["printed"]) / 100 for row in rows], **_PRINTED)
    ax.plot(places, [float(row["printed_with_data"]) / 100 for row in rows], **_WITH_DATA)
    ax.set_ylim(0, 1.06)
    ax.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    ax.grid(axis="y")
    ax.annotate("efficiency", (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=style.QUIET)
    if gpus_per_server < max(TENSORS):
        ax.annotate("right of the dashes: between servers", (1, 1), (0, 3), xycoords="axes fraction",
                    textcoords="offset points", ha="right", fontsize=7, color=style.QUIET)
    _mark(ax, tensor, gpus_per_server)


def _mark(ax, tensor, gpus_per_server):
    """Mark the chosen t, and shade where t crosses between servers."""
    place = TENSORS.index(tensor)
    ax.axvspan(place - 0.45, place + 0.45, color="#EEF4FA", zorder=0, linewidth=0)
    across = [number for number, t in enumerate(TENSORS) if t > gpus_per_server]
    if across:
        ax.axvline(across[0] - 0.5, color=style.QUIET, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_xlim(-0.5, len(TENSORS) - 0.5)
    ax.set_xticks(range(len(TENSORS)), TENSORS)
    ax.set_xlabel("t", labelpad=1)
    ax.tick_params(axis="x", length=0)


_OURS = {"color": style.colour("communication"), "linewidth": 2.2, "zorder": 4}
_PREDICTED = {"color": style.QUIET, "linestyle": (0, (4, 2)), "linewidth": 1.4}
_PRINTED = {"color": style.INK, "linestyle": "none", "marker": "s", "markersize": 5}
_WITH_DATA = {**_PRINTED, "markerfacecolor": "white"}


def _lines():
    return [Line2D([], [], label="this layer", **_OURS),
            Line2D([], [], label="Megatron-LM, predicted", **_PREDICTED),
            Line2D([], [], label="printed", **_PRINTED),
            Line2D([], [], label="with data parallel", **_WITH_DATA)]
