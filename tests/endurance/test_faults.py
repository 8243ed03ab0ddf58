"""Whatever goes wrong on a rank: the run ends in time, the verdict names it, nothing is left, the next run works.

`make endurance` goes on for ten minutes with faults at random places, several at once (COURSE_FAULT_SECONDS).
"""
import os
import random
import sys
import tempfile
import time

import pytest
from faults import FAULTS
from random_faults import STEPS, Plan, check_whole, plan_of, prepare

from utils.ranks import processes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
SECONDS = float(os.environ.get("COURSE_FAULT_SECONDS", 0))
SEED = int(os.environ.get("COURSE_FAULT_SEED", random.randrange(10**9)))

# Plans that once ended wrongly, with the reason. A seed's plan changes with the list of faults, so plans are kept.
REGRESSIONS = [
    # sys.exit() without a code counted as an error
    Plan(984910015, 8, {(7, 4): "calls_sys_exit", (6, 7): "gives_another_shape"}),
    # what multiprocessing removes in a process of its own was left, since that one was killed too early
    Plan(1, 2, {(0, 1): "forgets_shared_memory", (1, 3): "raises"}),
    # an error of the reader's own with the words of a lost connection
    Plan(831523082, 7, {(3, 3): "raises_what_sounds_like_a_consequence", (4, 2): "forks_and_the_child_returns", (0, 6): "stops"}),
]


@pytest.fixture(scope="module", autouse=True)
def marked_processes_and_a_folder_of_our_own(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("faults")))
    patch.setattr(tempfile, "tempdir", None)
    prepare()
    yield
    processes._server.close()
    patch.undo()


DEADLY, HARMLESS = (sorted(name for name, fault in FAULTS.items() if bool(fault.kind) == deadly) for deadly in (True, False))


@pytest.mark.parametrize("first", range(0, len(HARMLESS), 8))
def test_what_is_odd_but_no_fault(first):
    """One on each of up to eight ranks, each at another step."""
    names = HARMLESS[first:first + 8]
    check_whole(Plan(first, max(2, len(names)), {(rank, rank % STEPS): name for rank, name in enumerate(names)}))


@pytest.mark.parametrize("name", DEADLY)
def test_each_fault_alone(name):
    number = DEADLY.index(name)
    world_size = 2 + number % 3
    check_whole(Plan(number, world_size, {(number % world_size, number % STEPS): name}))


@pytest.mark.parametrize("outside", ["interrupt", "the server is killed", "the server is stopped"])
def test_what_happens_from_outside(outside):
    check_whole(Plan(0, 3, {(1, 4): "sleeps_for_ever"}, outside, 0.5))


@pytest.mark.parametrize("plan", REGRESSIONS, ids=str)
def test_what_went_wrong_once(plan):
    check_whole(plan)


@pytest.mark.skipif(not SECONDS, reason="for `make endurance`: COURSE_FAULT_SECONDS says how long")
def test_random_faults():
    until, seed, runs = time.monotonic() + SECONDS, SEED, 0
    while time.monotonic() < until:
        check_whole(plan_of(seed + runs))
        runs += 1
    print(f"{runs} runs with faults from seed {SEED} on, every one ended as it should")
