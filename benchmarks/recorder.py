"""What the recorder costs: a 1 MB all-reduce with and without it, and an operator that it must not touch.

    python benchmarks/recorder.py [--pairs 9]

Prints medians of alternating runs and their ratio.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from utils import launch  # noqa: E402


def seconds_per_all_reduce(times, elements=262_144):
    x = torch.ones(elements)
    for _ in range(5):
        dist.all_reduce(x)
    begin = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(x)
    return (time.perf_counter() - begin) / times


def seconds_per_addition(times):
    x = torch.ones(16)
    begin = time.perf_counter()
    for _ in range(times):
        x + 1
    return (time.perf_counter() - begin) / times


def compare(fn, times, pairs, world_size):
    seconds = {True: [], False: []}
    for _ in range(pairs):
        for record in (True, False):
            seconds[record].append(statistics.median(launch(fn, times, world_size=world_size, record=record, echo=False).results))
    return {record: statistics.median(values) for record, values in seconds.items()}, statistics.median(
        with_it / without for with_it, without in zip(seconds[True], seconds[False], strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    print(f"{'what':<34}{'recorded µs':>12}{'plain µs':>10}{'ratio':>8}")
    for what, fn, times, world_size in (("1 MiB all-reduce, 2 ranks", seconds_per_all_reduce, 100, 2),
                                        ("1 MiB all-reduce, 4 ranks", seconds_per_all_reduce, 50, 4),
                                        ("x + 1 on 16 elements", seconds_per_addition, 100_000, 1)):
        medians, ratio = compare(fn, times, pairs, world_size)
        print(f"{what:<34}{1e6 * medians[True]:>12.1f}{1e6 * medians[False]:>10.1f}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
