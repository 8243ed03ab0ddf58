"""How long it takes to have N ranks ready: `launch` beside torch.multiprocessing.spawn and a bare fork.

    python benchmarks/launch.py [--pairs 7]

Prints medians and spreads of runs that alternate, so that a busy machine is busy for all of them, and ratios to
`launch`. Every way does the same work: start N processes, join a gloo group, add up the ranks, go away.
"""
import argparse
import datetime
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).parents[1]))
from utils import launch  # noqa: E402


def add_up_the_ranks():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


def private_megabytes():
    """Memory that this rank holds alone, after a small model's step: what N ranks cost on top of one another."""
    model = torch.nn.Linear(256, 256)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    add_up_the_ranks()
    with open("/proc/self/smaps_rollup") as file:
        kilobytes = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return kilobytes / 1e3


def _join_and_add(rank, world_size, path):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(path, world_size), rank=rank, world_size=world_size,
                            timeout=datetime.timedelta(seconds=60))
    add_up_the_ranks()
    dist.destroy_process_group()


def by_launch(world_size):
    launch(add_up_the_ranks, world_size=world_size, echo=False)


def by_start_method(method):
    def run(world_size):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(_join_and_add, args=(world_size, f"{folder}/store"), nprocs=world_size,
                                                  start_method=method)
    return run


def seconds_of(way, world_size):
    begin = time.perf_counter()
    way(world_size)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7, help="alternating runs of launch and fork")
    parser.add_argument("--spawns", type=int, default=2, help="runs of spawn, which takes seconds")
    arguments = parser.parse_args()
    print(f"first launch of this process: {seconds_of(by_launch, 4):.2f} s")
    print(f"{'ranks':>5}  {'way':<28}{'median s':>9}{'min':>8}{'max':>8}{'ratio':>8}")
    for world_size in (2, 4, 8):
        ways = {"launch": by_launch, "bare fork": by_start_method("fork"),
                "torch.multiprocessing.spawn": by_start_method("spawn")}
        times = {name: [] for name in ways}
        for i in range(arguments.pairs):
            for name, way in ways.items():
                if name != "torch.multiprocessing.spawn" or i < arguments.spawns:
                    times[name].append(seconds_of(way, world_size))
        base = statistics.median(times["launch"])
        for name, values in times.items():
            median = statistics.median(values)
            print(f"{world_size:>5}  {name:<28}{median:>9.3f}{min(values):>8.3f}{max(values):>8.3f}{median / base:>8.1f}")
    if sys.platform == "linux":
        memory = launch(private_megabytes, world_size=4, echo=False).results
        print(f"memory that each of 4 ranks holds alone: {', '.join(f'{value:.0f}' for value in memory)} MB")


if __name__ == "__main__":
    main()
