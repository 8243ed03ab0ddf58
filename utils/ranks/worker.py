"""The life of one rank: join the group, run the function, hand back the result or the reason why not."""
import atexit
import contextlib
import ctypes
import faulthandler
import linecache
import multiprocessing.util
import os
import pickle
import random
import signal
import sys
import time
import traceback

import numpy
import torch
import torch.distributed as dist

from utils.ranks import doors, pickles
from utils.ranks import rank as this_rank
from utils.ranks.files import Files
from utils.ranks.meeting import CannotMeet, join_group, loopback_interface, wait_for_all
from utils.ranks.places import is_user_file
from utils.ranks.recorder import Recorder
from utils.ranks.refusals import refusal
from utils.ranks.scratch import read_from, write_all
from utils.ranks.wire import counted_since, socket_counters

_LONGEST_MESSAGE = 100_000  # characters

def run_rank(rank: int, files: Files) -> int:
    """Run one rank to its end in this process and return the exit code."""
    itself, identity = os.getpid(), _identity(files.outcome)
    recorder = Recorder(files.record)
    try:
        job = pickles.loads(read_from(files.job))
        _settle_in(rank, job, files)
        this_rank.enter_run(recorder if job["record"] else None)
        outcome = {"result": _call(rank, job, files, recorder)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the notebook wants to know
        _end_a_copy(itself)
        outcome = {"error": _describe_error(error), "time": time.monotonic()}
    try:
        if _identity(files.outcome) != identity:
            raise OSError("its file descriptors were closed")
        os.lseek(files.outcome, 0, os.SEEK_SET)
        os.ftruncate(files.outcome, 0)
        write_all(files.outcome, pickle.dumps(outcome))
    except (OSError, MemoryError) as error:
        recorder.event("unheard", why=_message(error))
        return 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return 0 if "result" in outcome else 1


def _identity(descriptor):
    """What a descriptor stands for; None when it is closed. Code on the rank may close it and open a file of its own."""
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None


def _end_a_copy(rank_process_id):
    """End here what is a rank no more, but a process that the function made with os.fork and that came back from it."""
    if os.getpid() == rank_process_id:
        return
    error = sys.exc_info()[1]
    with contextlib.suppress(Exception):
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1 if error else 0)


def _settle_in(rank, job, files):
    """Make this process a rank: own output, the notebook's folder and settings, no interrupts, no orphans."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the notebook's to handle
    _spare_the_notebook_when_memory_runs_out()
    for descriptor in (1, 2):
        os.dup2(files.output, descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    faulthandler.enable(file=files.stack)
    faulthandler.register(signal.SIGUSR1, file=files.stack, all_threads=True)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["world_size"]),
                      LOCAL_WORLD_SIZE=str(job["world_size"]), GLOO_SOCKET_IFNAME=loopback_interface())
    sys.path[:] = job["path"]
    sys.argv[:] = job["argv"]
    with contextlib.suppress(OSError):
        os.chdir(job["folder"])
    torch.set_num_threads(job["threads"])
    random.seed()        # forked ranks would all continue one sequence
    numpy.random.seed()


def _spare_the_notebook_when_memory_runs_out():
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def end_with_parent() -> None:
    """Linux: have the kernel end this process when the process that started it ends, whatever it is doing."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _call(rank, job, files, recorder):
    """Join the group, run the function, wait for the others; return the pickled result."""
    function, arguments = pickles.loads(job["call"])
    store = join_group(rank, job, files.store)
    doors.install(recorder if job["record"] else None, job["cluster"])
    wire_before = socket_counters()
    recorder.event("begin")
    itself = os.getpid()
    result = function(*arguments)
    _end_a_copy(itself)
    recorder.event("returned")
    packed = pickles.dumps(result, f"the result of rank {rank} ({type(result).__name__})")
    recorder.event("packed")
    result = None
    wait_for_all("returned", store, job["world_size"])  # nobody hangs up while another rank still talks
    recorder.event("wire", connections=counted_since(wire_before))
    wait_for_all("counted", store, job["world_size"])   # nor while another rank still looks at its end of the line
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
        multiprocessing.util._run_finalizers()  # they hang on an exit function of the process we were forked from
    if job["backend"] == "nccl" and dist.is_initialized():
        dist.destroy_process_group()
    return packed


def _describe_error(error):
    """What the notebook needs to know of an exception, as plain data."""
    linecache.checkcache()
    frames = [(frame.filename, frame.lineno, frame.name, frame.line)
              for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    kind = type(error)
    name = kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"
    return {"type": name, "message": _message(error), "frames": frames,
            "exit_code": _plain_code(error) if isinstance(error, SystemExit) else None,
            "sentence": isinstance(error, (pickles.UnpicklableError, CannotMeet))}  # its message is the whole verdict


def _message(error):
    try:
        return str(error)[:_LONGEST_MESSAGE]
    except BaseException:
        return "(its message cannot be shown)"


def _plain_code(error):
    """What sys.exit was given, as a number or text."""
    return error.code if error.code is None or type(error.code) in (int, str) else f"a {type(error.code).__name__}"


def refuse_to_start(files: Files, reason: OSError) -> None:
    """Leave an outcome for a rank that never came to life."""
    message = f"The ranks could not be started: {refusal(reason)}."
    error = {"type": "OSError", "message": message, "frames": [], "exit_code": None, "sentence": True}
    write_all(files.outcome, pickle.dumps({"error": error, "time": time.monotonic()}))
