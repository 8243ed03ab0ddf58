"""Linux: end what ranks leave running: the members of their process groups, and orphans, which this process adopts.

A resource tracker of `multiprocessing` may live a moment longer: when everybody whom it serves has ended, it removes the
shared memory and the semaphores that they forgot, and ends by itself.
"""
import contextlib
import ctypes
import os
import signal
import sys


def adopt_orphans() -> None:
    """From now on, processes whose parent ends become children of this process, so that it can end them."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1)


def end_groups(leaders, trackers_too: bool) -> None:
    """End every member of the process groups with these leaders."""
    leaders = {leader for leader in leaders if _has_members(leader)}
    for process_id in _all_processes() if leaders else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process_id) in leaders:
                _end(process_id, trackers_too)


def end_orphans(trackers_too: bool) -> None:
    """End every child of this process. Each that ends may hand over its own children, so ask again when one has."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        for child in file.read().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                _end(int(child), trackers_too)


def _all_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_members(leader):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, 0)
        return True
    return False


def _end(process_id, trackers_too):
    if trackers_too or not _is_tracker(process_id):
        os.kill(process_id, signal.SIGKILL)


def _is_tracker(process_id):
    with contextlib.suppress(OSError), open(f"/proc/{process_id}/cmdline", "rb") as file:
        return b"from multiprocessing.resource_tracker import main" in file.read()
    return False
