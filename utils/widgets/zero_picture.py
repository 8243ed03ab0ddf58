"""The picture of lesson 02's widget: four stages as stacked bars, with what each of them means written beside it."""
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from utils.widgets import style
from utils.widgets.style import bytes_text

STATE = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state"}
"""The parts of the training state, with their colours' names."""

_LEFT, _RIGHT = 0.1, 0.485  # of the bars; all places are parts of the figure's width and height
_COLUMNS, _COLUMNS_BELOW = (0.505, 0.625, 0.75, 0.873), (0.505, 0.675, 0.845)
_ROWS, _ROWS_BELOW = (0.822, 0.747, 0.672, 0.597), (0.303, 0.2205, 0.138, 0.0555)
_BAR, _BAND = 0.046, 0.069
_GATHERED = {**style.theory("parameters"), "hatch": "xxxx", "edgecolor": "white"}
_WIDEST = 4
"""The axis ends at so many times the GPU's memory (or the chosen stage, if larger); longer bars are cut off there."""


def count_text(count: float) -> str:
    """
    >>> count_text(7.5e9), count_text(1e12), count_text(1.5e8)
    ('7.5B', '1T', '150M')
    """
    size, letter = next((size, letter) for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1, "")) if count >= size)
    return f"{count / size:,.3g}{letter}"


def draw_plan(figure, title, basis, ranks, chosen, memory, gpu, largest, sent, small, measured, small_ranks):
    """Draw on an empty figure. Lists have an entry for each stage.

    ranks     ZeroBytes; memory, gpu: the GPU's bytes and name
    largest   Transformers, or None where nothing fits; sent: bytes per step
    small     Footprints predicted for the small GPT on `small_ranks` real ranks; measured: ZeroRuns or None
    """
    ax = figure.add_axes([0, 0, 1, 1])  # a single one, without ticks: axes take longer to set up than all that is on them
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.text(0.012, 0.985, title, va="top", fontsize=10, fontweight="bold")
    ax.text(0.012, 0.945, basis, va="top", fontsize=7, color=style.QUIET)
    _draw_ranks(ax, ranks, chosen, memory, gpu, largest, sent)
    ax.legend(handles=_legend(ranks), loc="upper left", bbox_to_anchor=(0.003, 0.553), ncols=6, fontsize=7.5,
              handlelength=1.1, handletextpad=0.5, columnspacing=1.1, borderaxespad=0.3)
    ax.plot([0.012, 0.988], [0.49, 0.49], color=style.FAINT, linewidth=0.8)
    ax.text(0.012, 0.47, _small_head(measured, small_ranks), va="top", fontsize=8, fontweight="bold")
    ax.text(0.012, 0.433, _small_key(measured), va="top", fontsize=7, color=style.QUIET)
    _draw_small(ax, small, chosen, measured)


def _draw_ranks(ax, ranks, chosen, memory, gpu, largest, sent):
    ends = [rank.total_bytes + rank.cpu_bytes for rank in ranks]
    most = min(max(ends), _WIDEST * max(memory, ends[chosen]))
    beyond = memory > _WIDEST * most  # the bars would be too short to see
    scale = 1 / (1.02 * (most if beyond else max(most, memory)))
    _stages(ax, _ROWS, chosen)
    lefts = _stack(ax, _ROWS, [vars(rank) for rank in ranks], scale, _BAR, style.theory)
    for part, look in (("gathered", _GATHERED), ("activations", style.theory("activations")), ("cpu_bytes", style.idle())):
        lefts = _bars(ax, _ROWS, lefts, [getattr(rank, part) * scale for rank in ranks], _BAR, look)
    for row, end in zip(_ROWS, ends):
        if end * scale > 1:
            ax.plot([_RIGHT - 0.008], [row], ">", color=style.INK, markersize=3.5)
    text, top = f"{gpu}: {bytes_text(memory)}", _ROWS[0] + 0.045
    place = _place(memory * scale)
    if beyond:
        ax.text(_RIGHT, top, f"{text} →", ha="right", fontsize=8)
    else:
        ax.plot([place, place], [_ROWS[-1] - 0.038, top - 0.007], color=style.INK, linewidth=1.2, zorder=3)
        share = memory * scale
        ax.text(place, top, text, ha="left" if share < 0.3 else "right" if share > 0.7 else "center", fontsize=8)
    room = [memory - rank.total_bytes for rank in ranks]
    _table(ax, _ROWS, _COLUMNS, {
        "one rank": [bytes_text(rank.total_bytes) for rank in ranks],
        "left": [bytes_text(left) if left >= 0 else f"−{bytes_text(-left)}" for left in room],
        "largest GPT": [count_text(best.parameters) if best else "none" for best in largest],
        "sent per step": [bytes_text(n_bytes) for n_bytes in sent]}, chosen)


def _draw_small(ax, small, chosen, measured):
    scale = 1 / (1.02 * max(predicted.peak_bytes for predicted in small))
    _stages(ax, _ROWS_BELOW, chosen)
    lefts = _stack(ax, _ROWS_BELOW, [vars(predicted.state) for predicted in small], scale, _BAR, style.theory)
    peaks = [(predicted.peak_bytes - predicted.state.total_bytes) * scale for predicted in small]
    _bars(ax, _ROWS_BELOW, lefts, peaks, _BAR, style.idle())
    done = [(row, run) for row, run in zip(_ROWS_BELOW, measured) if run]
    if done:
        rows, runs = zip(*done)
        _stack(ax, rows, [vars(run.measured.state) for run in runs], scale, _BAR / 2, style.measured)
        ax.plot([_place(run.measured.peak_bytes * scale) for run in runs], rows, "D", color="black", markersize=4, zorder=5)
    cells = [[_cell(*pair) for pair in zip(_sizes(predicted), _sizes(run.measured) if run else (None,) * 3)]
             for predicted, run in zip(small, measured)]
    _table(ax, _ROWS_BELOW, _COLUMNS_BELOW, dict(zip(("at rest", "peak", "sent per step"), zip(*cells))), chosen)


def _place(share):
    return _LEFT + share * (_RIGHT - _LEFT)


def _stack(ax, rows, parts, scale, height, look):
    """Draw the training state as stacked bars and return where they end."""
    lefts = [0.0] * len(rows)
    for part, meaning in STATE.items():
        lefts = _bars(ax, rows, lefts, [each[part] * scale for each in parts], height, look(meaning))
    return lefts


def _bars(ax, rows, lefts, widths, height, look):
    """Bars at the height of `rows`, from `lefts` on, as shares of the room for bars; returns where they end."""
    ends = [left + width for left, width in zip(lefts, widths)]
    corners = [[(_place(min(x, 1)), y) for x, y in ((left, low), (end, low), (end, low + height), (left, low + height))]
               for left, end, low in zip(lefts, ends, (row - height / 2 for row in rows)) if end > left and left < 1]
    if corners:
        ax.add_collection(PolyCollection(corners, **{"linewidth": 0, **look}), autolim=False)
    return ends


def _sizes(footprint):
    return footprint.state.total_bytes, footprint.peak_bytes, footprint.sent_bytes


def _cell(predicted, measured=None):
    if measured is None:
        return bytes_text(predicted)
    ratio = f" ({measured / predicted:.2f})" if predicted else ""
    return f"{bytes_text(predicted)}\n{bytes_text(measured)}{ratio}"


def _table(ax, rows, columns, texts, chosen):
    """Write beside each bar what it means."""
    for x, (head, cells) in zip(columns, texts.items()):
        ax.text(x, rows[0] + 0.045, head, fontsize=8, color=style.QUIET)
        for number, (row, cell) in enumerate(zip(rows, cells)):
            ax.text(x, row, cell, va="center", fontsize=8, linespacing=1.2, fontweight="bold" if number == chosen else "normal")


def _stages(ax, rows, chosen):
    """Name the rows and mark the chosen one by a band across the figure."""
    ax.add_patch(Rectangle((0.01, rows[chosen] - _BAND / 2), 0.978, _BAND, facecolor="#EEF4FA", edgecolor="none", zorder=0))
    ax.plot([_LEFT, _LEFT], [rows[0] + 0.038, rows[-1] - 0.038], color=style.QUIET, linewidth=0.8, zorder=3)
    for stage, row in enumerate(rows):
        ax.text(_LEFT - 0.01, row, f"stage {stage}", ha="right", va="center", fontsize=8,
                fontweight="bold" if stage == chosen else "normal")


def _legend(ranks):
    handles = [Patch(**style.theory(meaning), label=meaning) for meaning in (*STATE.values(), "activations")]
    handles.append(Patch(**_GATHERED, label="gathered layer"))
    return handles + ([Patch(**style.idle(), label="on the CPU")] if any(rank.cpu_bytes for rank in ranks) else [])


def _small_head(measured, small_ranks):
    ranks = f"{small_ranks} real rank{'s' * (small_ranks > 1)}"
    return f"A small GPT on {ranks}: {'predicted and measured' if any(measured) else 'predicted, not yet run'}"


def _small_key(measured):
    key = "coloured: held between two steps · hatched: more at the peak of a step"
    return key + (" · narrow: measured, ◆ its peak, second line" if any(measured) else "")
