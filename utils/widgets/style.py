"""How every figure of the course looks, and the few things that every figure needs.

A figure is 6.25 inches wide at 144 dots per inch: 900 pixels, and still readable at 600, beside a widget's controls.
Its background is opaque white, so that it reads the same on JupyterLab's dark theme. Margins are chosen by the
drawing function and not searched for: a tight or constrained layout draws everything twice, and a picture that
follows a slider has 100 ms.

Colours come from `utils.palette` by meaning: ``colour("communication")``. Theory is the colour at half strength,
a measurement the same colour at full strength with a black edge, idle time white with light hatching.
"""
import contextlib
import functools
import io
import textwrap
import threading

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from PIL import Image

from utils.palette import COLOURS

WIDTH_INCHES, DPI = 6.25, 144
INK, QUIET, FAINT = "#222222", "#767676", "#DDDDDD"
"""Text; text that steps back (still 4.5:1 on white); grids and empty cells."""

SETTINGS = {
    "figure.figsize": (WIDTH_INCHES, 3.5),
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.8,
    "path.simplify": True,
}
"""matplotlib's settings for the course, as for `matplotlib.rcParams`."""


class Picture(Figure):
    """A figure that a notebook shows although pyplot does not know it, so that nothing has to close it."""

    def _repr_png_(self):
        return png(self)


def use_style() -> None:
    """Give the notebook's own matplotlib figures the look of the course, from here on."""
    matplotlib.rcParams.update(SETTINGS)


@contextlib.contextmanager
def drawing(figure: Figure | None = None, height: float = 3.5):
    """Hand out an empty figure, `height` inches high, to draw on with the course's settings.

    figure: one to be emptied and used again, which saves time when a slider moves; None for a new one.
    """
    with _settings():
        if figure is None:
            figure = Picture(figsize=(WIDTH_INCHES, height), dpi=DPI)
            FigureCanvasAgg(figure)
        else:
            figure.clear()
            figure.set_size_inches(WIDTH_INCHES, height)
        yield figure


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def _settings():
    """The course's settings for a while. They belong to the whole process, and widgets draw in several threads."""
    with _one_at_a_time:
        before = {name: matplotlib.rcParams[name] for name in SETTINGS}
        matplotlib.rcParams.update(SETTINGS)
        try:
            yield
        finally:
            matplotlib.rcParams.update(before)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file of at most 256 colours: a quarter of the usual size, and quicker to write."""
    with _settings():
        return _write_png(_pixels(figure))


def png_with_text(figure: Figure, text: str) -> bytes:
    """The figure as a PNG file with a line of text above it, wrapped where it is too long."""
    with _settings():
        picture = _pixels(figure)
        lines = textwrap.wrap(text, 90)
        strip = Picture(figsize=(WIDTH_INCHES, 0.16 + 0.19 * len(lines)), dpi=DPI)
        FigureCanvasAgg(strip)
        strip.text(0.012, 1 - 0.09 / strip.get_figheight(), "\n".join(lines), va="top", fontsize=9, linespacing=1.35)
        head = _pixels(strip)
    both = Image.new("RGB", (picture.width, head.height + picture.height), "white")
    both.paste(head, (0, 0))
    both.paste(picture, (0, head.height))
    return _write_png(both)


def _pixels(figure):
    figure.canvas.draw()
    size = figure.canvas.get_width_height()
    return Image.frombuffer("RGBA", size, figure.canvas.buffer_rgba(), "raw", "RGBA", 0, 1).convert("RGB")


def _write_png(image):
    few_colours = image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few_colours.putpalette([255 if level > 252 else level for level in few_colours.getpalette()])  # white stays white
    file = io.BytesIO()
    few_colours.save(file, "png", compress_level=6)
    return file.getvalue()


# ---- colours by meaning -------------------------------------------------------------------------------------------

def colour(meaning: str) -> str:
    """The course's colour for a thing, for example "communication"; raises ValueError with the list of things."""
    if meaning not in COLOURS:
        raise ValueError(f"There is no colour for {meaning!r}. The palette knows: {', '.join(COLOURS)}.")
    return COLOURS[meaning]


def half_strength(meaning: str) -> str:
    """The same colour, half of it white: the colour of theory. Opaque, so that grids do not shine through."""
    return to_hex([(1 + part) / 2 for part in to_rgb(colour(meaning))])


def theory(meaning: str) -> dict:
    """Keyword arguments for a bar or patch that shows what a formula says."""
    return {"facecolor": half_strength(meaning), "edgecolor": "none"}


def measured(meaning: str) -> dict:
    """Keyword arguments for a bar or patch that shows what was measured."""
    return {"facecolor": colour(meaning), "edgecolor": "black", "linewidth": 0.9}


def idle() -> dict:
    """Keyword arguments for a bar or patch that shows idle time, or room that nothing fills."""
    return {"facecolor": colour("idle"), "edgecolor": "#BBBBBB", "hatch": "////", "linewidth": 0}


# ---- axes ---------------------------------------------------------------------------------------------------------

def rank_lanes(ax, world_size: int) -> None:
    """One lane per rank, rank 0 on top: lane r is centred at height r."""
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.set_ylim(world_size - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


@functools.cache
def text_marker(text: str) -> Path:
    """A short text as a marker for `ax.plot`: drawn as a shape, hundreds of them cost no more than one text.

    Its vertices are in tenths of a font size, around its centre; the markersize is twice the largest of them.
    """
    path = TextPath((0, 0), text, size=10)
    box = path.get_extents()
    return Path(path.vertices - ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2), path.codes)


# ---- numbers with their units -------------------------------------------------------------------------------------

def bytes_text(n_bytes: float) -> str:
    """Three significant digits and a unit of thousands.

    >>> bytes_text(1_500_000), bytes_text(250), bytes_text(999_999)
    ('1.5 MB', '250 B', '1 MB')
    """
    return _with_unit(n_bytes, ("B", "KB", "MB", "GB", "TB", "PB"))


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(0.000023), seconds_text(1.5), seconds_text(0)
    ('23 µs', '1.5 s', '0 s')
    """
    if seconds == 0 or seconds >= 0.9995:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return _with_unit(seconds * 1e9, ("ns", "µs", "ms", "s"))


def _with_unit(value, units):
    for unit in units[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.4g} {units[-1]}"
