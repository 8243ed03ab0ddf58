"""What the recorder costs: a 1 MiB all-reduce with and without it, and an operator that it must not touch.

    python -m benchmarks.recorder [--quick]
"""

from collections.abc import Iterator

from benchmarks.measure import SPREAD, Table, in_turns, main, ratios, spread_of_seconds

NOTE = f"""\
Within one run, blocks of calls with the recorder and blocks without any of its kernels take turns. On a 1 MiB
all-reduce the machine's own noise can be larger than the difference; on one rank with nothing to wait for, the difference
of the two columns is what recording a call costs. {SPREAD}"""


def tables(quick: bool = False) -> Iterator[Table]:
    """A row for each call that is measured."""
    from utils import launch

    blocks, rows = 3 if quick else 40, []
    for what, times, world_size in (("1 MiB all-reduce, 2 ranks", 30, 2), ("1 MiB all-reduce, 4 ranks", 30, 4),
                                    ("16-element all-reduce, 1 rank", 2_000, 1), ("x + 1 on 16 elements, 1 rank", 20_000, 1)):
        times = times // 10 if quick else times
        taken = launch(seconds_in_turns, what, times, blocks, world_size=world_size, echo=False).results[0]
        recorded, plain = taken["recorded"], taken["plain"]
        rows.append((what, spread_of_seconds(recorded), spread_of_seconds(plain), ratios(recorded, plain), f"{blocks} × {times}"))
    yield Table("Recorder: what it costs", ("call", "recorded", "plain", "ratio", "n"), rows, NOTE)


def seconds_in_turns(what, times, blocks):
    """On a rank: mean seconds of one call in each block, recorded and plain; the first turn warms up."""
    import torch
    import torch.distributed as dist

    from utils.ranks import doors, rank

    x = torch.ones(262_144 if "1 MiB" in what else 16)
    call = (lambda: dist.all_reduce(x)) if "all-reduce" in what else (lambda: x + 1)

    def block():
        for _ in range(times):
            call()

    def open_or_close_the_doors(name):
        doors.uninstall()
        if name == "recorded":
            doors.install(rank._recorder)
        dist.barrier()

    taken = in_turns({"recorded": block, "plain": block}, blocks + 1, before=open_or_close_the_doors)
    return {name: [seconds / times for seconds in of_blocks[1:]] for name, of_blocks in taken.items()}


if __name__ == "__main__":
    main(tables, __doc__)
