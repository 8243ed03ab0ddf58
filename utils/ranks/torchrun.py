"""The same worker functions under `torchrun`: the ranks exist already, so `launch` runs the function in place."""
import atexit
import datetime
import os
import time

from utils.ranks.record import Record
from utils.ranks.run import Run
from utils.ranks.scratch import read_from, scratch_file


def started_this_process() -> bool:
    """True when torchrun (or anything that speaks its environment variables) started this process as a rank."""
    return all(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launch_in_place(fn, args, world_size, record, cluster) -> Run:
    """Run `fn(*args)` on this rank with the world that torchrun made; every rank gets the Run of all ranks."""
    import torch
    import torch.distributed as dist

    from utils.ranks import doors
    from utils.ranks import rank as this_rank
    from utils.ranks.backend import choose_backend, count_gpus
    from utils.ranks.recorder import Recorder
    actual = int(os.environ["WORLD_SIZE"])
    if world_size is not None and world_size != actual:
        raise ValueError(f"launch asks for {world_size} ranks, but torchrun started {actual}. "
                         f"Start torchrun with {world_size} processes in all, or leave world_size out.")
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    choice = choose_backend(count_gpus(), local_size)
    if not dist.is_initialized():
        if choice.backend == "nccl":
            torch.cuda.set_device(local_rank)
        dist.init_process_group(choice.backend, timeout=datetime.timedelta(seconds=300))
        atexit.register(_leave_the_world)
    fd = scratch_file("record")
    try:
        recorder = Recorder(fd)
        if record:
            doors.install(recorder, cluster)
        this_rank.enter_run(recorder if record else None)
        begin = time.monotonic()
        recorder.event("begin")
        result = fn(*args)
        recorder.event("returned")
        seconds = time.monotonic() - begin
        gathered = [None] * actual
        written = read_from(fd).partition(b"\0")[0]
        dist.all_gather_object(gathered, (result, written))
    finally:
        this_rank.leave_run()
        doors.uninstall()
        os.close(fd)
    records = [Record(rank) for rank in range(actual)]
    for rank, (_, lines) in enumerate(gathered):
        records[rank].add(lines)
    results = [result for result, _ in gathered]
    return Run(results, [""] * actual, seconds, dist.get_backend(), choice.devices[:1] * actual, records)


def _leave_the_world():
    """At the script's end: a group that is left standing can abort the process while its threads are taken down."""
    import torch.distributed as dist
    if dist.is_initialized():
        dist.destroy_process_group()
