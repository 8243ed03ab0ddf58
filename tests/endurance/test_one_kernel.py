"""A thousand launches and two hundred widget runs in one kernel take no more memory, files or processes than one.

`make test` does fewer of them; COURSE_LAUNCHES and COURSE_WIDGET_RUNS say how many.
"""
import json
import os
import statistics
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from left_behind import added

HERE = Path(__file__).parent
LAUNCHES = int(os.environ.get("COURSE_LAUNCHES", 30))
WIDGET_RUNS = int(os.environ.get("COURSE_WIDGET_RUNS", 6))
WARM_UP = 24            # launches, and widget runs, until every cache is filled
LONG_WARM_UP = 150      # so many, if as many are measured: the gaps between what the heap holds fill up slowly
CELLS = 10              # the work is done in so many cells, or fewer, of three runs at least

# Memory that may come on top. A process's memory jumps now and then, by some pages or, when two threads ask for memory at
# the same moment and one of them is given a store of its own, by 8 to 10 MB. What a leak adds, it adds in every cell: so what
# counts is the median of the cells, times their number. Of 1,000 launches a leak is found at 2.1 KB for each, and of what Python
# itself holds, which is counted in blocks (a list, a string, a dict each are one or two), at a few objects for each. Measured:
# after 1,000 launches the kernel had 0.2 MB and 306 blocks more; of 576 widget runs the first 150 added 1.4 MB, the rest nothing.
SLACK_BYTES = 2**20
BYTES_PER_RUN = 1024
SLACK_BLOCKS = 1500
BLOCKS_PER_RUN = 3
SLACK_DESCRIPTORS = 8   # a thread's channel to the front end is closed some time after the thread's end

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A kernel; cell(source) runs a cell and returns what it printed."""
    folder = tmp_path_factory.mktemp("kernel")
    manager, client = start_new_kernel(startup_timeout=300, env=os.environ | {
        "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])})

    def run(source):
        printed, errors = [], []

        def take(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                (printed if content["name"] == "stdout" else errors).append(content["text"])
            elif message["msg_type"] == "error":
                errors.append("\n".join(content["traceback"]))

        client.execute_interactive(source, output_hook=take, timeout=3600)
        assert not errors, "".join(errors)
        return "".join(printed)

    run("import json, left_behind; left_behind.mark_this_process(); import kernel_work")
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def grown(cell, work, runs):
    """What `work`, a call with {} for a number of runs, adds to what the kernel and its server hold; memory is checked here."""
    def measure():
        return json.loads(cell("print(json.dumps(kernel_work.measure()))"))

    cell(work.format(max(WARM_UP, min(runs, LONG_WARM_UP))))
    held, done, cells = [measure()], 0, max(1, min(CELLS, runs // 3))
    for i in range(1, cells + 1):
        cell(work.format(runs * i // cells - done))
        done = runs * i // cells
        held.append(measure())
    before, after = held[0], held[-1]
    print(f"{runs} runs:", *(f"{key} {before[key]:,} -> {after[key]:,};" for key in ("kernel", "server", "blocks")))
    for key in ("kernel", "server"):
        steps = [later[key] - earlier[key] for earlier, later in zip(held, held[1:])]
        assert cells * statistics.median(steps) < SLACK_BYTES + BYTES_PER_RUN * runs, (key, steps)
        del before[key], after[key]
    assert after.pop("blocks") - before.pop("blocks") < SLACK_BLOCKS + BLOCKS_PER_RUN * runs
    assert after.pop("descriptors") - before.pop("descriptors") < SLACK_DESCRIPTORS
    return added(before, after)


def test_launches_leave_nothing(cell):
    assert not grown(cell, "kernel_work.launches({})", LAUNCHES)


def test_widget_runs_leave_nothing(cell):
    cell("frames = kernel_work.all_frames()")
    assert not grown(cell, "kernel_work.press_buttons(frames, {})", WIDGET_RUNS)
