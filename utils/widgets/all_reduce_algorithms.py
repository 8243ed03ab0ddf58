"""Ways to all-reduce, side by side: seconds over message size by the α–β model, bytes and steps, real ranks."""
from functools import cache

import ipywidgets
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from utils.theory import hardware
from utils.theory.arguments import one_of, whole_number
from utils.theory.collectives import all_reduce_elements_sent, all_reduce_seconds, all_reduce_steps
from utils.theory.units import GB, KB, MB
from utils.widgets import style
from utils.widgets.all_reduce_run import ELEMENT_BYTES, measure_all_reduce
from utils.widgets.frame import Frame
from utils.widgets.style import bytes_text, seconds_text

ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "recursive_halving_doubling": "halving/doubling",
    "gather_broadcast": "gather + broadcast",
}
"""The algorithms that are compared, by their names in utils.theory.collectives, with the names that readers see."""

LOOPBACK = "loopback, this machine"
LINKS = {
    "NVLink 3": hardware.LINKS["nvlink3"],
    "NVLink 4": hardware.LINKS["nvlink4"],
    "PCIe 4 x16": hardware.LINKS["pcie4 x16"],
    "InfiniBand HDR": hardware.LINKS["infiniband hdr"],
    "InfiniBand NDR": hardware.LINKS["infiniband ndr"],
    "Ethernet 25 Gb/s": hardware.LINKS["ethernet 25"],
    "Ethernet 100 Gb/s": hardware.LINKS["ethernet 100"],
    LOOPBACK: hardware.Link(0.6e-3, 0.6 * GB),
}
"""Links by the names that readers see. Loopback: the order of magnitude of gloo between 4 processes on 2 cores."""

SIZES = [size * unit for unit in (KB, 10 * KB, 100 * KB, MB, 10 * MB, 100 * MB) for size in (1, 2.5, 5)] + [GB]
WORLD_SIZES = [2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024]


def compare_algorithms(world_size: int = 4, n_bytes: int = MB, link: str = "NVLink 3", algorithm: str = "ring") -> Frame:
    """A widget that compares all-reduce algorithms for N = `world_size` ranks and a message of `n_bytes` bytes.

    link: a name in LINKS. algorithm: a name in ALGORITHMS, the one that the button runs on real ranks.
    """
    controls = {
        "world_size": ipywidgets.SelectionSlider(value=world_size, options=WORLD_SIZES, description="N ranks"),
        "n_bytes": ipywidgets.SelectionSlider(value=n_bytes, description="message",
                                              options=[(bytes_text(size), int(size)) for size in SIZES]),
        "link": ipywidgets.Dropdown(value=link, options=list(LINKS), description="link"),
        "algorithm": ipywidgets.Dropdown(value=algorithm, description="algorithm",
                                         options=[(label, name) for name, label in ALGORITHMS.items()]),
    }
    return Frame(
        controls, draw_algorithms, algorithms_sentence,
        measure=lambda world_size, n_bytes, link, algorithm: measure_all_reduce(algorithm, n_bytes // ELEMENT_BYTES, world_size),
        announce=lambda world_size, n_bytes, algorithm, **_:
            f"Running {ALGORITHMS[algorithm]} on {world_size} real ranks, {bytes_text(n_bytes)} …",
        presets={
            "4 GPUs of one server": {"world_size": 4, "n_bytes": MB, "link": "NVLink 3"},
            "DDP's bucket in a server": {"world_size": 8, "n_bytes": 25 * MB, "link": "NVLink 4"},
            "64 GPUs, small message": {"world_size": 64, "n_bytes": 10 * KB, "link": "InfiniBand HDR"},
            "1,024 GPUs, large message": {"world_size": 1024, "n_bytes": GB, "link": "InfiniBand NDR"},
            "real ranks on this machine": {"world_size": 4, "n_bytes": MB, "link": LOOPBACK},
        })


@cache
def tree_wins_below_bytes(world_size: int, link: str) -> float:
    """Message size in bytes below which the (unpipelined) tree beats the ring over `link`; 0 where it never does.

    Under the α–β model both times are straight lines in the message size, so two points of each tell where they cross.
    """
    def lead_of_the_tree(n_bytes):
        tree, ring = (all_reduce_seconds(name, n_bytes, world_size, LINKS[link]) for name in ("tree", "ring"))
        return ring - tree

    head_start = lead_of_the_tree(0)
    return head_start / (head_start - lead_of_the_tree(GB)) * GB if head_start > 0 else 0.0


def algorithms_sentence(world_size: int = 4, n_bytes: int = MB, link: str = "NVLink 3", algorithm: str = "ring",
                        runs=()) -> str:
    """The chosen algorithm's steps, seconds and bytes, where the tree stops winning, and what real ranks did.

    >>> print(algorithms_sentence(4, 1_000_000, "NVLink 3", "ring"))
    ring on 4 ranks, 1 MB over NVLink 3: 6 steps, 11 µs, 1.5 MB sent by the busiest rank · the tree beats the ring below 240 KB
    """
    _check(n_bytes, link, algorithm)
    seconds = all_reduce_seconds(algorithm, n_bytes, world_size, LINKS[link])
    sent = _busiest_bytes(algorithm, n_bytes, world_size)
    text = (f"{ALGORITHMS[algorithm]} on {world_size:,} ranks, {bytes_text(n_bytes)} over {link}: "
            f"{all_reduce_steps(algorithm, world_size):,} steps, {seconds_text(seconds)}, "
            f"{bytes_text(sent)} sent by the busiest rank · {_crossing_text(world_size, link)}")
    run = _runs_by_algorithm(runs, world_size, n_bytes).get(algorithm)
    if run:
        wire = f", {_with_ratio(max(run.wire_bytes), sent)} on the wire" if run.wire_bytes else ""
        text += (f" · on real ranks: {run.steps} steps, {_with_ratio(max(run.sent_bytes), sent)}{wire}, "
                 f"{'every rank got the exact sum' if run.exact else 'the sum is WRONG'}")
    return text


def draw_algorithms(world_size: int = 4, n_bytes: int = MB, link: str = "NVLink 3", algorithm: str = "ring",
                    runs=(), figure=None):
    """Draw seconds over message size for every algorithm, and below it the busiest rank's bytes and the steps.

    n_bytes: size of the tensor, a multiple of 4. runs: AllReduceRuns; those of the same N and size are drawn over the
    theory. Returns the matplotlib Figure.
    """
    _check(n_bytes, link, algorithm)
    here = _runs_by_algorithm(runs, world_size, n_bytes)
    with style.drawing(figure, height=4.6) as figure:
        curves = figure.add_axes([0.095, 0.475, 0.865, 0.44])
        bars = figure.add_axes([0.225, 0.02, 0.36, 0.28])
        figure.text(0.012, 0.98, _title(world_size, link), va="top", fontsize=10, fontweight="bold")
        _draw_curves(curves, world_size, n_bytes, link, algorithm, runs)
        _draw_bars(bars, world_size, n_bytes, algorithm, here)
        figure.legend(handles=_legend(here), loc="upper left", bbox_to_anchor=(0.0, 0.372), ncols=3,
                      handlelength=1.2, columnspacing=1.2)
    return figure


def _check(n_bytes, link, algorithm):
    if whole_number("n_bytes", n_bytes, minimum=0) % ELEMENT_BYTES:
        raise ValueError(f"n_bytes must be a multiple of {ELEMENT_BYTES}, the bytes of one fp32 element, "
                         f"but {n_bytes} was given.")
    one_of("link", link, tuple(LINKS))
    one_of("algorithm", algorithm, tuple(ALGORITHMS))


def _busiest_bytes(algorithm, n_bytes, world_size):
    return ELEMENT_BYTES * int(all_reduce_elements_sent(algorithm, n_bytes // ELEMENT_BYTES, world_size).max())


def _runs_by_algorithm(runs, world_size, n_bytes):
    return {run.algorithm: run for run in runs if (run.world_size, run.elements * ELEMENT_BYTES) == (world_size, n_bytes)}


def _with_ratio(measured, predicted):
    return f"{bytes_text(measured)} (ratio {measured / predicted:.2f})" if predicted else bytes_text(measured)


def _crossing_text(world_size, link):
    crossing = tree_wins_below_bytes(world_size, link)
    return f"the tree beats the ring below {bytes_text(crossing)}" if crossing else "the tree never beats the ring"


def _title(world_size, link):
    if tree_wins_below_bytes(world_size, link):
        return f"{world_size:,} ranks over {link}: {_crossing_text(world_size, link)}"
    return f"On {world_size} ranks the tree saves no step: the ring is never slower"


# ---- the picture's parts ------------------------------------------------------------------------------------------

_DASHES = {"ring": "-", "tree": (0, (6, 2)), "recursive_halving_doubling": (0, (1, 1.2)), "gather_broadcast": (0, (6, 2, 1, 2))}
_CURVE_SIZES = np.logspace(3, 9, 49)
_TICK_BYTES = [10.0**power for power in range(3, 10)]


@cache
def _curve(algorithm, world_size, link):
    return np.array([all_reduce_seconds(algorithm, n_bytes, world_size, LINKS[link]) for n_bytes in _CURVE_SIZES])


def _draw_curves(ax, world_size, n_bytes, link, algorithm, runs):
    for name in [*(name for name in ALGORITHMS if name != algorithm), algorithm]:
        ax.plot(_CURVE_SIZES, _curve(name, world_size, link), **_line(name, algorithm))
    seconds = all_reduce_seconds(algorithm, n_bytes, world_size, LINKS[link])
    ax.axvline(n_bytes, color=style.INK, linewidth=0.8)
    ax.plot([n_bytes], [seconds], "o", color=style.colour("communication"), markersize=7, zorder=4, clip_on=False)
    crossing = tree_wins_below_bytes(world_size, link)
    if _CURVE_SIZES[0] <= crossing <= _CURVE_SIZES[-1]:
        _mark_crossing(ax, crossing, all_reduce_seconds("ring", crossing, world_size, LINKS[link]))
    if link == LOOPBACK:
        _mark_measured_seconds(ax, [run for run in runs if (run.world_size, run.algorithm) == (world_size, algorithm)])
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(_CURVE_SIZES[0], _CURVE_SIZES[-1])
    lowest, highest = ax.get_ylim()
    ax.set_ylim(lowest / 4, highest)  # room for the crossing's label below the curves
    low, high = np.log10(ax.get_ylim())
    ax.yaxis.set_major_locator(FixedLocator([10.0**power for power in range(int(np.ceil(low)), int(np.floor(high)) + 1)]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
    ax.set_xticks(_TICK_BYTES, [bytes_text(size) for size in _TICK_BYTES])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.grid()
    ax.set_xlabel("message size (one rank's tensor)", labelpad=2)
    ax.legend(handles=[Line2D([], [], label=label, **_line(name, algorithm)) for name, label in ALGORITHMS.items()],
              title="seconds by the α–β model", title_fontsize=8, alignment="left", loc="upper left", handlelength=3,
              frameon=True, framealpha=0.85, edgecolor="none")


def _line(name, chosen):
    """How the curve of an algorithm looks: the chosen one stands out, the others differ by their dashes."""
    if name == chosen:
        return {"linestyle": _DASHES[name], "color": style.colour("communication"), "linewidth": 2.6}
    return {"linestyle": _DASHES[name], "color": style.QUIET, "linewidth": 1.4}


def _mark_measured_seconds(ax, runs):
    for run in runs:
        ax.plot([run.elements * ELEMENT_BYTES], [run.seconds], "s", markersize=7, zorder=6,
                markerfacecolor=style.colour("communication"), markeredgecolor="black")
        ax.annotate("measured once", (run.elements * ELEMENT_BYTES, run.seconds), (-7, 0), textcoords="offset points",
                    ha="right", va="center", fontsize=8)


def _mark_crossing(ax, crossing, seconds):
    ax.plot([crossing], [seconds], "o", markerfacecolor="white", markeredgecolor=style.INK, markersize=7, zorder=5)
    foot = ax.get_xaxis_transform()  # x in bytes, y as a part of the axes' height
    ax.annotate("", (crossing, seconds), (crossing, 0.1), xycoords="data", textcoords=foot,
                arrowprops={"arrowstyle": "-", "color": style.INK, "linewidth": 0.8, "linestyle": (0, (1, 2))})
    side = "left" if crossing < 10 * _CURVE_SIZES[0] else "right" if crossing > _CURVE_SIZES[-1] / 10 else "center"
    ax.text(crossing, 0.035, f"tree = ring at {bytes_text(crossing)}", transform=foot, ha=side, fontsize=8, zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})


def _draw_bars(ax, world_size, n_bytes, algorithm, here):
    for row, (name, label) in enumerate(ALGORITHMS.items()):
        sent, run = _busiest_bytes(name, n_bytes, world_size), here.get(name)
        weight = "bold" if name == algorithm else "normal"
        ax.barh(row, sent, height=0.72, **style.theory("communication"))
        ax.annotate(label, (0, row), (-5, 0), textcoords="offset points", ha="right", va="center", fontsize=8, fontweight=weight)
        text = f"{bytes_text(sent)} in {all_reduce_steps(name, world_size):,} steps"
        if run:
            most = max(run.sent_bytes)
            ax.barh(row - 0.16, most, height=0.26, **style.measured("communication"))
            text += f"\nmeasured: {bytes_text(most)} ({most / sent:.2f}) in {run.steps} steps"
            if run.wire_bytes:
                ax.barh(row + 0.16, max(run.wire_bytes), height=0.26, hatch="||||", **style.measured("communication"))
        ax.annotate(text, (1, row), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                    va="center", fontsize=8, fontweight=weight, linespacing=1.3)
    ax.set_ylim(len(ALGORITHMS) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines["bottom"].set_visible(False)


def _legend(here):
    handles = [Patch(**style.theory("communication"), label="bytes sent by the busiest rank")]
    if here:
        handles.append(Patch(**style.measured("communication"), label="measured, by definition"))
    if any(run.wire_bytes for run in here.values()):
        handles.append(Patch(**style.measured("communication"), hatch="||||", label="measured on the wire"))
    return handles
