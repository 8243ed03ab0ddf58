"""The picture of lesson 04's widget: schedules one below the other on one time axis, with each rank's memory and messages."""
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from utils.theory.pipeline import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Simulation
from utils.widgets import style
from utils.widgets.pipeline_picture import (
    LEGEND,
    bubble_text,
    draw_lanes,
    grey_after,
    lane_inches,
    legend_handles,
    name_text,
    percent_text,
    write,
)


@dataclass(frozen=True)
class Memory:
    """How to count what ranks hold, in micro-batches' activations of a whole rank's layers.

    before_weight  share of a micro-batch that B leaves for W
    limit          what a rank has room for; 0: no limit
    now            the moment that is looked at; None: the end
    """

    before_weight: float = 0
    limit: int = 0
    now: float | None = None

    def peaks(self, simulation: Simulation):
        """The most that each rank holds at once."""
        return simulation.peak_memory(1.0, self.before_weight)

    def held(self, simulation: Simulation, time: float):
        """What each rank holds at `time`: F's share from F's start, less what B and W have freed by their end."""
        kept = self.before_weight
        freed = {BACKWARD: 1.0, BACKWARD_INPUT: 1.0 - kept, BACKWARD_WEIGHT: kept}
        rows = []
        for row in simulation.timeline:
            taken = sum(action.kind == FORWARD and action.start <= time for action in row)
            rows.append(taken - sum(freed.get(action.kind, 0) for action in row if action.end <= time))
        return np.array(rows) / simulation.schedule.visits


_LEFT, _WIDE, _RANK = 0.072, 0.67, -0.053             # of the lanes, in parts of the figure's width; of "rank 0", in theirs
_BARS, _NUMBER, _SENDS = (1.025, 1.16), 1.225, 1.32  # columns beside the lanes, in parts of their width
_HEAD, _TITLE, _FOOT = 0.23, 0.3, 0.42                 # inches: legend, each schedule's title, time axis


def draw_comparison(figure, simulations, recordings, memory: Memory):
    """Draw Simulations of as many ranks one below the other; recordings: one of each, or None. Returns the Figure."""
    last = max(each.total_time for each in (*simulations, *recordings) if each is not None)
    most = max(memory.limit, *(memory.peaks(each).max() for each in simulations))
    ranks = simulations[0].schedule.pipeline
    lane = lane_inches(ranks, any(recordings))
    block = ranks + _TITLE / lane  # lanes from one schedule's rank 0 to the next one's
    height = _HEAD + block * len(simulations) * lane + _FOOT
    with style.drawing(figure, height=height) as figure:  # one axes for all: to set one up takes longer than to fill it
        axes = figure.add_axes([_LEFT, _FOOT / height, _WIDE, 1 - (_FOOT + _HEAD + _TITLE) / height])
        axes.set(xlim=(0, last), ylim=(block * (len(simulations) - 1) + ranks - 0.5, -0.5), yticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_xlabel("time (units of the costs)", labelpad=1)
        for number, (simulation, recording) in enumerate(zip(simulations, recordings)):
            top = number * block
            draw_lanes(axes, simulation, recording=recording, top=top)
            axes.annotate(_title(simulation, recording), (0, top - 0.5), (-_LEFT * 72 * style.WIDTH_INCHES + 5, 4),
                          textcoords="offset points", fontsize=9, fontweight="bold", zorder=6, annotation_clip=False)
            _draw_beside(axes, simulation, memory, most, top)
            if memory.now is not None:
                grey_after(axes, memory.now, ranks, top)
        _draw_heads(axes, memory)
        figure.legend(handles=_legend(simulations, recordings, memory), loc="upper left", bbox_to_anchor=(0.003, 0.995), **LEGEND)
    return figure


def _title(simulation, recording):
    text = f"{name_text(simulation.schedule.name)}: {bubble_text(simulation)}"
    if recording is not None:
        text += f" · measured {percent_text(recording.bubble_rate)}, {percent_text(recording.bubble_over_ideal)}"
    return text


def _draw_beside(axes, simulation, memory, most, top):
    """For each rank its name, a bar for what it holds, the number, and the messages that it sends."""
    peaks, lanes = memory.peaks(simulation), top + np.arange(simulation.schedule.pipeline)
    held = peaks if memory.now is None else memory.held(simulation, memory.now)
    left, right = _BARS
    outside = {"clip_on": False, "transform": axes.get_yaxis_transform()}

    def bars(starts, ends, look):
        x = left + (right - left) * np.stack([starts, ends, ends, starts], -1) / most
        y = np.stack([lanes - 0.27, lanes - 0.27, lanes + 0.27, lanes + 0.27], -1)
        axes.add_collection(PolyCollection(np.stack([x, y], -1), **outside, **look), autolim=False)

    bars(0 * peaks, peaks, style.idle())
    bars(0 * peaks, held, style.theory("activations"))
    if memory.limit:
        bars(np.minimum(held, memory.limit), held, _OVER)
        at = left + (right - left) * memory.limit / most
        axes.add_line(Line2D([at, at], [lanes[0] - 0.5, lanes[-1] + 0.5], color=style.INK, linewidth=1.2, **outside))
    numbers = [f"{peak:.3g}" if memory.now is None else f"{here:.3g}/{peak:.3g}" for here, peak in zip(held, peaks)]
    columns = {_RANK: [f"rank {rank}" for rank in range(len(lanes))], _NUMBER: numbers,
               _SENDS: [str(sent) for sent in simulation.messages_sent]}
    for x, texts in columns.items():
        write(axes, texts, np.full(len(lanes), x), lanes, 7.5, **outside)


def _draw_heads(axes, memory):
    """Name the columns, below them: above are the titles."""
    for x, text, side in ((_BARS[0], "held\nat most" if memory.now is None else "held at t,\nat most", "left"),
                          (1.38, "messages\nsent", "right")):
        axes.annotate(text, (x, 0), (0, -6), xycoords="axes fraction", textcoords="offset points", ha=side, va="top",
                      fontsize=8, linespacing=1.1)


_OVER = {"facecolor": style.INK, "edgecolor": "none"}


def _legend(simulations, recordings, memory):
    recording = next((each for each in recordings if each is not None), None)
    return legend_handles(simulations, recording) + ([Patch(**_OVER, label="over limit")] if memory.limit else [])
