"""Schedules are complete and legal; the simulator against closed forms, bounds, and torch's own tables."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.theory.pipeline import (
    BACKWARD,
    FORWARD,
    LOOPED,
    SCHEDULES,
    Action,
    Costs,
    Schedule,
    bubble_fraction,
    bubble_over_ideal,
    bubble_time,
    build,
    check_complete,
    dualpipe_v,
    gpipe,
    in_flight_micro_batches,
    interleaved_one_f_one_b,
    looped_bfs,
    lower_bound_time,
    naive,
    one_f_one_b,
    pipeline_speedup,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    p = draw(st.integers(1, 6))
    m = draw(st.integers(1, 20))
    chunks = draw(st.integers(1, 4)) if name in LOOPED else None
    if name == "interleaved 1f1b":
        m = p * draw(st.integers(1, 4))
    if name == "zb-h2":
        m += 2 * p - 1
    if name in ("dualpipe", "dualpipe-v"):
        p = 2 * p if name == "dualpipe" else p
        m = 2 * (p + m)
    return build(name, p, m, chunks)


times = st.floats(0.01, 10)
costs = st.builds(Costs, times, times, times, communication=st.floats(0, 3))


@settings(max_examples=150, deadline=None)
@given(schedules(), costs)
def test_every_action_runs_once_in_a_legal_order_and_never_below_the_bound(schedule, cost):
    check_complete(schedule)
    result = simulate(schedule, cost)
    ends = {}
    for rank, row in enumerate(result.timeline):
        previous_end = 0.0
        for action in row:
            assert action.start >= previous_end
            previous_end = action.end
            stage = schedule.stage(rank, action.chunk)
            for part in action.kind:
                assert (part, stage, action.micro_batch) not in ends
                ends[part, stage, action.micro_batch] = (action.start, action.end)
    assert len(ends) == 3 * schedule.stages * schedule.micro_batches
    for (part, stage, micro_batch), (start, _) in ends.items():
        if part == "F" and stage:
            assert start >= ends["F", stage - 1, micro_batch][1]
        if part == "B":
            assert start >= ends["F", stage, micro_batch][1]
            if stage < schedule.stages - 1:
                assert start >= ends["B", stage + 1, micro_batch][1]
    assert result.span_time <= result.total_time
    assert result.span_time >= lower_bound_time(schedule, cost) * (1 - 1e-9)
    assert result.bubble_time >= -1e-6
    assert result.busy_time == pytest.approx(lower_bound_time(schedule, cost))


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 30), costs, st.integers(1, 4))
def test_bubbles_by_simulation_are_the_closed_forms(p, m, cost, chunks):
    cost = Costs(
        cost.forward, cost.backward_input, min(cost.backward_weight, cost.forward, cost.backward_input)
    )
    looped = p * m
    for name, count in (
        ("naive", m),
        ("gpipe", m),
        ("1f1b", m),
        ("interleaved 1f1b", looped),
        ("looped bfs", looped),
    ):
        schedule = build(name, p, count, chunks if name in LOOPED else None)
        expected = bubble_time(name, p, count, cost, schedule.chunks)
        assert simulate(schedule, cost).bubble_time == pytest.approx(expected, abs=1e-9)
    enough = 2 * p - 1 + m
    assert simulate(zb_h1(p, enough), cost).bubble_time == pytest.approx(
        bubble_time("zb-h1", p, enough, cost), abs=1e-9
    )


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_schedules_have_none_when_times_are_equal(p):
    for generator in (zb_h2, zb_v):
        assert simulate(generator(p, 4 * p)).bubble_time == 0
    assert simulate(zb_h1(p, 4 * p)).bubble_time == p - 1
    assert simulate(zb_h2(p, 4 * p), Costs(1.0, 1.25, 0.75)).bubble_time == pytest.approx(0.75 * (p - 1))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_dualpipe_bubbles(p):
    assert (
        simulate(build("dualpipe", p, 4 * p)).bubble_time
        == bubble_time("dualpipe", p, 4 * p)
        == (p / 2 - 1) * 2
    )
    assert simulate(dualpipe_v(p, 4 * p)).bubble_time == bubble_time("dualpipe-v", p, 4 * p) == p - 1


def test_an_overlapped_pair_takes_its_own_time():
    schedule, unit, faster = build("dualpipe", 4, 16), Costs(), Costs(forward_and_backward=2.4)
    pairs = sum(action.paired for action in schedule.ranks[0])
    assert pairs > 10
    saved = simulate(schedule, unit).busy_time[0] - simulate(schedule, faster).busy_time[0]
    assert saved == pytest.approx(pairs * 0.6)
    assert bubble_time("dualpipe", 4, 16, faster) == pytest.approx(2.4 + 2 - 3)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6))
def test_micro_batches_in_flight(p, groups):
    cases = [("naive", groups, 1), ("gpipe", groups, 1), ("1f1b", groups, 1), ("zb-h1", groups, 1)]
    cases += [
        ("zb-h2", 2 * p - 1 + groups, 1),
        ("looped bfs", groups, 3),
        ("interleaved 1f1b", p * groups, 2),
    ]
    for name, m, chunks in cases:
        schedule = build(name, p, m, chunks if name in LOOPED else None)
        expected = [in_flight_micro_batches(name, p, m, rank, chunks) for rank in range(p)]
        assert simulate(schedule).peak_in_flight.tolist() == pytest.approx(expected)
    big = 2 * p * groups
    for name in ("zb-v", "dualpipe-v"):
        peaks = simulate(build(name, p, big)).peak_in_flight.tolist()
        assert peaks == pytest.approx([in_flight_micro_batches(name, p, big)] * p)


def test_activation_memory_of_zero_bubble():
    p, before_backward, before_weight = 6, 1.0, 0.4
    h1 = simulate(zb_h1(p, 40)).peak_memory(before_backward, before_weight)
    h2 = simulate(zb_h2(p, 40)).peak_memory(before_backward, before_weight)
    for rank in range(
        p
    ):  # worker i = rank + 1: (p − i + 1)M_B + (i − 1)M_W and (2p − 2i + 1)M_B + (2i − 2)M_W
        assert h1[rank] == pytest.approx((p - rank) * before_backward + rank * before_weight)
        expected = (2 * (p - rank) - 1) * before_backward + 2 * rank * before_weight
        assert h2[rank] == pytest.approx(expected)


def test_messages_between_ranks():
    p, m = 4, 8
    assert simulate(one_f_one_b(p, m)).messages_sent.tolist() == [m, 2 * m, 2 * m, m]
    assert simulate(interleaved_one_f_one_b(p, m, 3)).messages_sent.sum() == 2 * m * (3 * p - 1)
    assert simulate(zb_v(p, m)).messages_sent.sum() == 2 * 2 * m * (p - 1)
    assert simulate(gpipe(1, m)).messages_sent.tolist() == [0]


def test_closed_forms_with_communication():
    forward, backward, weight, c = 3.0, 2.5, 1.5, 0.25
    whole, cost = forward + backward + weight, Costs(forward, backward, weight, communication=c)
    p, m = 4, 16
    expected = m * whole + (p - 1) * whole + (2 * (p - 1) * m / p + 2 * (p - 2)) * c
    assert simulate(one_f_one_b(p, m), cost).span_time == pytest.approx(expected)
    expected = m * whole + (p - 1) * (forward + backward - weight) + 4 * (p - 1) * c
    assert simulate(zb_h1(p, m), cost).span_time == pytest.approx(expected)


def test_a_slow_stage_sets_the_pace():
    result = simulate(gpipe(4, 100), Costs((1, 1, 2, 1), (1, 1, 2, 1), (0, 0, 0, 0)))
    assert result.busy_time.tolist() == [200, 200, 400, 200]
    assert result.total_time == 400 + 2 * 3


def test_two_ways_to_count_the_same_bubble():
    assert bubble_over_ideal(4, 8) == 0.375
    assert bubble_fraction(4, 8) == pytest.approx(3 / 11)
    assert bubble_fraction(8, 32) == pytest.approx(7 / 39)
    assert [round(100 * bubble_fraction(k, 4 * k), 1) for k in (2, 4, 8)] == [11.1, 15.8, 17.9]
    assert bubble_over_ideal(16, 16, chunks=8) == 15 / (8 * 16)
    result = simulate(one_f_one_b(4, 8))
    assert (result.bubble_over_ideal, result.bubble_rate) == pytest.approx((3 / 8, 3 / 11))
    assert pipeline_speedup(8, 32) == pytest.approx(8 * 32 / 39)


def test_orders_as_the_papers_draw_them():
    assert str(one_f_one_b(3, 4)).splitlines()[:2] == [
        "rank 0: F0 F1 F2 BW0 F3 BW1 BW2 BW3",
        "rank 1: F0 F1 BW0 F2 BW1 F3 BW2 BW3",
    ]
    assert (
        str(interleaved_one_f_one_b(2, 2, 2)).splitlines()[1] == "rank 1: F0 F1 F0.1 BW0.1 F1.1 BW1.1 BW0 BW1"
    )
    assert str(zb_h1(2, 3)).splitlines() == [
        "rank 0: F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "rank 1: F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]
    assert naive(3).ranks == ((Action(FORWARD, 0), Action(BACKWARD, 0)),) * 3


TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved 1f1b": "Interleaved1F1B",
    "looped bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}


@pytest.mark.parametrize("name", sorted(TORCH_NAMES))
def test_orders_are_those_of_torch_pipelining(name):
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    p, m = 4, 8
    chunks = {"gpipe": None, "1f1b": None}.get(name, 2)
    ours = build(name, p, m, 2 if name in LOOPED else None)
    theirs = visualizer.get_schedule_ops(TORCH_NAMES[name], p, m, num_stages_per_rank=chunks)
    kinds = {"F": "F", "I": "B", "W": "W", "B": "BW"}
    for rank, row in enumerate(theirs):
        if name == "1f1b" and rank == p - 1:
            continue  # the visualizer shifts the last rank's row by one forward
        actions = [
            (kinds[kind], int(micro_batch), int(stage))
            for action in row
            for stage, kind, micro_batch in re.findall(r"(\d+)([FBIW])(\d+)", str(action).split("OVERLAP")[0])
        ]
        expected = [(a.kind, a.micro_batch, ours.stage(rank, a.chunk)) for a in ours.ranks[rank]]
        assert actions == expected


def test_a_deadlock_names_the_blocked_actions():
    forward, backward = Action(FORWARD, 0), Action(BACKWARD, 0)
    with pytest.raises(
        ValueError, match=r"rank 0 is blocked at BW0: it waits for F0 of stage 0, which comes later"
    ):
        simulate(Schedule("backwards", ((backward, forward), (forward, backward)), 1))
    first, second = Action(FORWARD, 1), Action(BACKWARD, 1)
    crossed = Schedule("crossed", ((forward, backward, first, second), (first, forward, second, backward)), 2)
    with pytest.raises(
        ValueError, match=r"rank 1 is blocked at F1: it waits for F1 of stage 0, which rank 0 has not"
    ):
        simulate(crossed)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((Action(FORWARD, 0),), ["exactly one B", "0 times B0"]),
        ((Action(FORWARD, 0), Action(BACKWARD, 0), Action(FORWARD, 0)), ["exactly one F", "2 times F0"]),
        ((Action(FORWARD, 0), Action("B", 0), Action(BACKWARD, 0)), ["2 times B0"]),
        ((Action(FORWARD, 7), Action(BACKWARD, 7)), ["micro_batch", "from 0 to 0"]),
        ((Action(FORWARD, 0, -1), Action(BACKWARD, 0, -1)), ["chunk", "from 0 to 0"]),
        ((Action("X", 0),), ["kind", "F, B, W, BW"]),
    ],
)
def test_an_incomplete_schedule_is_refused(row, words):
    with pytest.raises(ValueError) as error:
        simulate(Schedule("broken", (row,), 1))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interleaved_one_f_one_b(4, 6), ["pipeline", "4", "micro_batches", "6", "rest of 2"]),
        (lambda: one_f_one_b(0, 4), ["pipeline", "0", "at least 1"]),
        (lambda: gpipe(4, -1), ["micro_batches", "-1"]),
        (lambda: looped_bfs(4, 4, 0), ["chunks", "0"]),
        (lambda: zb_h2(4, 6), ["micro_batches", "at least", "7", "6"]),
        (lambda: dualpipe_v(4, 7), ["micro_batches", "8", "7"]),
        (lambda: build("dualpipe", 3, 12), ["pipeline", "even", "3"]),
        (lambda: build("dualpipe", 4, 13), ["micro_batches", "even", "13"]),
        (lambda: build("2f2b", 4, 8), ["name", "'2f2b'", "'1f1b'"]),
        (lambda: bubble_time("1f2b", 4, 8), ["name", "'1f2b'"]),
        (lambda: bubble_fraction(4, 0), ["micro_batches", "0"]),
        (lambda: in_flight_micro_batches("1f1b", 4, 8, rank=4), ["rank", "4", "at most 3"]),
        (lambda: Costs(forward=-1), ["forward", "-1"]),
        (lambda: Costs(communication=-1), ["communication", "-1"]),
        (lambda: simulate(gpipe(4, 2), Costs((1, 2))), ["forward", "4 stages", "2 numbers"]),
        (lambda: Schedule("v", ((),), 1, 3, "v"), ["chunks", "2", "3"]),
        (lambda: Schedule("u", ((),), 1, 1, "u"), ["placement", "'u'", "'loop'"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_simulation_is_quick_enough_for_a_slider():
    best = min(_seconds(one_f_one_b(8, 64)) for _ in range(5))
    assert best < 0.030


def test_a_large_pipeline_takes_less_than_a_second():
    assert min(_seconds(one_f_one_b(64, 512)) for _ in range(2)) < 1


def _seconds(schedule):
    # Of the processor, so that a busy machine does not fail the test.
    start = time.process_time()
    simulate(schedule)
    return time.process_time() - start
