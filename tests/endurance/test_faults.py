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


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_each_fault_alone(name):
    number = sorted(FAULTS).index(name)
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
