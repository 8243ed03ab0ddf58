"""The hand-written all-reduce algorithms of lesson 01 beside gloo's own, on real ranks.

    python -m benchmarks.all_reduce [--quick]
"""

from collections.abc import Iterator, Sequence

from benchmarks.measure import SPREAD, Table, digits, in_turns, main, ratios, spread_of_seconds

ALGORITHMS = ("ring", "recursive_halving_doubling", "unchunked_ring")
MEGABYTES = (1, 16, 64)
NOTE = f"""\
The functions are those that lesson 01 builds (`utils.parallel.collectives`); every call is recorded, as in a lesson. The
time is the slowest rank's, from a barrier on. GB/s: the tensor's size by the median.
The algorithms take turns. {SPREAD}

`ring` is the ring in chunks. `unchunked_ring` sends whole tensors round, N/2 times as much."""


def tables(quick: bool = False, world_sizes: Sequence[int] = (2, 4), megabytes: Sequence[float] = MEGABYTES) -> Iterator[Table]:
    """A row for each number of ranks, size and algorithm."""
    from utils import launch

    rows = []
    for world_size in world_sizes:
        for size in megabytes[: 1 if quick else None]:
            rounds = 3 if quick else max(7, round(60 / size**0.5))
            of_ranks = launch(seconds_in_turns, int(size * 1e6) // 4, rounds, world_size=world_size, echo=False).results
            taken = {name: [max(each) for each in zip(*(of_rank[name] for of_rank in of_ranks))] for name in of_ranks[0]}
            for name, seconds in taken.items():
                rate = size * 1e6 / sorted(seconds)[len(seconds) // 2] / 1e9
                rows.append((f"{world_size} ranks, {size} MB, {name}", spread_of_seconds(seconds),
                             ratios(seconds, taken["gloo"]), digits(rate), rounds))
    yield Table("All-reduce: by hand and gloo's", ("ranks, size, algorithm", "time", "times gloo", "GB/s", "n"), rows, NOTE)


def seconds_in_turns(elements, rounds):
    """On a rank: `{algorithm: seconds of each round}`; the first round warms up."""
    import torch
    import torch.distributed as dist

    from utils.parallel import collectives

    tensor = torch.zeros(elements)
    ways = {"gloo": lambda: dist.all_reduce(tensor)}
    for name in ALGORITHMS:
        ways[name] = lambda function=collectives.ALGORITHMS[name]: function(tensor)
    return {name: seconds[1:] for name, seconds in in_turns(ways, rounds + 1, before=lambda name: dist.barrier()).items()}


if __name__ == "__main__":
    main(tables, __doc__)
