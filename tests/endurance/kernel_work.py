"""What the endurance test has a kernel do, and what it measures there."""
import ctypes
import gc
import sys
import time

import psutil
import torch
import torch.distributed as dist
from left_behind import holdings

from utils import RankError, launch
from utils.ranks import processes


def ordinary(x):
    """A small run with some of everything: output, communication, a result."""
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        print("sum", float(x.sum()))
        return {"sum": x}


def failing():
    if dist.get_rank() == 1:
        raise ValueError("as learners' functions do")
    dist.barrier()


def launches(number: int) -> None:
    """Launch so often, on 2 or 3 ranks; every tenth run fails."""
    for i in range(number):
        if i % 10 == 9:
            try:
                launch(failing, world_size=2)
            except RankError as error:
                assert error.kind == "raised"
        else:
            run = launch(ordinary, torch.ones(1000), world_size=2 + i % 2, echo=i % 10 == 0)
            assert run.results[0]["sum"][0] == run.world_size


def all_frames() -> list:
    """One of each widget that has a button for real ranks."""
    from utils.widgets.all_reduce_algorithms import compare_algorithms
    from utils.widgets.all_reduce_ring import ring_steps
    from utils.widgets.layout import plan_layouts
    from utils.widgets.pipeline_schedules import explore_schedules
    from utils.widgets.tensor_cut import cut_matrices
    from utils.widgets.zero import plan_memory
    return [ring_steps(), compare_algorithms(), plan_memory(world_size=2), explore_schedules(pipeline=2, micro_batches=2),
            cut_matrices(), plan_layouts()]


def press_buttons(frames, number: int) -> None:
    """Press the widgets' buttons in turn and wait for each run; each must add its result and say no trouble."""
    for i in range(number):
        frame = frames[i % len(frames)]
        frame.button.click()
        until = time.monotonic() + 300
        while frame.running:
            assert time.monotonic() < until, frame.note.value
            time.sleep(0.02)
        assert frame.runs and not frame.note.value, frame.note.value


def measure() -> dict:
    """What this kernel and its server of ranks hold now; memory in bytes, after everything free was given back."""
    held = holdings()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    gc.collect()
    server = psutil.Process(processes._server.process.pid)
    return held | {"kernel": psutil.Process().memory_info().rss, "server": server.memory_info().rss,
                   "blocks": sys.getallocatedblocks()}
