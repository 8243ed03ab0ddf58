"""Lab 04's checks through a `call` of somebody else, with other seeds: what a grader does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from grader import assert_passes_with_any_seed, failed, in_this_process, over_a_wall
from nbformat import NO_CONVERT, read

from utils.checks import pipeline_choice, pipeline_orders
from utils.checks.pipeline import QUESTIONS
from utils.checks.probes.pipeline import WatchedStage
from utils.checks.verdict import verify
from utils.theory.pipeline import (
    Action,
    Costs,
    Schedule,
    bubble_fraction,
    bubble_time,
    build,
    interleaved_one_f_one_b,
    one_f_one_b,
    zb_h1,
)
from utils.theory.pipeline import simulate as course_simulate

LAB = Path(__file__).parents[2] / "labs" / "04_pipeline_bubbles.ipynb"
SIZES = [(p, m) for p in range(1, 6) for m in range(1, 11)]


def rows(schedule):
    return [[(action.kind, action.micro_batch) for action in row] for row in schedule.ranks]


def gpipe_order(ranks, micro_batches):
    return rows(build("gpipe", ranks, micro_batches))


def gpipe_and_back(ranks, micro_batches):
    """As in figure 2 of GPipe's paper: the micro-batch that came last goes back first."""
    forwards = [("F", i) for i in range(micro_batches)]
    return [forwards + [("BW", i) for _, i in reversed(forwards)]] * ranks


def one_f_one_b_order(ranks, micro_batches):
    return rows(build("1f1b", ranks, micro_batches))


def simulate(orders, seconds, transfer):
    micro_batches = sum(kind == "F" for kind, _ in orders[0])
    schedule = Schedule("given", tuple(tuple(Action(*action) for action in row) for row in orders), micro_batches)
    try:
        run = course_simulate(schedule, Costs(seconds["F"], seconds["BW"], 0.0, communication=transfer))
    except ValueError:
        return None
    return [[(action.start, action.end) for action in row] for row in run.timeline]


def bubble(times):
    total = max(end for row in times for _, end in row)
    return 1 - sum(end - start for row in times for start, end in row) / len(times) / total


def choose(ranks, batch, sample_bytes, limit_bytes, visit_seconds, sample_seconds):
    """By simulation, where the lab uses closed forms."""
    times = {}
    for schedule, m in pipeline_choice.possible(ranks, batch):
        chunks = 1 if schedule == "1f1b" else 2
        seconds = chunks * visit_seconds + batch // m * sample_seconds
        run = course_simulate(build(schedule, ranks, m), Costs(seconds / 3, seconds / 3, seconds / 3))
        if run.peak_memory(batch // m * sample_bytes).max() <= limit_bytes:
            times[schedule, m] = run.total_time
    return min(times, key=times.get) if times else None


RIGHT = {
    "q1": [gpipe_order],
    "q2": [one_f_one_b_order],
    "q3": [simulate, bubble],
    "q6": [pipeline_choice.activation_bytes, choose],
}


@pytest.mark.parametrize("question", RIGHT)
def test_the_course_s_own_functions_pass_with_any_seed(question):
    assert_passes_with_any_seed(QUESTIONS[question], RIGHT[question], in_this_process)


def test_another_right_order_passes():
    assert failed(QUESTIONS["q1"], in_this_process([gpipe_and_back]), seed=1) == []


def test_partial_credit():
    """1F1B with one forward ahead too many is complete, runs, and has the right bubble."""

    def one_too_many(ranks, micro_batches):
        longer = rows(build("1f1b", ranks + 1, micro_batches))
        return longer[:ranks]

    names = failed(QUESTIONS["q2"], in_this_process([one_too_many]), seed=5)
    assert names == ["at most p − r in flight on rank r"]


def test_a_call_outside_the_student_s_turn_is_refused():
    def nothing(actions, stage, loss_fn, boundary, inputs, targets):
        torch.distributed.barrier()

    def outputs(inputs):
        made = over_a_wall([nothing])(inputs)
        for calls in made["calls"]:
            for call in calls:
                call["case"] = None
        return made

    results = verify(QUESTIONS["q4"][:1], outputs, seed=1)
    assert "while your function was not running" in results[0].message


@pytest.mark.parametrize("ranks, micro_batches", SIZES)
def test_the_limits_of_q5_are_those_of_the_course_s_order(ranks, micro_batches):
    schedule = zb_h1(ranks, micro_batches)
    for row in schedule.ranks:
        assert pipeline_orders.most_at_once(row, "W")[0] <= min(ranks, micro_batches)
    if micro_batches >= ranks:
        assert course_simulate(schedule).bubble_time == bubble_time("zb-h1", ranks, micro_batches)


@pytest.mark.parametrize("ranks, micro_batches", SIZES)
def test_memory_and_time_of_q6_are_those_of_the_simulator(ranks, micro_batches):
    schedules = [one_f_one_b(ranks, micro_batches)]
    schedules += [interleaved_one_f_one_b(ranks, micro_batches)] if micro_batches % ranks == 0 else []
    for schedule in schedules:
        seconds = pipeline_choice.step_seconds(schedule.name, ranks, 2 * micro_batches, micro_batches, 0.5, 0.25)
        visit = schedule.chunks * 0.5 + 2 * 0.25
        run = course_simulate(schedule, Costs(visit / 3, visit / 3, visit / 3))
        assert seconds == pytest.approx(run.total_time)
        for rank in range(ranks):
            expected = pipeline_choice.activation_bytes(schedule.name, ranks, micro_batches, rank, 10)
            assert expected == run.peak_memory(10.0)[rank]


def test_a_watched_stage_counts_graphs_that_are_alive():
    stage = WatchedStage(np.ones((2, 3)), np.zeros(3))
    x = torch.ones(1, 2, dtype=torch.float64)
    first, second = stage(x), stage(x)
    assert stage.peak == 2
    first.sum().backward()
    del first
    third = stage(x)
    assert stage.peak == 2 and stage.events == ["F", "F", "BW", "F"]
    fourth = stage(x)
    assert stage.peak == 3
    del second, third, fourth


def test_the_numbers_in_the_lab_s_text_are_the_course_s():
    cells = read(LAB, NO_CONVERT).cells
    text = " ".join(word for cell in cells if cell.cell_type == "markdown" for word in cell.source.split())
    run = course_simulate(build("gpipe", 2, 2), Costs(1, 1, 1, communication=0.5))
    for rank, row in enumerate(run.timeline):
        times = " | ".join(f"{action.start:g} – {action.end:g}" for action in row)
        assert f"| rank {rank} | {times} |" in text
    without = course_simulate(build("gpipe", 2, 2), Costs(1, 1, 1))
    assert f"the step would take {without.total_time:g} s. It takes {run.total_time:g}." in text
    eight = course_simulate(build("gpipe", 4, 8), Costs(1, 1, 1))
    assert f"{eight.total_time:g} s, not {eight.busy_time[0]:g}." in text
    assert f"it is still {bubble_fraction(4, 16):.0%}".replace("%", " %") in text
    assert f"the first is {eight.bubble_rate:.0%}, the second {eight.bubble_over_ideal:.1%}".replace("%", " %") in text
