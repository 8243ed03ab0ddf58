"""`launch`: run a function on N real ranks and come back with results, a record of all communication, or a verdict."""
import contextlib
import os
import sys
import tempfile
import threading
import time

from utils.ranks import pickles
from utils.ranks.backend import Choice, choose_backend, count_gpus
from utils.ranks.compare import differences
from utils.ranks.files import Files
from utils.ranks.interrupts import interrupts_held
from utils.ranks.output import LONGEST_OUTPUT, show, without_last_words
from utils.ranks.processes import start_processes
from utils.ranks.rank import inside_a_run
from utils.ranks.refusals import refusal
from utils.ranks.run import Run
from utils.ranks.scratch import IN_MEMORY, scratch_file, write_all
from utils.ranks.verdicts import STOPPED, RankError, judge
from utils.ranks.watch import Watch

_one_at_a_time = threading.Lock()
_banners_shown: set[str] = set()


def launch(fn, *args, world_size: int | None = None, timeout: float | None = None, backend: str | None = None, live: bool = False,
           echo: bool = True, record: bool = True, cluster=None, start_method: str | None = None) -> Run:
    """Run `fn(*args)` on `world_size` ranks, each a process with the default process group ready.

    fn            an ordinary function, also one defined in a cell; it uses plain `torch.distributed`
    args          sent to every rank by value: numbers, arrays, tensors, functions, …
    world_size    number of ranks, 4 if not given; under torchrun, the ranks that torchrun started
    timeout       seconds after which the run is stopped with a table of what each rank was doing; 60 if not given, or what
                  the environment variable COURSE_TIMEOUT says, for machines that are slow or busy
    backend       "gloo", "nccl" or None: NCCL when there is a GPU for each rank, otherwise gloo on the CPU
    live          show what ranks print at once, and not in rank order at the end
    echo          show what ranks print; it is in `run.outputs` anyway
    record        write down every communication call; without it there are no counts and poorer verdicts
    cluster       a `utils.theory.hardware.Cluster`: communication takes as long as it would there, by the α–β model over
                  the slowest link that each group crosses; see `utils.ranks.emulation`
    start_method  "forkserver", "spawn" or None (forkserver on Linux, spawn elsewhere)

    Returns a Run: `run.results[rank]` is what fn returned there. Raises RankError with a verdict when a rank fails,
    hangs or disagrees with the others, ValueError or TypeError for arguments that cannot work.
    """
    if inside_a_run():
        raise RuntimeError("launch was called on a rank. Start ranks from the notebook; inside fn the ranks are already "
                           "running (dist.get_rank() tells which one this is).")
    from utils.ranks import torchrun
    if torchrun.started_this_process():
        _check_cluster(cluster, int(os.environ["WORLD_SIZE"]), record)
        return torchrun.launch_in_place(fn, args, world_size, record, cluster)
    world_size = 4 if world_size is None else world_size
    timeout = _usual_timeout() if timeout is None else timeout
    _check_arguments(fn, timeout)
    _check_cluster(cluster, world_size, record)
    choice = choose_backend(0 if backend == "gloo" else count_gpus(), world_size, wish=backend)
    _show_once(choice.banner)
    call = _pack(fn, args)
    with _one_at_a_time:
        try:
            return _once_more_if_lost(lambda: _run(call, world_size, timeout, choice, live, echo, record, cluster, start_method))
        except OSError as error:
            raise RankError(f"The ranks could not be started: {refusal(error)}.", "refused") from None


def _usual_timeout() -> float:
    told = os.environ.get("COURSE_TIMEOUT", "60")
    try:
        return float(told)
    except ValueError:
        raise ValueError(f"The environment variable COURSE_TIMEOUT is a number of seconds, not {told!r}.") from None


def _check_arguments(fn, timeout):
    if not callable(fn):
        hint = " Pass the function itself, without calling it: launch(worker), not launch(worker())." if fn is None else ""
        raise TypeError(f"launch runs a function on every rank, but was given {fn!r}.{hint}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}.")


def _check_cluster(cluster, world_size, record):
    if cluster is None:
        return
    if not (callable(getattr(cluster, "seconds", None)) and hasattr(cluster, "gpus")):
        raise TypeError("cluster is a utils.theory.hardware.Cluster, or something with its `gpus` and `seconds`, "
                        f"not {cluster!r}.")
    if isinstance(world_size, int) and cluster.gpus < world_size:
        raise ValueError(f"{world_size} ranks were asked for, but the emulated cluster has {cluster.gpus} GPUs. "
                         "Give it more nodes, or start fewer ranks.")
    if not record:
        raise ValueError("Only recorded calls can be delayed: leave record=True when you give a cluster.")


def _pack(fn, args) -> bytes:
    """The function and its arguments as bytes; the error names the one that cannot be sent."""
    try:
        return pickles.dumps((fn, args), "The call")
    except pickles.UnpicklableError:
        for number, arg in enumerate(args, 1):
            pickles.dumps(arg, f"Argument {number} of {getattr(fn, '__name__', fn)} ({type(arg).__name__})")
        pickles.dumps(fn, f"The function {getattr(fn, '__name__', fn)}, or something it uses from the notebook,")
        raise


def _show_once(banner):
    if banner and banner not in _banners_shown:
        _banners_shown.add(banner)
        print(banner)


def _once_more_if_lost(run):
    """What starts the ranks may have ended just before, from outside: as long as the function began nowhere, begin again."""
    try:
        return run()
    except RankError as error:
        if error.kind != "server" or any(record.begun for record in error.run.records):
            raise
    return run()


def _run(call, world_size, timeout, choice: Choice, live, echo, record, cluster, start_method):
    begin = time.monotonic()
    processes = start_processes(start_method)
    with interrupts_held() as held, contextlib.ExitStack() as stack:  # nothing is left half made, nor half cleared away
        def open_file(name):
            stack.callback(os.close, descriptor := scratch_file(name))
            return descriptor

        shared = [open_file("job"), open_file("store")]
        files = [Files(*shared, *map(open_file, Files._fields[2:])) for _ in range(world_size)]
        store = None if IN_MEMORY else os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "store")
        write_all(shared[0], pickles.dumps(_job(call, world_size, timeout, choice, record, cluster, store), "The job"))
        stack.callback(processes.close)
        watch = Watch(processes, files, timeout, live and echo, record)
        for rank in range(world_size):
            processes.start(rank, files[rank])
        with held.released():
            reason = watch.until_over()
        processes.close()
        with held.released():
            return _conclude(watch, reason, begin, timeout, choice, echo and not live)


def _job(call, world_size, timeout, choice, record, cluster, store):
    """What every rank needs to know, as plain data; `store` is a path, or None for the rank's own descriptor."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"call": call, "world_size": world_size, "timeout": timeout, "backend": choice.backend, "record": record,
            "cluster": cluster, "store": store, "threads": max(1, cores // world_size),
            "environment": dict(os.environ), "folder": os.getcwd(),
            "path": [os.path.abspath(entry or ".") for entry in sys.path], "argv": list(sys.argv)}


def _conclude(watch, reason, begin, timeout, choice, echo):
    if reason not in STOPPED:  # else the records stay as they were: the ranks' own end wakes some of them up
        watch.read_records()
    endings = [watch.ending(rank) for rank in range(len(watch.files))]
    outputs = [watch.output(rank) for rank in range(len(watch.files))]
    if echo:
        for rank, text in enumerate(outputs):
            show(rank, without_last_words(text))
    run = Run([None] * len(endings), outputs, time.monotonic() - begin, choice.backend, choice.devices, watch.records)
    if reason == "output":
        talker = max(range(len(outputs)), key=lambda rank: len(outputs[rank]))
        raise RankError(f"Rank {talker} printed more than {LONGEST_OUTPUT // 1_000_000} MB, so the run was stopped. "
                        "Print less: a summary per step, or from rank 0 only.", "output", talker, run)
    if watch.processes.lost and reason != "done":
        raise RankError(f"{watch.processes.lost} The next launch starts it anew.", "server", run=run)
    found = differences(watch.records, finished=True)
    certain = [difference for difference in found if difference.certain]
    if reason != "done" or certain:
        error = (judge(endings, watch.records, reason, timeout) if reason != "done"
                 else RankError(certain[0].sentence + " Every rank returned, but the results are wrong.", "difference"))
        error.run = run
        raise error
    run.results = [_result(ending, run) for ending in endings]
    run.warnings = [difference.sentence for difference in found]
    for sentence in run.warnings:
        print(f"Warning: {sentence}")
    return run


def _result(ending, run):
    try:
        return pickles.loads(ending.outcome["result"])
    except (Exception, SystemExit) as error:
        raise RankError(f"The result of rank {ending.rank} was sent, but cannot be put together in the notebook "
                        f"({type(error).__name__}: {error}). Return plain numbers, strings, lists, dicts, arrays or tensors.",
                        "result", ending.rank, run) from None
