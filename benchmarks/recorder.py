"""What the recorder costs: a 1 MiB all-reduce with and without it, and an operator that it must not touch.

    python benchmarks/recorder.py [--blocks 40]

Within one run, blocks with the recorder and blocks without any of its kernels take turns; printed are the medians
and the median of the ratios of neighbours. On a 1 MiB all-reduce the machine's own noise is larger than the
difference; on one rank with nothing to wait for, the difference of the two columns is what a call costs.
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
from utils.ranks import doors, rank  # noqa: E402


def one_megabyte(x=torch.ones(262_144)):  # noqa: B008  one tensor for all calls
    dist.all_reduce(x)


def one_small_all_reduce(x=torch.ones(16)):  # noqa: B008  nothing to wait for: the recorder's own time shows
    dist.all_reduce(x)


def one_addition(x=torch.ones(16)):  # noqa: B008
    x + 1


def seconds_in_turns(call, times, blocks):
    """[(with, without), …]: mean seconds of `call` in blocks that take turns, on this rank."""
    pairs = []
    for turn in range(blocks + 1):
        pair = {}
        for recorded in (True, False) if turn % 2 else (False, True):  # neither always comes first
            doors.uninstall()
            if recorded:
                doors.install(rank._recorder)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(times):
                call()
            pair[recorded] = (time.perf_counter() - begin) / times
        pairs.append((pair[True], pair[False]))
    return pairs[1:]  # the first turn warms up


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=40)
    blocks = parser.parse_args().blocks
    print(f"{'what':<32}{'recorded µs':>12}{'plain µs':>10}{'ratio':>8}")
    for what, call, times, world_size in (("1 MiB all-reduce, 2 ranks", one_megabyte, 30, 2),
                                          ("1 MiB all-reduce, 4 ranks", one_megabyte, 30, 4),
                                          ("16-element all-reduce, 1 rank", one_small_all_reduce, 2_000, 1),
                                          ("x + 1 on 16 elements", one_addition, 20_000, 1)):
        pairs = launch(seconds_in_turns, call, times, blocks, world_size=world_size, echo=False).results[0]
        recorded, plain = (1e6 * statistics.median(values) for values in zip(*pairs))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{what:<32}{recorded:>12.1f}{plain:>10.1f}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
