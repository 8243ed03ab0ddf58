"""Two pipeline schedules on one time axis, with their bubbles, what their ranks hold and send, and a moment to look at."""
from functools import lru_cache

import ipywidgets

from utils.theory.arguments import non_negative, whole_number
from utils.theory.pipeline import LOOPED, SCHEDULES, Action, Costs, Simulation, build, simulate
from utils.widgets.frame import Frame
from utils.widgets.pipeline_compare import Memory, draw_comparison
from utils.widgets.pipeline_picture import bubble_text, name_text, percent_text
from utils.widgets.pipeline_run import last_run, measure_schedule

NOTHING = "nothing"
MOST_RANKS, MOST_MICRO_BATCHES, MOST_CHUNKS = 8, 32, 4


def explore_schedules(schedule: str = "1f1b", other: str = "gpipe", pipeline: int = 4, micro_batches: int = 8,
                      chunks: int = 2, forward: float = 1, backward_input: float = 1, backward_weight: float = 1,
                      transfer: float = 0, before_weight: float = 0, limit: int = 0, moment: float = 1) -> Frame:
    """A widget that draws one or two schedules on one time axis.

    schedule         a name in utils.theory.pipeline.SCHEDULES
    other            a second one, drawn below; "nothing" for none
    pipeline         p ranks, 2 to 8
    micro_batches    m, 1 to 32
    chunks           v, model chunks on each rank, 1 to 4; only for interleaved 1F1B and looped BFS
    forward, backward_input, backward_weight   T_F, T_B, T_W of a whole rank and one micro-batch, in any unit of time
    transfer         time from the end of an action until its result is on the next rank, in the same unit
    before_weight    M_W/M_B: the share of a micro-batch's activations that B leaves for W; 0 counts those that wait for B
    limit            micro-batches whose activations a rank has room for, in whole ranks' layers; 0: no limit
    moment           the moment that is looked at, as a share of the longer step, 0 to 1; 1: the end

    The button runs the schedules on real ranks whose stages sleep as long as the costs say, and lays the recording
    over the simulation. Bidirectional schedules are drawn but do not run: a sentence says why.
    """
    names = [(name_text(name), name) for name in SCHEDULES]
    controls = {
        "schedule": ipywidgets.Dropdown(value=schedule, options=names, description="schedule"),
        "other": ipywidgets.Dropdown(value=other, options=[*names, (NOTHING, NOTHING)], description="and"),
        "pipeline": ipywidgets.IntSlider(pipeline, 2, MOST_RANKS, description="p ranks"),
        "micro_batches": ipywidgets.IntSlider(micro_batches, 1, MOST_MICRO_BATCHES, description="m"),
        "chunks": ipywidgets.IntSlider(chunks, 1, MOST_CHUNKS, description="v chunks"),
        "forward": ipywidgets.FloatSlider(forward, min=0, max=4, step=0.25, description="T_F"),
        "backward_input": ipywidgets.FloatSlider(backward_input, min=0, max=4, step=0.25, description="T_B"),
        "backward_weight": ipywidgets.FloatSlider(backward_weight, min=0, max=4, step=0.25, description="T_W"),
        "transfer": ipywidgets.FloatSlider(transfer, min=0, max=2, step=0.25, description="transfer"),
        "before_weight": ipywidgets.FloatSlider(before_weight, min=0, max=1, step=0.25, description="M_W/M_B"),
        "limit": ipywidgets.IntSlider(limit, 0, MOST_MICRO_BATCHES, description="limit"),
        "moment": ipywidgets.FloatSlider(moment, min=0, max=1, step=0.005, readout_format=".1%", description="t/step"),
    }
    play = ipywidgets.Play(min=0, max=100, interval=500, show_repeat=False)
    play.observe(lambda change: setattr(controls["moment"], "value", change["new"] / play.max), "value")
    return Frame(controls, draw_schedules, schedules_sentence, measure=measure_schedules, announce=_announcement,
                 presets=PRESETS, extras=[play])


_EQUAL = {"forward": 1, "backward_input": 1, "backward_weight": 1, "transfer": 0}
PRESETS = {
    "1F1B and GPipe": {"schedule": "1f1b", "other": "gpipe", "pipeline": 4, "micro_batches": 8, **_EQUAL},
    "two chunks on each rank":
        {"schedule": "interleaved 1f1b", "other": "1f1b", "pipeline": 4, "micro_batches": 8, "chunks": 2, **_EQUAL},
    "four chunks, slow transfers":
        {"schedule": "interleaved 1f1b", "other": "1f1b", "pipeline": 4, "micro_batches": 8, "chunks": 4, **_EQUAL,
         "transfer": 0.5},
    "ZB-H1 and ZB-H2": {"schedule": "zb-h1", "other": "zb-h2", "pipeline": 4, "micro_batches": 8, **_EQUAL},
    "V shapes: ZB-V and DualPipeV": {"schedule": "zb-v", "other": "dualpipe-v", "pipeline": 4, "micro_batches": 10, **_EQUAL},
    "DualPipe, 20 micro-batches": {"schedule": "dualpipe", "other": NOTHING, "pipeline": 8, "micro_batches": 20, **_EQUAL},
}


def schedules_sentence(schedule="1f1b", other="gpipe", pipeline=4, micro_batches=8, chunks=2, forward=1,
                       backward_input=1, backward_weight=1, transfer=0, before_weight=0, limit=0, moment=1, runs=()) -> str:
    """The step's time, the bubble by both ways of counting, what is held and sent, and what real ranks measured.

    >>> print(schedules_sentence(other="nothing"))
    1F1B on 4 ranks, m = 8: the step takes 33, bubble 27 % of the step, 38 % of the work; a rank holds at most \
4, 3, 2 and 1 micro-batches, sends 8 to 16 messages
    """
    costs = _costs(forward, backward_input, backward_weight, transfer)
    shown = _shown(schedule, other, pipeline, micro_batches, chunks, costs)
    memory = _memory(before_weight, limit, moment, shown)
    parts = [_what_it_takes(simulation, memory, first=number == 0) for number, simulation in enumerate(shown.values())]
    if limit:
        parts.append(_who_breaks(shown.values(), memory))
    if memory.now is not None:
        doing = (f"{name_text(name)} {', '.join(doing_at(simulation, memory.now))}" for name, simulation in shown.items())
        parts.append(f"at t = {memory.now:.4g}, from rank 0 on: {'; '.join(doing)}")
    measured = [(name, simulation, run) for name, simulation in shown.items()
                if (run := last_run(runs, _state(name, pipeline, micro_batches, chunks, costs)))]
    if measured:
        parts.append(_what_was_measured(measured, transfer))
    return " · ".join(parts)


def draw_schedules(schedule="1f1b", other="gpipe", pipeline=4, micro_batches=8, chunks=2, forward=1,
                   backward_input=1, backward_weight=1, transfer=0, before_weight=0, limit=0, moment=1, runs=(), figure=None):
    """Draw the schedules, and beside each lane what its rank holds at most and sends.

    runs: tuples of ScheduleRuns; those of the same schedule, sizes and costs are drawn over the simulation.
    Returns the matplotlib Figure.
    """
    costs = _costs(forward, backward_input, backward_weight, transfer)
    shown = _shown(schedule, other, pipeline, micro_batches, chunks, costs)
    memory = _memory(before_weight, limit, moment, shown)
    found = [last_run(runs, _state(name, pipeline, micro_batches, chunks, costs)) for name in shown]
    return draw_comparison(figure, list(shown.values()), [run and run.recording for run in found], memory)


def measure_schedules(schedule, other, pipeline, micro_batches, chunks, forward, backward_input, backward_weight, transfer,
                      **_):
    """What the button does: a ScheduleRun of each schedule shown. ValueError for those that do not run."""
    costs = _costs(forward, backward_input, backward_weight, transfer)
    shown = _shown(schedule, other, pipeline, micro_batches, chunks, costs)
    return tuple(measure_schedule(simulation.schedule, costs, _state(name, pipeline, micro_batches, chunks, costs))
                 for name, simulation in shown.items())


def _announcement(pipeline, **_):
    return f"Running on {pipeline} real ranks; their stages do not compute, they sleep as long as the costs say …"


# ---- theory -------------------------------------------------------------------------------------------------------

def _costs(forward, backward_input, backward_weight, transfer):
    return Costs(forward, backward_input, backward_weight, communication=transfer)


def _shown(schedule, other, pipeline, micro_batches, chunks, costs) -> dict[str, Simulation]:
    """The Simulations by name, the same schedule only once."""
    names = dict.fromkeys(name for name in (schedule, other) if name != NOTHING)
    if not names:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, but {schedule!r} was given.")
    whole_number("chunks", chunks)
    return {name: _simulated(name, pipeline, micro_batches, chunks if name in LOOPED else None, costs) for name in names}


@lru_cache(64)
def _simulated(name, pipeline, micro_batches, chunks, costs):
    try:
        simulation = simulate(build(name, pipeline, micro_batches, chunks), costs)
    except ValueError as error:
        raise ValueError(f"{name_text(name)} does not fit: {error}") from error
    if not simulation.total_time:
        raise ValueError("A step that takes no time has no picture. Give T_F, T_B or T_W a value above 0.")
    return simulation


def _state(name, pipeline, micro_batches, chunks, costs):
    return name, pipeline, micro_batches, chunks if name in LOOPED else None, costs


def _memory(before_weight, limit, moment, shown):
    whole_number("limit", limit, minimum=0)
    non_negative("before_weight", before_weight)
    if non_negative("moment", moment) > 1:
        raise ValueError(f"moment must be a share of the step, at most 1, but {moment!r} was given.")
    end = max(simulation.total_time for simulation in shown.values())
    return Memory(before_weight, limit, moment * end if moment < 1 else None)


def doing_at(simulation: Simulation, time: float) -> list[str]:
    """What each rank does at `time`: an action, "waits", or that it is "not yet" at work or "done".

    >>> doing_at(simulate(build("gpipe", 2, 1)), 1.5)
    ['waits', 'F0']
    """
    doing = []
    for row in simulation.timeline:
        now = next((action for action in row if action.start <= time < action.end), None)
        if now:
            doing.append(str(Action(now.kind, now.micro_batch, now.chunk)))
        else:
            doing.append("not yet" if time < row[0].start else "done" if time >= row[-1].end else "waits")
    return doing


# ---- parts of the sentence ----------------------------------------------------------------------------------------

def _what_it_takes(simulation, memory, first):
    schedule, sent = simulation.schedule, sorted({int(count) for count in simulation.messages_sent})
    where = f" on {schedule.pipeline} ranks, m = {schedule.micro_batches}" if first else ""
    shifted = ""
    if simulation.total_time - simulation.span_time > 1e-9:
        shifted = f" on each rank ({simulation.total_time:.5g} in all: they are shifted)"
    peaks = [f"{peak:.3g}" for peak in memory.peaks(simulation)]
    what = "micro-batch" if set(peaks) == {"1"} else "micro-batches"
    messages = f"{' to '.join(map(str, dict.fromkeys((sent[0], sent[-1]))))} message{'s' * (sent[-1] > 1)}"
    return (f"{name_text(schedule.name)}{where}: the step takes {simulation.span_time:.5g}{shifted}, {bubble_text(simulation)}; "
            f"a rank holds at most {_listed(peaks)} {what}, sends {messages}")


def _who_breaks(simulations, memory):
    clauses = []
    for simulation in simulations:
        over = [rank for rank, peak in enumerate(memory.peaks(simulation)) if peak > memory.limit + 1e-9]
        if over:
            clauses.append(f"{_ranks_text(over, simulation.schedule.pipeline)} of {name_text(simulation.schedule.name)}")
    limit = f"the limit of {memory.limit} micro-batch{'es' * (memory.limit > 1)}"
    if not clauses:
        return f"no rank breaks {limit}"
    return f"{' and '.join(clauses)} break{'s' * (len(clauses) == 1 and clauses[0].startswith('rank '))} {limit}"


def _ranks_text(ranks, pipeline):
    if len(ranks) == pipeline:
        return "all ranks"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)}"


def _what_was_measured(measured, transfer):
    texts = []
    for name, simulation, run in measured:
        recording = run.recording
        ratio = f", ratio {recording.bubble_rate / simulation.bubble_rate:.2f}" if simulation.bubble_rate > 1e-9 else ""
        texts.append(f"{name_text(name)} bubble {percent_text(recording.bubble_rate)} of the step{ratio}, "
                     f"{percent_text(recording.bubble_over_ideal)} of the work")
    late = "; there a message is on its way only when its rank asks for it" if transfer else ""
    units = _listed(list(dict.fromkeys(f"{1e3 * run.unit:.3g}" for _, _, run in measured)))
    return f"real ranks with stages that sleep, {units} ms for a unit{late}: {'; '.join(texts)}"


def _listed(items):
    items = [str(item) for item in items]
    if len(set(items)) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"
