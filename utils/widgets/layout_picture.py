"""The planner's picture: the fastest layouts as stacked bars, why the others fall out, and a small one on real ranks."""
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from utils.widgets import style
from utils.widgets.style import INK, QUIET, bytes_text, colour, half_strength, idle, seconds_text

LINES = 8
HEIGHT_INCHES, _RANKING_INCHES = 5.75, 4.6
_LEFT, _BARS_WIDTH = 0.38, 0.48

# parts of a step, as one sees them: its look and the theory's names for it
_LOOKS = {
    "computing": ({"facecolor": colour("forward")}, ("matmul", "attention", "logits")),
    "memory-bound": ({"facecolor": half_strength("forward")}, ("element-wise",)),
    "tensor parallel": ({"facecolor": colour("communication")}, ("tensor all-reduce",)),
    "pipeline messages": ({"facecolor": half_strength("communication")}, ("pipeline messages",)),
    "bubble": (idle(), ("bubble",)),
}
_REST = "data parallel, optimizer", {"facecolor": colour("gradients")}


def parts_shown(parts: dict) -> dict:
    """A step's seconds by the names of the legend; nothing is left out."""
    shown = {label: sum(parts.get(name, 0.0) for name in names) for label, (_, names) in _LOOKS.items()}
    return shown | {_REST[0]: sum(parts.values()) - sum(shown.values())}


def draw_ranking(figure, found, paper_place, reasons, layout_text, chip):
    """The first LINES of the plan and, where it comes later, the paper's own; below it the reasons of the rejected."""
    places = list(range(min(LINES, len(found.ranked))))
    if paper_place is not None and paper_place not in places:
        places.append(paper_place)
    if places:
        _draw_bars(_axes(figure, 0.31, 0.55), found, places, paper_place, layout_text)
    else:
        figure.text(0.5, _height(0.6), "No layout fits", ha="center", fontsize=14, color=INK)
    figure.text(0.015, _height(0.965), _title(found, paper_place), fontsize=10, weight="bold", va="top")
    figure.text(0.015, _height(0.91), f"seconds per step on the busiest rank · memory on the fullest, of "
                f"{bytes_text(chip.memory_bytes)}", fontsize=8, color=QUIET, va="top")
    _draw_reasons(_axes(figure, 0.055, 0.1), reasons)


def draw_small(figure, name, predicted, run):
    """Below the ranking: bytes that each dimension sends in the small layout called `name`, and a LayoutRun of it or None."""
    figure.add_artist(Line2D([0.015, 0.985], [_height(0.03)] * 2, color=style.FAINT, linewidth=0.8))
    figure.text(0.015, _height(0.0), f"The fastest, small: {name}", fontsize=8, weight="bold", va="top")
    key = "wide: by formula · narrow: measured" if run else "by formula, not yet run"
    figure.text(0.015, _height(-0.042), f"bytes that all ranks send in a step of a small Llama · {key}", fontsize=7,
                color=QUIET, va="top")
    axes = figure.add_axes((_LEFT, 0.01, _BARS_WIDTH, 0.125))
    axes.axis("off")
    axes.set_ylim(2.6, -0.6)
    if not predicted:
        axes.text(0, 1, "one rank sends nothing", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        return
    axes.set_xlim(0, 1.02 * max(predicted.values()))
    for line, (dimension, n_bytes) in enumerate(predicted.items()):
        axes.barh(line, n_bytes, height=0.72, **style.theory("communication"))
        axes.text(-0.015, line, dimension, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
        text = bytes_text(n_bytes)
        if run:
            axes.barh(line, run.sent_bytes[dimension], height=0.36, **style.measured("communication"))
            text += f" ({run.sent_bytes[dimension] / n_bytes:.2f})"
        axes.text(1.02, line, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def _height(share):
    """A height within the ranking, which is the upper part of the figure, as a share of the whole figure's."""
    return 1 - (1 - share) * _RANKING_INCHES / HEIGHT_INCHES


def _axes(figure, bottom, height):
    return figure.add_axes((_LEFT, _height(bottom), _BARS_WIDTH, height * _RANKING_INCHES / HEIGHT_INCHES))


def _title(found, paper_place):
    if not found.ranked:
        return "No layout fits: see below why they fall out"
    title = f"{len(found.ranked):,} layouts fit"
    if paper_place is None:
        return title
    if paper_place == 0:
        return f"{title}; the paper's own is the fastest"
    slower = found.ranked[paper_place].step.seconds / found.best.step.seconds - 1
    return f"{title}; the paper's own (►) is no. {paper_place + 1}, {100 * slower:.0f} % slower than the first"


def _draw_bars(axes, found, places, paper_place, layout_text):
    looks = {label: look for label, (look, _) in _LOOKS.items()} | {_REST[0]: _REST[1]}
    labels = []
    for line, place in enumerate(places):
        planned, left = found.ranked[place], 0.0
        for label, seconds in parts_shown(planned.step.parts).items():
            axes.barh(line, seconds, left=left, height=0.7, **{"edgecolor": "white", "linewidth": 0.4} | looks[label])
            left += seconds
        memory = bytes_text(planned.memory.total_bytes)
        axes.text(1.02, line, memory, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        labels.append(f"{'► ' if place == paper_place else ''}{place + 1}. {_short(planned.layout, layout_text)}")
    axes.set_yticks(range(len(places)), labels, fontsize=7.3)
    for label, place in zip(axes.get_yticklabels(), places, strict=True):
        label.set_fontweight("bold" if place == paper_place else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(places), 4) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda seconds, _: seconds_text(seconds))
    handles = [Patch(label=label, **look) for label, look in looks.items()]
    axes.figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.01, _height(0.245)), ncols=len(looks), fontsize=7,
                       handlelength=1.1, handletextpad=0.4, columnspacing=0.9)


def _short(layout, layout_text):
    return layout_text(layout).replace(" recomputation", "")


def _draw_reasons(axes, reasons):
    """One bar cut into the reasons: heads, layers, batch, schedule (what must divide does not), memory."""
    total, left = sum(reasons.values()), 0
    axes.axis("off")
    if not total:
        return
    axes.text(-0.015, 0, f"{total:,} fall out for", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    shades = ("#BBBBBB", "#D2D2D2", "#E0E0E0", "#EBEBEB", "#F4F4F4")
    for (reason, count), shade in zip(reasons.items(), shades):
        axes.barh(0, count, left=left, height=0.8, color=shade, edgecolor="white")
        if count / total > 0.14:
            axes.text(left + count / 2, 0, f"{reason}\n{count:,}", ha="center", va="center", fontsize=7, linespacing=0.95)
        left += count
    axes.set_xlim(0, total)
    axes.set_ylim(-0.5, 0.5)
