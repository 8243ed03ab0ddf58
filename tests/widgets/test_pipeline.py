import itertools
from dataclasses import replace

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch

from utils.palette import COLOURS
from utils.theory.pipeline import LOOPED, SCHEDULES, Costs, build, simulate
from utils.widgets import style
from utils.widgets.pipeline import (
    draw_schedule,
    draw_schedules,
    explore_schedules,
    measure_schedule,
    schedules_sentence,
)
from utils.widgets.pipeline_compare import Memory
from utils.widgets.pipeline_picture import (
    COLOUR_NAMES,
    chunk_strengths,
    mixed,
    name_text,
    percent_text,
    schedule_title,
)
from utils.widgets.pipeline_run import EqualLinks, ScheduleRun, last_run
from utils.widgets.pipeline_schedules import NOTHING, PRESETS, doing_at, measure_schedules

COSTS = {"forward": 1, "backward_input": 1.5, "backward_weight": 0.5, "transfer": 0.25}


def simulated(name, p=4, m=8, v=2, costs=None):
    return simulate(build(name, p, m, v if name in LOOPED else None), costs or Costs())


def faces(axes):
    """{face colour: set of (start, end, rank)} of the boxes drawn."""
    found = {}
    for patch in (each for each in axes.get_children() if isinstance(each, PathPatch) and not each.get_hatch()):
        corners = patch.get_path().vertices.reshape(-1, 5, 2)
        boxes = {(start, end, round(middle)) for start, end, middle in
                 zip(corners[:, 0, 0], corners[:, 1, 0], corners[:, :4, 1].mean(1))}
        found.setdefault(to_hex(patch.get_facecolor()), set()).update(boxes)
    return found


def numbers(axes):
    """How many texts `write` drew as markers."""
    return sum(len(collection.get_offsets()) for collection in axes.collections if len(collection.get_offsets()) > 1)


# ---- one schedule


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("measured", [False, True])
def test_a_box_for_every_action_at_its_time_in_its_kinds_colour(name, measured):
    simulation = simulated(name, costs=Costs(1, 1.5, 0.5, communication=0.25))
    drawn = faces(draw_schedule(simulation, measured=measured).axes[0])
    strengths = chunk_strengths(simulation.schedule.chunks, measured)
    expected = {}
    for rank, row in enumerate(simulation.timeline):
        for action in row:
            for colour in {COLOUR_NAMES[action.kind], "weight gradient" if action.kind == "BW" else COLOUR_NAMES[action.kind]}:
                key = mixed(colour, strengths[action.chunk])
                expected.setdefault(key, set()).add((action.start, action.end, rank))
    assert drawn == expected


def test_colours_are_the_palettes_theory_at_half_strength_and_measurements_at_full():
    for meaning in set(COLOUR_NAMES.values()):
        assert mixed(meaning, chunk_strengths(1)[0]) == style.half_strength(meaning)
        assert mixed(meaning, chunk_strengths(1, measured=True)[0]) == COLOURS[meaning].lower()
    for chunks, measured in itertools.product((1, 2, 3, 4), (False, True)):
        strengths = chunk_strengths(chunks, measured)
        shades = {mixed(*each) for each in itertools.product(set(COLOUR_NAMES.values()), strengths)}
        assert len(shades) == 3 * chunks
    edges = [patch.get_edgecolor()[:3] for patch in draw_schedule(simulated("1f1b"), measured=True).axes[0].get_children()
             if isinstance(patch, PathPatch) and not patch.get_hatch()]
    assert edges and set(edges) == {(0, 0, 0)}


def test_numbers_stand_in_boxes_that_hold_them():
    assert numbers(draw_schedule(simulated("1f1b")).axes[0]) == 4 * 8 * 2
    assert numbers(draw_schedule(simulated("interleaved 1f1b", 8, 32, 4)).axes[0]) == 0
    some = draw_schedule(simulated("1f1b", 8, 24)).axes[0]
    assert numbers(some) == 8 * 24  # in BW's boxes, but not in F's


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_title_states_the_bubble_by_both_ways_of_counting(name):
    simulation = simulated(name, costs=Costs(communication=0.5))
    title = draw_schedule(simulation).axes[0].get_title(loc="left")
    assert title == schedule_title(simulation) and name_text(name) in title and "p = 4, m = 8" in title
    assert title.endswith(f"bubble {percent_text(simulation.bubble_rate)} of the step, "
                          f"{percent_text(simulation.bubble_over_ideal)} of the work")
    assert "no bubble" in schedule_title(simulated("zb-v"))


def test_it_draws_on_axes_that_are_given_and_leaves_no_figure_open():
    open_figures = plt.get_fignums()
    with style.drawing() as figure:
        axes = figure.subplots()
    assert draw_schedule(simulated("gpipe"), axes, title="mine", end=50, unit="seconds", legend=False, now=3) is figure
    assert axes.get_title(loc="left") == "mine" and axes.get_xlabel() == "time (seconds)"
    assert axes.get_xlim() == (0, 50) and axes.get_legend() is None
    draw_schedule(simulated("gpipe"))
    assert plt.get_fignums() == open_figures


def test_a_recording_lies_below_the_simulation_and_later_than_it():
    simulation = simulated("1f1b")
    late = simulate(simulation.schedule, Costs(1.2, 1, 1))
    axes = draw_schedule(simulation, recording=late).axes[0]
    assert axes.get_xlim()[1] == late.total_time
    boxes = faces(axes)
    assert len(boxes[COLOURS["forward"].lower()]) == len(boxes[style.half_strength("forward")]) == 32
    assert "measured" in [text.get_text() for text in axes.get_legend().get_texts()]
    with pytest.raises(ValueError, match="4 ranks, but the recording 2. Give a recording of the same schedule"):
        draw_schedule(simulation, recording=simulated("1f1b", 2))


def test_what_lies_after_now_is_greyed():
    simulation = simulated("1f1b")
    pictures = {style.png(draw_schedule(simulation, now=now)) for now in (None, 1, 20, simulation.total_time + 1)}
    assert len(pictures) == 3  # the last is the first


# ---- the widget's numbers


def test_the_first_state_is_gpipe_against_1f1b():
    frame = explore_schedules()
    assert frame.preset.value == "1F1B and GPipe"
    assert frame.text == (
        "1F1B on 4 ranks, m = 8: the step takes 33, bubble 27 % of the step, 38 % of the work; a rank holds at most 4, 3, 2 "
        "and 1 micro-batches, sends 8 to 16 messages · GPipe: the step takes 33, bubble 27 % of the step, 38 % of the "
        "work; a rank holds at most 8 micro-batches, sends 8 to 16 messages")


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("before_weight", [0, 0.5])
def test_the_sentence_says_theorys_values(name, before_weight):
    simulation = simulated(name, v=4, costs=Costs(1, 1.5, 0.5, communication=0.25))
    text = schedules_sentence(name, NOTHING, chunks=4, before_weight=before_weight, **COSTS)
    assert f"{name_text(name)} on 4 ranks, m = 8: the step takes {simulation.span_time:.5g}" in text
    rate, over_ideal = percent_text(simulation.bubble_rate), percent_text(simulation.bubble_over_ideal)
    assert f"bubble {rate} of the step, {over_ideal} of the work" in text
    shifted = simulation.total_time > simulation.span_time + 1e-9
    assert (f"({simulation.total_time:.5g} in all: they are shifted)" in text) == shifted
    peaks = [f"{peak:.3g}" for peak in simulation.peak_memory(1, before_weight)]
    held = peaks[0] if len(set(peaks)) == 1 else f"{', '.join(peaks[:-1])} and {peaks[-1]}"
    assert f"a rank holds at most {held} micro-batch" in text
    assert f"sends {simulation.messages_sent.min()} to {simulation.messages_sent.max()} messages" in text


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("before_weight", [0, 0.25, 1])
def test_what_is_held_at_a_moment_peaks_where_theory_says(name, before_weight):
    simulation, memory = simulated(name), Memory(before_weight)
    moments = sorted({action.start for row in simulation.timeline for action in row})
    over_time = np.array([memory.held(simulation, moment) for moment in moments])
    assert over_time.max(axis=0) == pytest.approx(memory.peaks(simulation))
    assert memory.held(simulation, simulation.total_time) == pytest.approx(np.zeros(4))


def test_activations_are_held_until_the_backward_that_needs_them_ends():
    held = [list(Memory().held(simulated("1f1b", 2, 2), time)) for time in (0, 1, 2.5, 3, 6.5, 7, 8.5, 9)]
    assert held == [[1, 0], [2, 1], [2, 1], [2, 1], [1, 1], [1, 0], [1, 0], [0, 0]]
    one = simulated("zb-h1", 1, 1)
    assert [Memory(0.25).held(one, time)[0] for time in (0.5, 1.5, 2.5, 3)] == [1, 1, 0.25, 0]


def test_each_rank_says_what_it_does():
    simulation = simulated("1f1b", 2, 2)
    assert [str(action) for action in simulation.schedule.ranks[0]] == ["F0", "F1", "BW0", "BW1"]
    assert [doing_at(simulation, time) for time in (0, 1, 2, 4.5, 8.5, 9)] == [
        ["F0", "not yet"], ["F1", "F0"], ["waits", "BW0"], ["BW0", "F1"], ["BW1", "done"], ["done", "done"]]
    assert doing_at(simulated("interleaved 1f1b"), 2.25)[0] == "F0.1"
    assert "at t = 2, from rank 0 on: 1F1B waits, BW0" in schedules_sentence("1f1b", NOTHING, 2, 2, moment=2 / 9)
    assert "at t" not in schedules_sentence("1f1b", NOTHING, 2, 2, moment=1)


@pytest.mark.parametrize("limit, sentence", [
    (1, "ranks 0 to 2 of 1F1B and all ranks of GPipe break the limit of 1 micro-batch"),
    (2, "ranks 0 and 1 of 1F1B and all ranks of GPipe break the limit of 2 micro-batches"),
    (3, "rank 0 of 1F1B and all ranks of GPipe break the limit of 3 micro-batches"),
    (7, "all ranks of GPipe break the limit of 7 micro-batches"),
    (8, "no rank breaks the limit of 8 micro-batches"),
])
def test_who_breaks_the_limit(limit, sentence):
    assert sentence in schedules_sentence(limit=limit)
    assert "over limit" in legend_texts(draw_schedules(limit=limit))
    alone = schedules_sentence(other=NOTHING, limit=3)
    assert alone.endswith("rank 0 of 1F1B breaks the limit of 3 micro-batches")


def test_the_same_schedule_twice_is_shown_once():
    assert schedules_sentence("gpipe", "gpipe") == schedules_sentence("gpipe", NOTHING)


# ---- the widget


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_every_control_redraws_and_no_figure_stays_open():
    open_figures = plt.get_fignums()
    frame = explore_schedules("zb-h1", "looped bfs", limit=2)
    first = {"schedule": "1f1b", "other": NOTHING, "pipeline": 2, "micro_batches": 5, "chunks": 3, "forward": 2,
             "backward_input": 0.5, "backward_weight": 1.25, "transfer": 0.5, "before_weight": 1, "limit": 4, "moment": 0.1}
    assert set(first) == set(frame.values)
    for name, value in first.items():
        before, control = bytes(frame.picture.value), getattr(frame.controls, name)
        old, control.value = control.value, value
        assert bytes(frame.picture.value) != before and frame.note.value == "", name
        control.value = old
    assert plt.get_fignums() == open_figures


def test_all_presets_can_be_chosen():
    frame, pictures = explore_schedules(), set()
    for preset in PRESETS:
        frame.preset.value = preset
        assert frame.preset.value == preset and frame.note.value == ""
        pictures.add(bytes(frame.picture.value))
    assert len(pictures) == len(PRESETS)


def test_the_moment_is_a_share_of_the_longer_step():
    frame = explore_schedules("1f1b", "naive", moment=0.25)
    assert f"at t = {simulated('naive').total_time / 4:g}, " in frame.text
    frame.controls.other.value = NOTHING
    assert f"at t = {simulated('1f1b').total_time / 4:g}, " in frame.text
    frame.controls.moment.value = 1
    frame.controls.micro_batches.value = 16
    assert frame.values["moment"] == 1 and "at t = " not in frame.text


def test_the_play_button_goes_through_the_step():
    frame = explore_schedules()
    (play,) = [each for each in frame.children[1].children[0].children if isinstance(each, ipywidgets.Play)]
    play.value = 50
    assert frame.values["moment"] == 0.5 and f"at t = {simulated('1f1b').total_time / 2:g}, " in frame.text
    play.value = play.max
    assert frame.values["moment"] == 1 and "at t = " not in frame.text


@pytest.mark.parametrize("change, sentence", [
    ({"micro_batches": 6}, "interleaved 1F1B does not fit: pipeline must divide micro_batches"),
    ({"other": "zb-h2", "micro_batches": 4}, "ZB-H2 does not fit: micro_batches must be at least 2 · pipeline − 1 = 7"),
    ({"schedule": "dualpipe", "pipeline": 3}, "DualPipe does not fit: pipeline must be even"),
    ({"forward": 0, "backward_input": 0, "backward_weight": 0}, "A step that takes no time has no picture"),
])
def test_what_does_not_fit_is_a_sentence_and_the_picture_stays(change, sentence):
    frame = explore_schedules("interleaved 1f1b", NOTHING)
    for name, value in list(change.items())[:-1]:
        getattr(frame.controls, name).value = value
    before = frame.picture.value
    name, value = list(change.items())[-1]
    getattr(frame.controls, name).value = value
    assert sentence in frame.note.value and frame.picture.value == before
    frame.controls.schedule.value, frame.controls.other.value, frame.controls.forward.value = "gpipe", NOTHING, 2
    assert frame.note.value == "" and frame.picture.value != before


@pytest.mark.parametrize("wrong, sentence", [
    ({"schedule": "fastest"}, "must be one of"),
    ({"schedule": NOTHING, "other": NOTHING}, "schedule must be one of"),
    ({"other": "fastest"}, "must be one of"),
    ({"pipeline": 0}, "pipeline must be at least 1"),
    ({"micro_batches": 0}, "micro_batches must be at least 1"),
    ({"chunks": 0}, "chunks must be at least 1"),
    ({"forward": -1}, "forward must"),
    ({"transfer": -1}, "communication must"),
    ({"before_weight": -1}, "before_weight must"),
    ({"limit": -1}, "limit must be at least 0"),
    ({"moment": -1}, "moment must"),
    ({"moment": 1.5}, "moment must be a share of the step, at most 1"),
])
def test_what_is_no_schedule_is_refused(wrong, sentence):
    for function in (draw_schedules, schedules_sentence):
        with pytest.raises(ValueError, match=sentence):
            function(**wrong)


@pytest.mark.parametrize("state", [
    {},
    {"pipeline": 8, "micro_batches": 32, "schedule": "interleaved 1f1b", "other": "zb-v", "chunks": 4, "limit": 7, "moment": 0.4},
    {"pipeline": 2, "micro_batches": 1, "other": "naive", "limit": 1}, {"pipeline": 8, "micro_batches": 32, "other": "naive"},
    {"schedule": "dualpipe", "other": "dualpipe-v", "pipeline": 8, "micro_batches": 20, "moment": 0.3, "limit": 8},
    {"schedule": "zb-v", "other": "interleaved 1f1b", "pipeline": 8, "micro_batches": 8, "limit": 2, "transfer": 0.25},
])
@pytest.mark.parametrize("with_run", [False, True])
def test_texts_of_extreme_pictures_neither_overlap_nor_are_cut(state, with_run):
    names = [state.get("schedule", "1f1b"), state.get("other", "gpipe")]
    sizes = state.get("pipeline", 4), state.get("micro_batches", 8)
    costs = Costs(1, 1, 1, communication=state.get("transfer", 0))
    v = state.get("chunks", 2)
    runs = [tuple(ScheduleRun((name, *sizes, v if name in LOOPED else None, costs), 0.06, simulated(name, *sizes, v, costs))
                  for name in names)] if with_run else ()
    figure = draw_schedules(**state, runs=runs)
    assert ("measured" in legend_texts(figure)) == with_run
    _no_overlap(figure)


def _no_overlap(figure):
    """No text lies on another or is cut off by the figure's edge."""
    style.png(figure)
    width, height = figure.canvas.get_width_height()
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    ticks = [label for axes in figure.axes for label in axes.get_xticklabels() if label.get_position()[0] <= axes.get_xlim()[1]]
    ticks += [axes.xaxis.label for axes in figure.axes]
    shown = [text for part in (figure, *figure.axes) for text in part.texts if text.get_text().strip()] + legends + ticks
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    for name, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, name
    for (name, one), (other_name, other) in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), (name, other_name)


# ---- real ranks


@pytest.mark.parametrize("name, m, transfer", [("1f1b", 3, 0), ("zb-v", 2, 0), ("interleaved 1f1b", 2, 0.5)])
def test_real_ranks_do_the_schedule_and_sleep_as_long_as_the_costs_say(name, m, transfer):
    costs = Costs(0.25, 0.5, 0.25, communication=transfer)
    schedule = build(name, 2, m)
    run = measure_schedule(schedule, costs, ("mine",))
    expected = simulate(schedule, costs)
    assert run.state == ("mine",) and last_run([(run,)], ("mine",)) is run and last_run([(run,)], ("yours",)) is None
    assert list(run.recording.messages_sent) == list(expected.messages_sent)
    assert list(run.recording.peak_in_flight) == list(expected.peak_in_flight)
    for measured_row, row in zip(run.recording.timeline, expected.timeline):
        for measured, action in zip(measured_row, row, strict=True):
            assert measured[:3] == action[:3]
            assert measured.end - measured.start >= action.end - action.start - 1e-6  # nothing wakes too early
    assert run.recording.total_time >= expected.total_time - 1e-6


def test_the_button_lays_both_recordings_over_the_simulations():
    frame = explore_schedules("1f1b", "gpipe", 2, 2, forward=0.25, backward_input=0.25, backward_weight=0.25)
    before = bytes(frame.picture.value)
    frame.run().join(300)
    assert frame.note.value == "" and len(frame.runs) == 1
    first, second = (run.recording for run in frame.runs[0])
    predicted = simulated("1f1b", 2, 2, costs=Costs(0.25, 0.25, 0.25)).bubble_rate
    assert frame.text.endswith(
        f" · real ranks with stages that sleep, 60 ms for a unit: 1F1B bubble {percent_text(first.bubble_rate)} of the step, "
        f"ratio {first.bubble_rate / predicted:.2f}, {percent_text(first.bubble_over_ideal)} of the work; GPipe bubble "
        f"{percent_text(second.bubble_rate)} of the step, ratio {second.bubble_rate / predicted:.2f}, "
        f"{percent_text(second.bubble_over_ideal)} of the work")
    assert bytes(frame.picture.value) != before
    titles = [text.get_text() for text in draw_schedules(**frame.values, runs=frame.runs).axes[0].texts]
    assert any(title.endswith(f"measured {percent_text(first.bubble_rate)}, {percent_text(first.bubble_over_ideal)}")
               for title in titles)
    frame.controls.micro_batches.value = 3
    assert "real ranks" not in frame.text


def test_emulated_transfers_are_announced():
    state = {"schedule": "1f1b", "other": NOTHING, "pipeline": 2, "micro_batches": 2, "chunks": 2, "forward": 0.25,
             "backward_input": 0.25, "backward_weight": 0.25, "transfer": 0.25}
    costs = Costs(0.25, 0.25, 0.25, communication=0.25)
    run = ScheduleRun(("1f1b", 2, 2, None, costs), 0.06, simulated("1f1b", 2, 2, costs=costs))
    text = schedules_sentence(**state, runs=[(run,)])
    assert "a message is on its way only when its rank asks for it" in text and "ratio 1.00" in text
    links = EqualLinks(2, 0.5)
    assert links.seconds("send", (0, 1), 8) == links.seconds("recv", (0, 1), 8) == 0.5
    assert links.seconds("barrier", (0, 1), 0) == 0


@pytest.mark.parametrize("name, sentence", [
    ("dualpipe", "every rank holds two different stages"),
    ("dualpipe-v", "a forward and a backward at the same time"),
])
def test_what_is_only_drawn_says_why_it_does_not_run(name, sentence):
    frame = explore_schedules(name, NOTHING, pipeline=2)
    frame.run().join(10)
    assert sentence in frame.note.value and "is drawn, but does not run" in " ".join(frame.note.value.split()) and not frame.runs
    with pytest.raises(ValueError, match=sentence):
        measure_schedules(**{**frame.values, "schedule": "1f1b", "other": name})


def test_actions_too_short_to_measure_are_refused():
    with pytest.raises(ValueError, match="too short to measure. Choose fewer micro-batches or chunks"):
        measure_schedule(build("interleaved 1f1b", 8, 32, 4), replace(Costs(), forward=0.25, backward_input=4))
