"""A process that has torch loaded and does nothing but fork ranks: a fork takes milliseconds, an import seconds.

It never runs a torch operation, has no second Python thread and never touches a GPU, so its children start clean.
It speaks over one socket with the notebook: a message in (with the rank's files), a message out when a rank ends or is
stopped. Asked for the end of a run, it answers when nothing of the run is left, the ranks' own children included.
When the notebook goes away, the socket closes, and everything here ends.
"""
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import weakref

from utils.ranks.files import Files
from utils.ranks.huge_pages import use_huge_pages
from utils.ranks.leftovers import adopt_orphans, end_groups, end_orphans

PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
             "torch.distributed.pipelining", "numpy", "utils.ranks.worker")
MESSAGE_BYTES = 4096
_TRACKER_SECONDS = 1.0  # so long may what removes forgotten shared memory live on


def main(control_descriptor: int) -> None:
    """Serve until the notebook closes its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_descriptor)
    chores = _preload()
    from utils.ranks.worker import refuse_to_start
    child_ended, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    adopt_orphans()
    ranks: dict[int, int] = {}  # process id -> rank
    run_ends = 0.0  # since when the notebook waits for the end of the run
    _say(control, {"ready": os.getpid()})
    while True:
        at_leisure = bool(chores) and not ranks and not run_ends
        patience = 0 if at_leisure else _TRACKER_SECONDS if run_ends else None
        readable, _, _ = select.select([control, child_ended], [], [], patience)
        if at_leisure and not readable and next(chores, "done") == "done":
            chores = None
        if child_ended in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(child_ended, 4096)
            _report_ended(control, ranks)
        if control in readable:
            text, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, len(Files._fields))
            if not text:
                _end(ranks)
                begin = time.monotonic()
                while not _report_ended(control, ranks, begin):  # see them off: nobody else will
                    select.select([child_ended], [], [], 0.1)
                return
            message = json.loads(text)
            if "start" in message:
                rank, files = message["start"], Files(*descriptors)
                try:
                    ranks[_fork_rank(rank, files, control, child_ended, notify)] = rank
                except OSError as error:
                    refuse_to_start(files, error)
                    _say(control, {"ended": rank, "status": 1})
                for descriptor in descriptors:
                    os.close(descriptor)
            elif "signal" in message:
                for process_id in ranks:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process_id, message["signal"])
            elif "end" in message:
                _end(ranks)
                run_ends = time.monotonic()
        if run_ends and _report_ended(control, ranks, run_ends):
            run_ends = 0.0
            _say(control, {"gone": True})


def _preload():
    """Import what the ranks will need; returns what else makes forks cheap, in small steps, for when nobody waits."""
    is_a_copy = "torch" in sys.modules  # of a process that has imported it: see `adopt_server`
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/dev/fd"  # torch's compiler makes a folder on import, if there is none yet
    for name in PRELOADED:
        importlib.import_module(name)
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    _spare_the_ranks()
    return None if is_a_copy else use_huge_pages()  # a copy would get pages of its own for all that it shares


def _spare_the_ranks():
    """Leave to this process what only costs the ranks time: each page that a rank writes to must be copied for it.

    At its exit a rank would take apart torch's tables of operators, as every process that has imported torch does, and
    a garbage collection would write into every object that was loaded here: together 0.1 s for each rank.
    """
    atexit._clear()  # as multiprocessing does in its children; a rank's own exit functions come later
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False
    gc.collect()
    gc.freeze()


def _fork_rank(rank, files, control, *pipe_ends):
    process_id = os.fork()
    if process_id:
        _lead_own_group(process_id)
        return process_id
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _lead_own_group(0)
        from utils.ranks.worker import end_with_parent, run_rank
        end_with_parent()
        control.close()
        for descriptor in pipe_ends:
            os.close(descriptor)
        code = run_rank(rank, files)
    except BaseException:
        os.write(files.output, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _lead_own_group(process_id):
    """A rank and whatever it starts can then be ended together. Parent and child both ask: neither may be late."""
    with contextlib.suppress(OSError):
        os.setpgid(process_id, process_id)


def _report_ended(control, ranks, run_ends: float = 0.0) -> bool:
    """Tell the notebook which ranks ended and how; end whatever they left running. True when no process is left."""
    while True:
        try:
            process_id, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return True
        if process_id == 0:
            break
        if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            if process_id in ranks:
                _say(control, {"stopped": ranks[process_id], "by": os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 0})
            continue
        rank = ranks.pop(process_id, None)
        if rank is not None:
            end_groups([process_id], trackers_too=False)
            _say(control, {"ended": rank, "status": os.waitstatus_to_exitcode(status)})
    if not ranks:
        end_orphans(trackers_too=bool(run_ends) and time.monotonic() - run_ends > _TRACKER_SECONDS)
    return False


def _end(ranks):
    """End the ranks and their groups. First by their own numbers: one may have joined another group."""
    for process_id in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, signal.SIGKILL)
    end_groups(ranks, trackers_too=False)


def _say(control, message):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps(message).encode())
