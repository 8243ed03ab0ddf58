"""An emulated cluster: each call ends when it would end there, and what hides behind work stays hidden."""
import time
from types import SimpleNamespace

import pytest
import rank_workers as workers

from utils import launch
from utils.ranks import emulation
from utils.ranks.emulation import Delays
from utils.theory.hardware import CHIPS, Cluster, Link

NEAR, FAR = 0.02, 0.1   # seconds of one step


@pytest.fixture
def cluster():
    """Two servers of two; links so wide that only the number of steps counts."""
    return Cluster(2, 2, CHIPS["V100-32GB"], intra=Link(NEAR, 1e15), inter=Link(FAR, 1e15))


def test_groups_inside_and_across_servers(cluster):
    run = launch(workers.talks_near_and_far, world_size=4, cluster=cluster, echo=False)
    calls = run.calls()
    took = (calls.end - calls.start).groupby([calls["rank"], calls.group]).min()
    assert {group for _, group in took.index} == {"0,1", "2,3", "all"}
    for (_, group), seconds in took.items():
        assert seconds >= (6 * FAR if group == "all" else 2 * NEAR)


@pytest.mark.parametrize("fn, args, least", [
    (workers.every_collective, (12,), (6 + 2 + 2 + 3 + 3 + 3 + 3 + 3 + 2) * FAR + NEAR),
    (workers.uses_functional_collectives, (), 6 * FAR),
    (workers.trains_with_ddp, (3,), 3 * 6 * FAR),
    (workers.uses_dtensor, (), 3 * FAR),
    (workers.trains_with_fsdp, (), (3 + 3) * FAR),
])
def test_every_call_is_late_whoever_makes_it(cluster, fn, args, least):
    run = launch(fn, *args, world_size=4, cluster=cluster, echo=False)
    calls = run.calls()
    assert calls.end.max() - calls.start.min() >= least


def test_the_results_are_the_same(cluster):
    plain = launch(workers.through_either_door, 5, world_size=2, echo=False)
    late = launch(workers.through_either_door, 5, world_size=2, cluster=cluster, echo=False)
    assert [[x.tolist() for x in result] for result in late.results] == [[x.tolist() for x in result] for result in plain.results]
    assert len(late.calls()) == len(plain.calls())


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(emulation, "time", clock)
    return clock


def delays_of(seconds):
    return Delays(SimpleNamespace(gpus=8, seconds=lambda op, ranks, n_bytes: seconds))


def call(op="all_reduce"):
    return SimpleNamespace(op=op, ranks=(0, 1), n_bytes=8)


def test_a_call_that_is_waited_for_at_once_takes_its_seconds_after_the_last_rank_came(clock):
    delays = delays_of(2.0)
    delays.before(0, call(), only_cpp_waits=False)
    clock.now += 5.0                     # the others were late
    delays.wait(0)
    assert clock.now == 107.0


def test_work_hides_communication(clock):
    delays = delays_of(2.0)
    delays.before(0, call(), only_cpp_waits=False)
    assert delays.transferred(0) == 102.0
    clock.now += 1.5                     # work
    delays.wait(0)
    assert clock.now == 102.0
    delays.before(1, call(), only_cpp_waits=False)
    delays.transferred(1)
    clock.now += 9.0                     # longer work
    delays.wait(1)
    assert clock.now == 111.0


def test_messages_travel_from_when_they_were_sent(clock):
    delays = delays_of(2.0)
    for number in range(3):
        delays.before(number, call("send"), only_cpp_waits=False)
    clock.now += 3.0
    for number in range(3):
        delays.wait(number)
    assert clock.now == 103.0


def test_what_only_cpp_waits_for_is_delayed_before_it_goes(clock):
    delays = delays_of(2.0)
    delays.before(0, call(), only_cpp_waits=True)
    assert clock.now == 102.0 and delays.transferred(0) is None
    delays.wait(0)
    assert clock.now == 102.0


def test_without_a_cluster_nothing_is_late(clock):
    delays = Delays(None)
    delays.before(0, call(), only_cpp_waits=False)
    delays.wait(0)
    assert clock.now == 100.0 and delays.transferred(0) is None


def test_clusters_that_do_not_fit(cluster):
    with pytest.raises(ValueError, match="6 ranks were asked for, but the emulated cluster has 4 GPUs"):
        launch(workers.rank_and_arguments, world_size=6, cluster=cluster)
    with pytest.raises(TypeError, match="cluster is a utils.theory.hardware.Cluster"):
        launch(workers.rank_and_arguments, world_size=2, cluster="two servers")
    with pytest.raises(ValueError, match="Only recorded calls can be delayed"):
        launch(workers.rank_and_arguments, world_size=2, cluster=cluster, record=False)


def test_a_long_delay_is_no_deadlock(cluster):
    slow = Cluster(2, 2, CHIPS["V100-32GB"], intra=Link(1.3, 1e15), inter=Link(1.3, 1e15))
    begin = time.monotonic()
    launch(workers.in_inference_mode, world_size=2, cluster=slow)
    assert time.monotonic() - begin >= 2.6
