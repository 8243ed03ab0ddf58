"""The picture of lesson 03's cut: whole matrices on top, one lane per rank, and the cost of every cut below."""
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from utils.widgets import style
from utils.widgets.tensor_run import ELEMENT_BYTES

ACTIVATION_NAMES = {"none": "", "relu": "ReLU", "gelu": "GeLU"}
COLLECTIVE_NAMES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}

# All in inches
_WIDTH = style.WIDTH_INCHES
_LABEL, _SIGN, _MEETING, _CELL_HIGH = 0.56, 0.15, 0.4, 0.17
_SIGNS = ("·", "=")
_HEAD, _LANE_GAP, _REASON, _BELOW = 0.5, 0.13, 0.5, 1.34


@dataclass
class Sheet:
    """Cells with their colours, and small texts (x, y, text), to be drawn all at once."""

    corners: list = field(default_factory=list)
    colours: list = field(default_factory=list)
    texts: list = field(default_factory=list)


def number_text(value: float) -> str:
    """
    >>> number_text(-2.0), number_text(0.8413), number_text(3.9999)
    ('−2', '0.84', '4.00')
    """
    text = f"{value:.0f}" if value == int(value) else f"{value:.2f}"
    return text.replace("-", "−")


def figure_height(product) -> float:
    """Inches that `draw_product` needs."""
    return _HEAD + _strip_height(product) + product.tensor * _lane_height(product) + _REASON + _BELOW


def draw_product(figure, product, title, reason, others, measured):
    """Draw on an empty figure of `figure_height`.

    product   a CutProduct; title, reason: texts of one and of up to two lines
    others    {(cut_a, cut_b): a CutProduct, or why there is none}; measured: the same with CutRuns or None
    """
    height = figure_height(product)
    ax = figure.add_axes([0, 0, 1, 1])
    ax.set_axis_off()
    ax.set_xlim(0, _WIDTH)
    ax.set_ylim(0, height)
    ax.text(0.075, height - 0.07, title, va="top", fontsize=10, fontweight="bold")
    ax.text(0.075, height - 0.27, "blue: parts of A and B, one shade per rank · grey: finished numbers · white: a part of a sum",
            va="top", fontsize=7, color=style.QUIET)
    sheet, columns = Sheet(), _columns(product)
    top = height - _HEAD
    _draw_whole(ax, product, columns, top, sheet)
    top -= _strip_height(product)
    _draw_lanes(ax, product, columns, top, sheet)
    top -= product.tensor * _lane_height(product)
    _draw_sheet(ax, sheet, columns["size"])
    ax.text(0.075, top - 0.06, reason, va="top", fontsize=8, linespacing=1.35)
    _draw_costs(ax, product, others, measured, top - _REASON)


# ---- where things go ----------------------------------------------------------------------------------------------

def _columns(product):
    """Where things go along the width: the centre of each matrix's column and of the gap after it, "after x";
    the width of a cell, "cell x"; and the size of the numbers in points, "size"."""
    contents = {"x": [product.x], "a": [product.a], "y": [product.y, *product.y_parts], "act": product.activated,
                "b": [product.b], "z": [product.z, *product.z_parts]}
    counts = {"x": len(product.x[0]), "a": len(product.a[0]), "y": len(product.a[0]), "act": len(product.a[0]),
              "b": len(product.b[0]), "z": len(product.b[0])}
    gaps = {"x": _SIGN, "a": _SIGN, "y": _MEETING, "act": _SIGN, "b": _SIGN, "z": _MEETING}
    # A cell is as wide as its column's longest number asks for, with room for one more digit.
    letters = {name: 1 + max(2, *(len(number_text(value)) for part in parts for value in part.ravel()))
               for name, parts in contents.items()}
    room = _WIDTH - _LABEL - sum(gaps.values()) - 0.08
    letter = min(0.1, room / sum(counts[name] * letters[name] for name in counts))
    places, x = {"size": min(7.5, 118 * letter)}, _LABEL
    for name, count in counts.items():
        cell = places[f"cell {name}"] = letters[name] * letter
        places[name] = x + count * cell / 2
        x += count * cell
        places[f"after {name}"] = x + gaps[name] / 2
        x += gaps[name]
    return places


def _strip_height(product):
    return 0.2 + max(len(product.a), len(product.b)) * _CELL_HIGH + 0.16


def _lane_height(product):
    rows = max(len(part) for parts in (product.a_shards, product.b_shards) for part in parts[:1])
    return max(rows, 2) * _CELL_HIGH + _LANE_GAP


# ---- the parts ----------------------------------------------------------------------------------------------------

def _draw_whole(ax, product, columns, top, sheet):
    """The whole matrices, A and B in the shades of the ranks that hold their parts."""
    act = ACTIVATION_NAMES[product.activation]
    heads = {"x": "X", "a": "A", "y": "Y = X·A", "act": f"{act}(Y)" if act else "Y", "b": "B", "z": "Z"}
    for name, head in heads.items():
        ax.text(columns[name], top, head, ha="center", va="top", fontsize=8)
    ax.text(0.075, top, "whole", va="top", fontsize=8, color=style.QUIET)
    grey = style.half_strength("activations")
    middle = top - 0.2 - max(len(product.a), len(product.b)) * _CELL_HIGH / 2
    acted = product.activated[0] if product.cut_b == "columns" else np.concatenate(product.activated, axis=1)
    for name, matrix in {"x": product.x, "a": product.a, "y": product.y, "act": acted, "b": product.b, "z": product.z}.items():
        colours = np.full(matrix.shape, grey, dtype=object)
        if name in "ab":
            cut = product.cut_a if name == "a" else product.cut_b
            for rank, part in enumerate(np.split(colours, product.tensor, axis=1 if cut == "columns" else 0)):
                part[:] = _shade(rank, product.tensor)
        _draw_matrix(matrix, columns, name, middle, colours, sheet)
    _draw_signs(sheet, columns, middle)


def _draw_lanes(ax, product, columns, top, sheet):
    """What each rank holds and computes, and the bars where all ranks meet."""
    high, grey = _lane_height(product), style.half_strength("activations")
    for rank in range(product.tensor):
        lane = top - rank * high
        ax.plot([0.075, _WIDTH - 0.075], [lane, lane], color=style.FAINT, linewidth=0.8, zorder=0)
        ax.text(0.075, lane - high / 2, f"rank {rank}", va="center", fontsize=8)
        shade, alone = _shade(rank, product.tensor), product.tensor == 1
        for name, matrix, colour in (
                ("x", product.x_shards[rank], grey), ("a", product.a_shards[rank], shade),
                ("y", product.y_parts[rank], grey if product.cut_a == "columns" or alone else "white"),
                ("act", product.activated[rank], grey), ("b", product.b_shards[rank], shade),
                ("z", product.z_parts[rank], grey if product.cut_b == "columns" or alone else "white")):
            _draw_matrix(matrix, columns, name, lane - high / 2, np.full(matrix.shape, colour, dtype=object), sheet)
        _draw_signs(sheet, columns, lane - high / 2)
    bottom = top - product.tensor * high
    meetings = {each.matrix: each for each in product.synchronisations}
    for matrix, place in (("Y", columns["after y"]), ("Z", columns["after z"])):
        if matrix in meetings:
            name = f"{COLLECTIVE_NAMES[meetings[matrix].collective]} {matrix}"
            ax.add_patch(Rectangle((place - 0.085, bottom + 0.04), 0.17, top - bottom - 0.08, edgecolor="none",
                                   facecolor=style.colour("communication"), zorder=2))
            ax.text(place, (top + bottom) / 2, name, rotation=90, ha="center", va="center", fontsize=7, zorder=3)
        elif product.tensor > 1:
            ax.text(place, (top + bottom) / 2, "nobody waits", rotation=90, ha="center", va="center", fontsize=7,
                    color=style.QUIET, backgroundcolor="white")


def _draw_costs(ax, product, others, measured, top):
    """Bytes that a rank sends under each of the four cuts, and the synchronisations behind them."""
    ax.plot([0.075, _WIDTH - 0.075], [top, top], color=style.FAINT, linewidth=0.8)
    possible = [other for other in others.values() if not isinstance(other, str)]
    most = max([ELEMENT_BYTES * other.elements_sent for other in possible] + [1])
    second, left, wide, step = 1.6, 3.68, 0.75, 0.25
    for x, head in ((0.075, "the four cuts"), (second, "where the ranks meet"), (left, "bytes sent by a rank")):
        ax.text(x, top - 0.08, head, va="top", fontsize=8, color=style.QUIET)
    for number, (cuts, other) in enumerate(others.items()):
        y = top - 0.4 - number * step
        chosen = cuts == (product.cut_a, product.cut_b)
        weight = "bold" if chosen else "normal"
        if chosen:
            ax.add_patch(Rectangle((0.06, y - step / 2), _WIDTH - 0.12, step, facecolor="#EEF4FA", edgecolor="none", zorder=0))
        ax.text(0.075, y, f"A {cuts[0]}, B {cuts[1]}", va="center", fontsize=8, fontweight=weight)
        if isinstance(other, str):
            ax.text(second, y, f"not on {product.tensor} ranks: {other}", va="center", fontsize=8, color=style.QUIET)
            continue
        meetings = " + ".join(f"{COLLECTIVE_NAMES[each.collective]} {each.matrix}" for each in other.synchronisations)
        ax.text(second, y, meetings or "nowhere", va="center", fontsize=8, fontweight=weight)
        predicted, run = ELEMENT_BYTES * other.elements_sent, measured[cuts]
        ax.add_patch(Rectangle((left, y - 0.08), wide * predicted / most, 0.16, **style.theory("communication")))
        text = f"{predicted:g}"
        if run:
            ax.add_patch(Rectangle((left, y - 0.04), wide * run.sent_bytes / most, 0.08, **style.measured("communication")))
            text += f", measured {run.sent_bytes:g}" + (f" ({run.sent_bytes / predicted:.2f})" if predicted else "")
        ax.text(left + wide + 0.07, y, text, va="center", fontsize=8, fontweight=weight)


def _draw_matrix(matrix, columns, name, middle, colours, sheet):
    """Put the matrix's cells on the sheet around (the column's centre, `middle`), each in its colour."""
    rows, count = matrix.shape
    cell = columns[f"cell {name}"]
    left, top = columns[name] - count * cell / 2, middle + rows * _CELL_HIGH / 2
    for row in range(rows):
        for column in range(count):
            x, y = left + column * cell, top - (row + 1) * _CELL_HIGH
            sheet.corners.append([(x, y), (x + cell, y), (x + cell, y + _CELL_HIGH), (x, y + _CELL_HIGH)])
            sheet.colours.append(colours[row, column])
            sheet.texts.append((x + cell / 2, y + _CELL_HIGH / 2, number_text(matrix[row, column])))


def _draw_signs(sheet, columns, middle):
    places = ("after x", "after a", "after act", "after b")
    sheet.texts += [(columns[place], middle, sign) for place, sign in zip(places, _SIGNS * 2)]


def _draw_sheet(ax, sheet, size):
    """All cells as one collection and all numbers as one shape: hundreds of artists would take too long."""
    ax.add_collection(PolyCollection(sheet.corners, facecolors=sheet.colours, edgecolors="#AAAAAA", linewidths=0.6, zorder=1),
                      autolim=False)
    paths = [Affine2D().scale((8 if text in _SIGNS else size) / 720).translate(x, y).transform_path(_glyphs(text))
             for x, y, text in sheet.texts]
    # Not add_patch, which would look for the extent of every curve.
    ax.add_artist(PathPatch(Path.make_compound_path(*paths), facecolor=style.INK, linewidth=0, zorder=4))


@cache
def _glyphs(text):
    """The text as a path, 10 points high, its middle at the origin."""
    path = TextPath((0, 0), text, size=10)
    box, zero = path.get_extents(), _zero_extents()
    return Path(path.vertices - ((box.x0 + box.x1) / 2, (zero.y0 + zero.y1) / 2), path.codes)


@cache
def _zero_extents():
    return TextPath((0, 0), "0", size=10).get_extents()


def _shade(rank, tensor):
    """The parameters' colour, from strong for the first rank to light for the last."""
    strength = 0.75 - 0.5 * rank / max(1, tensor - 1) if tensor > 1 else 0.5
    return to_hex([1 - strength * (1 - part) for part in to_rgb(style.colour("parameters"))])
