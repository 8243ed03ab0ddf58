"""Spans of a real run become the simulator's own object; what does not fit the schedule is named."""
import pytest

from utils import launch, span
from utils.parallel.pipeline_record import recorded, sleep_through
from utils.theory.pipeline import build, simulate

NAMES = ["gpipe", "1f1b", "interleaved 1f1b", "zb-h1", "zb-v"]


@pytest.fixture(scope="module", params=NAMES)
def ran(request):
    schedule = build(request.param, 2, 4)
    return schedule, launch(sleep_through, schedule, 0.01, world_size=2, echo=False)


def test_same_actions_in_the_same_order_as_simulated(ran):
    schedule, run = ran
    measured, simulated = recorded(run, schedule), simulate(schedule)
    for mine, theirs in zip(measured.timeline, simulated.timeline):
        assert [action[:3] for action in mine] == [action[:3] for action in theirs]
    assert list(measured.messages_sent) == list(simulated.messages_sent)
    assert list(measured.peak_in_flight) == list(simulated.peak_in_flight)


def test_times_start_at_zero_and_count_in_units(ran):
    schedule, run = ran
    seconds, units = recorded(run, schedule), recorded(run, schedule, unit=0.01)
    assert min(row[0].start for row in seconds.timeline) == 0
    assert units.total_time == pytest.approx(100 * seconds.total_time)
    assert units.bubble_rate == pytest.approx(seconds.bubble_rate)
    assert (units.busy_time >= simulate(schedule).busy_time).all()  # a sleep is never too short
    assert all(before.end <= after.start for row in seconds.timeline for before, after in zip(row, row[1:]))


def two_steps(schedule):
    sleep_through(schedule, 0.001)
    sleep_through(schedule, 0.001)


def test_the_last_step_counts():
    schedule = build("1f1b", 2, 2)
    measured = recorded(launch(two_steps, schedule, world_size=2, echo=False), schedule)
    assert [len(row) for row in measured.timeline] == [4, 4]
    assert list(measured.messages_sent) == [2, 2]


def marks_in_another_order(with_tags):
    for kind, micro_batch in (("F", 0), ("F", 1), ("BW", 1), ("BW", 0)):
        with span(kind, **({"micro_batch": micro_batch} if with_tags else {})):
            pass


def test_what_does_not_fit_is_a_sentence():
    run = launch(marks_in_another_order, True, world_size=1, echo=False)
    with pytest.raises(ValueError, match="Rank 0 did BW1 as action 2 of its last step, where the schedule says BW0"):
        recorded(run, build("gpipe", 1, 2))
    with pytest.raises(ValueError, match="Rank 0 did 4 actions, but its schedule has 6"):
        recorded(run, build("gpipe", 1, 3))
    with pytest.raises(ValueError, match="Rank 0 did 0 actions"):
        recorded(launch(marks_in_another_order, False, world_size=1, echo=False), build("gpipe", 1, 2))
