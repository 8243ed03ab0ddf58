"""The picture of a pipeline schedule: a lane per rank, a box per action, in the kind's colour and the chunk's shade."""
from functools import cache

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from utils.theory.pipeline import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Simulation
from utils.widgets import style

COLOUR_NAMES = {FORWARD: "forward", BACKWARD_INPUT: "backward", BACKWARD_WEIGHT: "weight gradient", BACKWARD: "backward"}
"""The palette's colour of each kind. BW is B's colour with a foot of W's: it is both in one piece."""

KIND_LABELS = {FORWARD: "F forward", BACKWARD_INPUT: "B input", BACKWARD_WEIGHT: "W weights", BACKWARD: "BW both"}

SCHEDULE_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved 1f1b": "interleaved 1F1B", "looped bfs": "looped BFS",
                  "zb-h1": "ZB-H1", "zb-h2": "ZB-H2", "zb-v": "ZB-V", "dualpipe": "DualPipe", "dualpipe-v": "DualPipeV"}
"""How the papers write the names of utils.theory.pipeline.SCHEDULES, where they differ."""

_BOX, _FOOT = 0.8, 0.26                # height of a box in its lane; of a BW box, the part that is W's colour
_UPPER, _LOWER = (-0.4, 0.06), (0.1, 0.4)  # of a lane with both: from where to where simulation and recording go
_LARGEST, _SMALLEST = 7.5, 5.0         # points, of the numbers in the boxes


def draw_schedule(simulation: Simulation, axes=None, title: str | None = None, measured: bool = False,
                  recording: Simulation | None = None, now: float | None = None, end: float | None = None,
                  unit: str = "units of the costs", legend: bool = True):
    """Draw a Simulation: a lane per rank, a box per action, idle time hatched.

    Colours tell F, B, W and BW apart, shades the chunks of a rank; a box has its micro-batch's number where it fits.

    simulation  from `utils.theory.pipeline.simulate`, or a recorded run in the same form
    axes        matplotlib Axes to draw on; None: on a new figure, as high as the ranks need
    title       None: the schedule with p, m and v, and its bubble by both ways of counting
    measured    `simulation` is a recorded run: solid colours and black edges
    recording   a recorded run of the same schedule, in the same unit, drawn in the lower part of each lane
    now         a moment; what lies after it is greyed. None: nothing is
    end         where the time axis ends, for pictures to be compared; None: with the schedule
    unit        what the label of the time axis says, such as "T_F" or "seconds"
    legend      whether to explain colours and shades above the lanes

    Returns the matplotlib Figure. Raises ValueError when `recording` has another number of ranks.
    """
    if axes is None:
        ranks = simulation.schedule.pipeline
        inches = ranks * lane_inches(ranks, recording is not None)
        height = inches + 0.88 - 0.2 * (not legend)
        with style.drawing(height=height) as figure:
            axes = figure.add_axes([0.08, 0.42 / height, 0.9, inches / height])
            _draw(axes, simulation, title, measured, recording, now, end, unit, legend)
    else:
        _draw(axes, simulation, title, measured, recording, now, end, unit, legend)
    return axes.figure


def _draw(axes, simulation, title, measured, recording, now, end, unit, legend):
    last = max(each.total_time for each in (simulation, recording) if each is not None)
    axes.set_xlim(0, (last if end is None else end) or 1)  # costs may all be 0
    style.rank_lanes(axes, simulation.schedule.pipeline)
    axes.spines["bottom"].set_visible(False)
    draw_lanes(axes, simulation, measured, recording)
    if now is not None and now < last:
        grey_after(axes, now, simulation.schedule.pipeline)
    axes.set_xlabel(f"time ({unit})", labelpad=1)
    title = schedule_title(simulation) if title is None else title
    points = axes.get_window_extent().width / axes.figure.dpi * 72
    axes.set_title(title, loc="left", pad=18 if legend else 5, fontsize=min(10, points / (0.63 * max(1, len(title)))))
    if legend:
        axes.legend(handles=legend_handles([simulation], recording, measured), loc="lower left", bbox_to_anchor=(0, 1), **LEGEND)


LEGEND = {"ncols": 8, "handlelength": 1.2, "handletextpad": 0.5, "columnspacing": 1.0, "borderaxespad": 0.3, "fontsize": 7.5,
          "handler_map": {tuple: HandlerTuple(None, pad=0)}}
"""Keyword arguments for a legend of `legend_handles` in one row."""


def schedule_title(simulation: Simulation) -> str:
    """The schedule and its bubble by both ways of counting.

    >>> from utils.theory.pipeline import build, simulate
    >>> schedule_title(simulate(build("1f1b", 4, 8)))
    '1F1B, p = 4, m = 8: bubble 27 % of the step, 38 % of the work'
    """
    schedule = simulation.schedule
    chunks = f", v = {schedule.chunks}" if schedule.visits > 1 else ""
    return (f"{name_text(schedule.name)}, p = {schedule.pipeline}, m = {schedule.micro_batches}{chunks}: "
            f"{bubble_text(simulation)}")


def name_text(name: str) -> str:
    """A schedule's name as the papers write it."""
    return SCHEDULE_NAMES.get(name, name)


def bubble_text(simulation: Simulation) -> str:
    """The bubble as a share of the step's time, and of the time that the work alone takes."""
    if simulation.bubble_time <= 1e-9 * simulation.span_time:  # the rest that adding up floats leaves
        return "no bubble"
    return (f"bubble {percent_text(simulation.bubble_rate)} of the step, "
            f"{percent_text(simulation.bubble_over_ideal)} of the work")


def percent_text(share: float) -> str:
    """
    >>> percent_text(0.2727), percent_text(0.0213), percent_text(21)
    ('27 %', '2.1 %', '2,100 %')
    """
    return f"{100 * share:,.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


# ---- the lanes ----------------------------------------------------------------------------------------------------

def lane_inches(ranks: int, with_recording: bool = False) -> float:
    """How high a lane should be when there are so many."""
    return (0.33 if ranks <= 4 else 0.24 if ranks <= 8 else 0.17) * (1.35 if with_recording else 1)


def draw_lanes(axes, simulation: Simulation, measured: bool = False, recording: Simulation | None = None, top: float = 0):
    """Draw the boxes of all ranks, and the recording's below them; the time axis must have its limits already.

    top: the height of rank 0's lane; rank r's is r below it.
    """
    if recording is not None and recording.schedule.pipeline != simulation.schedule.pipeline:
        raise ValueError(f"The schedule has {simulation.schedule.pipeline} ranks, but the recording "
                         f"{recording.schedule.pipeline}. Give a recording of the same schedule.")
    begin, end = axes.get_xlim()
    points = axes.get_window_extent().width / axes.figure.dpi * 72 / (end - begin)  # of one unit of time
    if recording is None:
        _draw_boxes(axes, simulation, measured, (top - _BOX / 2, top + _BOX / 2), points, numbers=True)
    else:
        _draw_boxes(axes, simulation, False, (top + _UPPER[0], top + _UPPER[1]), points, numbers=True)
        _draw_boxes(axes, recording, True, (top + _LOWER[0], top + _LOWER[1]), points, numbers=False)


def grey_after(axes, now: float, ranks: int, top: float = 0) -> None:
    """Mark the moment `now` and let everything after it step back, in the lanes of `ranks` ranks from `top` on."""
    low, high = top - 0.5, top + ranks - 0.5
    axes.add_artist(Rectangle((now, low), axes.get_xlim()[1] - now, high - low, facecolor="white", alpha=0.66, zorder=4))
    axes.add_line(Line2D([now, now], [low, high], color=style.INK, linewidth=1.4, zorder=5))


def write(axes, texts, x, y, size, ink=style.INK, **where) -> None:
    """Write many short texts, each centred at its (x, y), as one artist: far quicker than as many texts.

    where: `transform` of the places, the data's if not given, and other properties of a collection
    """
    places = where.pop("transform", axes.transData)
    pixels = Affine2D().scale(size / 10 * axes.figure.dpi / 72)
    axes.add_collection(PathCollection([style.text_marker(text) for text in texts], offsets=np.stack([x, y], -1),
                                       offset_transform=places, transform=pixels, facecolor=ink, linewidth=0, zorder=3,
                                       **where), autolim=False)


def _draw_boxes(axes, simulation, measured, lane, points, numbers):
    """Boxes of every rank r between `lane`'s two heights + r; `points`: width of a unit of time."""
    ranks = np.arange(simulation.schedule.pipeline)
    begin, end = 0 * ranks, 0 * ranks + simulation.total_time
    axes.add_artist(PathPatch(_rectangles(begin, end, ranks, lane), **style.idle()))
    shades, high = chunk_strengths(simulation.schedule.chunks, measured), lane[1] - lane[0]
    for (kind, chunk), (starts, ends, at_ranks, micro_batches) in _by_kind_and_chunk(simulation).items():
        face, width = mixed(COLOUR_NAMES[kind], shades[chunk]), points * np.median(ends - starts)
        edge = {"edgecolor": "black" if measured else "white", "linewidth": min(0.8, 0.12 * width)}  # narrow: not all edge
        axes.add_artist(PathPatch(_rectangles(starts, ends, at_ranks, lane), facecolor=face, **edge))
        middle = (lane[0] + lane[1]) / 2
        if kind == BACKWARD:
            foot = _rectangles(starts, ends, at_ranks, (lane[1] - _FOOT * high, lane[1]))
            axes.add_artist(PathPatch(foot, facecolor=mixed("weight gradient", shades[chunk]), **edge))
            middle -= _FOOT / 2 * high
        size = _number_size(width, simulation.schedule.micro_batches)
        if numbers and size:
            write(axes, map(str, micro_batches), (starts + ends) / 2, at_ranks + middle, size, _ink_on(face))


def _by_kind_and_chunk(simulation):
    """{(kind, chunk): (starts, ends, ranks, micro-batches)} as arrays."""
    found = {}
    for rank, row in enumerate(simulation.timeline):
        for action in row:
            found.setdefault((action.kind, action.chunk), []).append((action.start, action.end, rank, action.micro_batch))
    return {key: tuple(np.array(column) for column in zip(*rows)) for key, rows in sorted(found.items())}


def _rectangles(starts, ends, ranks, lane):
    """One path of many rectangles: a single artist draws quicker than one for each."""
    low, high = ranks + lane[0], ranks + lane[1]
    corners = np.stack([np.stack([starts, ends, ends, starts, starts], -1), np.stack([low, low, high, high, low], -1)], -1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners.reshape(-1, 2), np.tile(np.array(codes, dtype=Path.code_type), len(corners)))


def _number_size(width, count):
    """Font size at which the largest of `count` numbers fits into a box `width` points wide; 0 where none does."""
    widest = 0.2 * np.abs(style.text_marker(str(count - 1)).vertices[:, 0]).max()  # in font sizes
    size = min(_LARGEST, 0.86 * width / widest)
    return size if size >= _SMALLEST else 0


# ---- colours and legend -------------------------------------------------------------------------------------------

def chunk_strengths(chunks: int, measured: bool = False) -> list[float]:
    """How much of the kind's colour each chunk of a rank has, the rest being white: less from chunk to chunk."""
    strongest, weakest = (1, 0.55) if measured else (0.75, 0.3)
    if chunks == 1:
        return [1 if measured else 0.5]
    return list(np.linspace(strongest, weakest, chunks))


@cache
def mixed(meaning: str, strength: float) -> str:
    """The palette's colour for a thing, thinned with white."""
    return to_hex([1 - strength * (1 - part) for part in to_rgb(style.colour(meaning))])


def _ink_on(face):
    red, green, blue = to_rgb(face)
    return style.INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.45 else "white"


def legend_handles(simulations, recording=None, measured: bool = False) -> list:
    """What the colours and shades of these pictures mean."""
    kinds = {action.kind for each in simulations for row in each.timeline for action in row}
    look = style.measured if measured else style.theory
    handles = [_side_by_side([look(name) for name in (COLOUR_NAMES[kind], "weight gradient")[:len(kind)]], label)
               for kind, label in KIND_LABELS.items() if kind in kinds]
    chunks = max(each.schedule.chunks for each in simulations)
    if chunks > 1:
        shades = [{"facecolor": mixed("forward", strength)} for strength in chunk_strengths(chunks, measured)]
        handles.append(_side_by_side(shades, f"chunk 0 to {chunks - 1}"))
    handles.append(Patch(**style.idle(), label="idle"))
    if recording is not None:
        handles.append(Patch(**style.measured("forward"), label="measured"))
    return handles


def _side_by_side(looks, label):
    return _Entry((Patch(**look) for look in looks), label)


class _Entry(tuple):
    """One entry of several patches; `legend` asks its handles for their label."""

    def __new__(cls, patches, label):
        entry = super().__new__(cls, patches)
        entry.label = label
        return entry

    def get_label(self):
        return self.label
