"""How long it takes to have N ranks: `launch` beside torch.multiprocessing, accelerate and ipyparallel.

    python -m benchmarks.launch [--quick]

accelerate and ipyparallel are no part of the course; `make bench` installs them into a folder of their own.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.launch_ways import WAYS, Starter, add_up_the_ranks, installed
from benchmarks.measure import SPREAD, Table, in_turns, main, ratios, seconds_of, spread, spread_of_seconds

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("ranks and way", "cold", "times `launch`", "warm", "times `launch`", "n cold, warm")
NOTE = f"""\
Every way does the same: start the ranks, join a gloo group, one all-reduce, hand the sums to the caller. *Cold* is the
first time in a fresh Python, from the start of that Python on, with all imports. *Warm* is each later time in the same
Python. The ways take turns; a ratio is that of the same round. {SPREAD}

What is the same and what is not:

- `launch`, spawn, fork and `notebook_launcher` start fresh processes for every run. `ipyparallel` does so only when its
  cluster starts. A warm run there is a call in processes that live on: it saves forking and ending them (the next table
  says how long that takes), and finds what the run before left, such as variables, memory, random states, or a group that
  a failure left open. A rank that hangs or dies is missing until the cluster is started again.
- A fork copies the caller as it is. In a notebook that is a process with threads, and a lock that another thread holds
  at that moment stays locked in the copy for ever. `notebook_launcher` forks too; it refuses when CUDA or an
  `Accelerator` was used before. It asks ten times a second whether the ranks have ended.
- spawn takes no function from a cell: the fresh Python cannot find it. Neither spawn nor fork nor `notebook_launcher`
  gives back what a rank returns; here the ranks put it into a queue.
- Only `launch` records the calls, ends a run in which ranks wait for one another for ever, and says who waits where.
- A cold `launch` loads torch twice, side by side: in the caller, and in the process that forks the ranks. That one also
  loads what optimizers, FSDP, DTensor and pipelines need, so that no rank has to. In a notebook it begins with the first
  cell of a lesson, while that is read; here it begins with the call."""


def tables(quick: bool = False, world_sizes: Sequence[int] = (2, 4, 8), ways: Sequence[str] = tuple(WAYS)) -> Iterator[Table]:
    """Ways and ranks; a notebook's first launch; the parts of a warm launch; what a rank holds alone."""
    world_sizes = world_sizes[:1] if quick else world_sizes
    yield Table("Launch: cold and warm", COLUMNS, list(compare(world_sizes, ways, *((1, 2, 1) if quick else (3, 12, 3)))), NOTE)
    yield first_in_a_notebook((0,) if quick else (0, 1, 2, 4), rounds=1 if quick else 3)
    yield parts_of_a_launch(world_sizes, runs=3 if quick else 15)
    if sys.platform == "linux":
        yield memory_of_a_rank(world_size=4)


def compare(world_sizes, ways, cold_rounds, warm_rounds, spawn_rounds) -> Iterator[tuple]:
    """A row for each number of ranks and each way. Spawn takes seconds each time: it is warm in the first rounds only."""
    for world_size in world_sizes:
        cold, warm = measure(world_size, [way for way in ways if installed(WAYS[way])], cold_rounds, warm_rounds, spawn_rounds)
        for way in ways:
            title = f"{world_size}, {WAYS[way].title}"
            if way in cold:
                yield (title, spread_of_seconds(cold[way]), ratios(cold[way], cold["Launch"]),
                       spread_of_seconds(warm[way]), ratios(warm[way], warm["Launch"]), f"{len(cold[way])}, {len(warm[way])}")
            else:
                yield title, *["not installed"] * 4, "0, 0"


def measure(world_size, ways, cold_rounds, warm_rounds, spawn_rounds):
    """`({way: cold seconds}, {way: warm seconds})`; the processes of the last cold round go on as the warm ones."""
    cold, runs = {way: [] for way in ways}, {}
    with contextlib.ExitStack() as processes:
        for turn in range(cold_rounds):
            processes.close()
            for way in ways[:: -1 if turn % 2 else 1]:
                starter = processes.enter_context(contextlib.closing(Starter(way, world_size)))
                cold[way].append(seconds_of(starter.run))
                runs[way] = starter.run
        warm = in_turns({way: runs[way] for way in ways}, spawn_rounds)
        for way, seconds in in_turns({way: runs[way] for way in ways if way != "Spawn"}, warm_rounds - spawn_rounds).items():
            warm[way] += seconds
    return cold, warm


def first_in_a_notebook(pauses, rounds) -> Table:
    """How long the first launch of a notebook takes, by how long its reader has had the first cell behind them."""
    import nbformat
    from nbclient import NotebookClient

    from utils.notebooks import BOOTSTRAP

    def seconds(pause):
        cells = [nbformat.v4.new_code_cell(source) for source in (BOOTSTRAP, f"import time\ntime.sleep({pause})", FIRST_LAUNCH)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
        return [float(word) for word in notebook.cells[-1].outputs[-1].text.split()]

    rows = []
    for pause in pauses:
        torch_seconds, launch_seconds = zip(*(seconds(pause) for _ in range(rounds)))
        rows.append((f"{pause} s", spread_of_seconds(torch_seconds), spread_of_seconds(launch_seconds), rounds))
    return Table("Launch: the first one in a notebook", ("after the first cell", "import torch", "launch, 4 ranks", "n"), rows,
                 f"In a new kernel: the first cell of every lesson, a pause for reading, then torch and four ranks. {SPREAD}")


FIRST_LAUNCH = """\
start = time.perf_counter()
import torch.distributed as dist
from utils import launch
loaded = time.perf_counter()
launch(dist.get_rank)
print(loaded - start, time.perf_counter() - loaded)"""


def parts_of_a_launch(world_sizes, runs) -> Table:
    """Where the time of a warm launch goes."""
    from utils import launch

    launch(add_up_the_ranks, echo=False)
    rows = []
    for world_size in world_sizes:
        parts = []
        for _ in range(runs):
            begin = time.monotonic()
            records = launch(add_up_the_ranks, world_size=world_size, echo=False).records
            end = time.monotonic()
            all_ready, all_returned = max(record.begun for record in records), max(record.returned for record in records)
            parts.append((min(record.begun for record in records) - begin, all_ready - begin, all_returned - all_ready,
                          end - all_returned))
        rows.append((world_size, *(spread_of_seconds(values) for values in zip(*parts)), runs))
    return Table("Launch: where the time goes, warm",
                 ("ranks", "until the first rank is ready", "until all are", "the function", "until all have gone", "n"), rows,
                 "Ready: forked, in the group, its calls recorded. Gone: the processes have ended and their results are read.")


def private_megabytes():
    """Memory that this rank holds alone, after a small model's step: what N ranks cost on top of one another."""
    import torch

    model = torch.nn.Linear(256, 256)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    add_up_the_ranks()
    with open("/proc/self/smaps_rollup") as file:
        kilobytes = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return kilobytes / 1e3


def memory_of_a_rank(world_size) -> Table:
    """What each rank costs."""
    from utils import launch

    megabytes = launch(private_megabytes, world_size=world_size, echo=False).results
    return Table("Launch: memory that each rank holds alone", ("ranks", "MB", "n"),
                 [(world_size, spread(megabytes), world_size)],
                 "After one step of a small model. The rest is shared with the other ranks.")


if __name__ == "__main__":
    main(tables, __doc__)
