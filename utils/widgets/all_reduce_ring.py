"""The ring all-reduce, chunk by chunk: who sends which chunk to whom, and what every rank holds afterwards."""
from functools import cache

import ipywidgets
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.markers import CARETDOWN
from matplotlib.patches import Patch, Rectangle

from utils.theory.arguments import whole_number
from utils.theory.collectives import REDUCE_SCATTER, all_reduce_elements_sent, chunk_sizes, ring_schedule
from utils.theory.resnet import resnet18_parameters
from utils.widgets import style
from utils.widgets.all_reduce_run import MOST_RANKS, measure_all_reduce
from utils.widgets.frame import Frame


def ring_steps(world_size: int = 4, elements: int = 1000, step: int = 1) -> Frame:
    """A widget that walks through a ring all-reduce of `elements` elements (Ψ) on N = `world_size` ranks.

    step: 0 is the start, 2(N−1) the end. The button runs the ring of utils.parallel.collectives on real ranks.
    """
    controls = {
        "world_size": ipywidgets.IntSlider(world_size, 2, MOST_RANKS, description="N ranks"),
        "elements": ipywidgets.BoundedIntText(elements, 1, 10**9, description="Ψ elements"),
        "step": ipywidgets.IntSlider(step, 0, len(ring_schedule(world_size)), description="step"),
    }
    step_slider = controls["step"]
    play = ipywidgets.Play(value=step, min=0, max=step_slider.max, interval=1500, show_repeat=False)
    ipywidgets.jslink((play, "value"), (step_slider, "value"))

    def fit_steps(change):
        step_slider.max = play.max = len(ring_schedule(change["new"]))

    controls["world_size"].observe(fit_steps, "value")
    return Frame(
        controls, draw_ring_step, ring_step_sentence,
        measure=lambda world_size, elements, step: measure_all_reduce("ring", elements, world_size),
        announce=lambda world_size, **_: f"Running the ring on {world_size} real ranks …",
        presets={
            "1,000 elements, 4 ranks": {"world_size": 4, "elements": 1000},
            "10 elements, 3 ranks: uneven chunks": {"world_size": 3, "elements": 10},
            "ResNet-18's gradient, 8 ranks": {"world_size": 8, "elements": resnet18_parameters()},
        },
        extras=[play])


@cache
def ring_contents(world_size: int, step: int) -> np.ndarray:
    """Whose numbers are inside what each rank holds after `step` steps: bool array [rank, chunk, contributor]."""
    holds = np.zeros((world_size,) * 3, dtype=bool)
    holds[np.arange(world_size), :, np.arange(world_size)] = True
    for moves in ring_schedule(world_size)[:step]:
        before = holds.copy()
        for move in moves:
            arrived = before[move.from_rank, move.receive_chunk]
            kept = before[move.rank, move.receive_chunk] if move.phase == REDUCE_SCATTER else False
            holds[move.rank, move.receive_chunk] = arrived | kept
    holds.flags.writeable = False
    return holds


def ring_sent_so_far(world_size: int, elements: int, step: int) -> np.ndarray:
    """Elements that each rank has sent after `step` steps; int array indexed by rank."""
    sizes = chunk_sizes(elements, world_size)
    sent = np.zeros(world_size, dtype=np.int64)
    for moves in ring_schedule(world_size)[:step]:
        sent += [sizes[move.send_chunk] for move in moves]
    return sent


def ring_step_sentence(world_size: int = 4, elements: int = 1000, step: int = 1, runs=()) -> str:
    """The step in words, with what was measured for the same N and Ψ.

    >>> ring_step_sentence(4, 1000, 3)
    'step 3 of 6: rank 1 sends chunk 3 to rank 2, which adds it · sent so far per rank: 750 of 1,500 elements'
    """
    schedule = _checked(world_size, elements, step)
    sent, total = ring_sent_so_far(world_size, elements, step), all_reduce_elements_sent("ring", elements, world_size)
    if step == 0:
        head = f"step 0 of {len(schedule)}: each rank holds its own numbers, cut into {world_size} chunks"
    else:
        move = schedule[step - 1][1]
        what_then = "adds it" if move.phase == REDUCE_SCATTER else "keeps it"
        head = f"step {step} of {len(schedule)}: rank 1 sends chunk {move.send_chunk} to rank {move.to_rank}, which {what_then}"
    text = f"{head} · sent so far per rank: {_from_to(sent)} of {_from_to(total)} elements"
    run = _last_run(runs, world_size, elements)
    if run:
        measured = _measured_so_far(run, step)
        ratio = f"ratio {measured.sum() / sent.sum():.2f}" if sent.sum() else "nothing yet"
        verdict = "every rank got the exact sum" if run.exact else "the sum is WRONG"
        text += f" · on real ranks: {_from_to(measured)} ({ratio}), {run.steps} steps in all, {verdict}"
    return text


def draw_ring_step(world_size: int = 4, elements: int = 1000, step: int = 1, runs=(), figure=None):
    """Draw what N = `world_size` ranks (2 to 8) hold after `step` steps of a ring all-reduce of `elements` elements.

    A row is a rank, a column a chunk, a small square one rank's contribution. Returns the matplotlib Figure.
    """
    schedule = _checked(world_size, elements, step)
    moves, run = schedule[step - 1] if step else [], _last_run(runs, world_size, elements)
    with style.drawing(figure, height=3.75) as figure:
        grid = figure.add_axes([0.087, 0.03, 0.653, 0.745])
        bars = figure.add_axes([0.765, 0.03, 0.222, 0.745])
        figure.text(0.012, 0.975, _title(world_size, step), va="top", fontsize=10, fontweight="bold")
        _draw_contents(grid, world_size, elements, step, moves)
        _draw_moves(grid, world_size, moves)
        _draw_sent(bars, world_size, elements, step, run)
        figure.legend(handles=_legend(with_run=run is not None), loc="upper left", bbox_to_anchor=(0.003, 0.94), ncols=6,
                      handlelength=1.1, handletextpad=0.5, columnspacing=1.3, borderaxespad=0.3)
    return figure


def _checked(world_size, elements, step):
    """The ring's schedule, if the step is one of it."""
    whole_number("world_size", world_size, minimum=2, maximum=MOST_RANKS)
    whole_number("elements", elements)
    schedule = ring_schedule(world_size)
    whole_number("step", step, minimum=0, maximum=len(schedule))
    return schedule


def _title(world_size, step):
    half = world_size - 1
    if step == 0:
        return "Before the first step: every rank holds only its own numbers"
    if step < half:
        return f"Reduce-scatter, step {step} of {half}: partial sums walk down the ring and grow"
    if step == half:
        return f"Reduce-scatter is done after {half} step{'s' * (half > 1)}: each rank owns one complete chunk"
    if step < 2 * half:
        return f"All-gather, step {step - half} of {half}: complete chunks walk on and replace partial ones"
    return "All-gather is done: every rank holds the complete sum"


# ---- the picture's parts ------------------------------------------------------------------------------------------

_TILES_WIDE, _TILES_HIGH = 0.86, 0.66  # of a cell: the rest is the gap through which the arrows go


def _draw_contents(ax, world_size, elements, step, moves):
    ax.set_xlim(-0.5, world_size - 0.5)
    style.rank_lanes(ax, world_size)
    sizes = chunk_sizes(elements, world_size)
    ax.set_xticks([])
    size = 8 if world_size < 6 else 6.5 if world_size < 8 else 6
    for chunk, elements_in_chunk in enumerate(sizes):  # texts are drawn faster than ticks
        ax.annotate(f"chunk {chunk}\n{elements_in_chunk:,}", (chunk, 1), (0, 4), xycoords=("data", "axes fraction"),
                    textcoords="offset points", ha="center", fontsize=size)
    ax.tick_params(axis="y", pad=1)
    ax.annotate("elements", (0, 1), (-1, 4), xycoords="axes fraction", textcoords="offset points", ha="right",
                fontsize=7, color=style.QUIET)
    ax.spines[["top", "bottom", "left", "right"]].set_visible(False)

    holds = ring_contents(world_size, step)
    complete = holds.all(axis=2, keepdims=True) & holds
    corners, (wide, high) = _tiles(world_size)
    for tiles, look in ((~holds, {"facecolor": "white", "edgecolor": style.FAINT, "linewidth": 0.6}),
                        (holds & ~complete, style.theory("gradients")),
                        (complete, {"facecolor": style.colour("gradients"), "edgecolor": "none"})):
        squares = corners[tiles][:, None] + [(0, 0), (wide, 0), (wide, high), (0, high)]
        ax.add_collection(PolyCollection(squares, **look))
    for contributor in range(world_size):
        for tiles, ink in ((holds & ~complete, style.INK), (complete, "white")):
            x, y = (corners[tiles[:, :, contributor], contributor] + (wide / 2, high / 2)).T
            if len(x) == 0:
                continue
            ax.plot(x, y, linestyle="none", marker=style.text_marker(str(contributor)), markersize=5 if world_size > 4 else 7.5,
                    markeredgewidth=0, color=ink, zorder=3)
    for move in moves:
        corner = move.receive_chunk - _TILES_WIDE / 2 - 0.02, move.rank - _TILES_HIGH / 2 - 0.02
        ax.add_patch(Rectangle(corner, _TILES_WIDE + 0.04, _TILES_HIGH + 0.04, facecolor="none",
                               edgecolor=style.colour("communication"), linewidth=2, zorder=4))


def _tiles(world_size):
    """The lower corner of each contribution's square, array [rank, chunk, contributor, xy], and a square's size."""
    per_row = world_size if world_size < 5 else (world_size + 1) // 2
    rows = -(-world_size // per_row)
    wide, high = _TILES_WIDE / per_row, _TILES_HIGH / rows
    index = np.arange(world_size)
    x = index[None, :, None] - _TILES_WIDE / 2 + wide * (index % per_row)
    y = index[:, None, None] - _TILES_HIGH / 2 + high * (index // per_row)
    line = 0.03 * np.array([wide, high])  # white between the squares
    return np.stack(np.broadcast_arrays(x, y), axis=-1) + line, (wide, high) - 2 * line


def _draw_moves(ax, world_size, moves):
    """Every send goes one row down; the last rank's leaves below and comes in above."""
    if not moves:
        return
    gap, colour = (1 - _TILES_HIGH) / 2, style.colour("communication")
    chunk, rank = np.array([(move.send_chunk, move.rank) for move in moves]).T
    last = rank == world_size - 1
    tail, tip = rank + 0.5 - gap, np.where(last, -0.5 + gap, rank + 0.5 + gap) - 0.03
    ax.vlines(chunk, tail, np.where(last, rank + 0.5, tip), color=colour, linewidth=2)
    ax.vlines(chunk[last], -0.5, tip[last], color=colour, linewidth=2)
    ax.plot(chunk, tip, linestyle="none", marker=CARETDOWN, color=colour, markersize=6.5, markeredgewidth=0, zorder=5)


def _draw_sent(ax, world_size, elements, step, run):
    ranks = np.arange(world_size)
    total = all_reduce_elements_sent("ring", elements, world_size)
    ax.barh(ranks, total, height=0.5, **style.idle())
    ax.barh(ranks, ring_sent_so_far(world_size, elements, step), height=0.5, **style.theory("communication"))
    if run:
        ax.barh(ranks, _measured_so_far(run, step), height=0.24, **style.measured("communication"))
    ax.set_ylim(world_size - 0.5, -0.5)
    ax.set_yticks([])
    most = int(total.max())
    ax.set_xlim(0, most)
    ax.set_xticks([])
    ax.spines[["top", "bottom", "right"]].set_visible(False)
    ax.spines["left"].set_visible(True)
    for place, text, side, up in ((0, "0", "left", 4), (1, f"{most:,}", "right", 4), (0.5, "elements sent", "center", 15)):
        ax.annotate(text, (place, 1), (0, up), xycoords="axes fraction", textcoords="offset points", ha=side, fontsize=8)


def _legend(with_run):
    handles = [Patch(**style.theory("gradients"), label="partial sum"),
               Patch(facecolor=style.colour("gradients"), label="complete sum"),
               Patch(facecolor="none", edgecolor=style.colour("communication"), linewidth=2, label="just received"),
               Patch(**style.theory("communication"), label="sent"),
               Patch(**style.idle(), label="still to send")]
    return handles + ([Patch(**style.measured("communication"), label="measured")] if with_run else [])


# ---- runs ---------------------------------------------------------------------------------------------------------

def _last_run(runs, world_size, elements):
    return next((run for run in reversed(runs) if (run.world_size, run.elements) == (world_size, elements)), None)


def _measured_so_far(run, step):
    return np.array([sum(sends[:step]) for sends in run.sends])


def _from_to(values):
    """ "750", or "749 to 751" where the ranks differ. """
    low, high = int(min(values)), int(max(values))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
