"""What a process and the runs that it started hold at present, to be compared with what it held before."""
import gc
import os
import tempfile
import threading
import uuid

import psutil

MARK = "COURSE_ENDURANCE"


def mark_this_process() -> None:
    """Let every process that starts from here on carry a mark, by which it is found wherever it ends up."""
    os.environ[MARK] = uuid.uuid4().hex


def marked_processes() -> dict[int, str]:
    """{process id: command} of all that carry our mark, or are below us, and still run."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == os.environ.get(MARK, ""):
                found[process.pid] = process
        except psutil.Error:
            continue
    running = {}
    for pid, process in found.items():
        try:
            if pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                running[pid] = " ".join(process.cmdline())[:80]
        except psutil.Error:
            continue
    return running


def forgotten_shared_memory() -> list[str]:
    """What lies in /dev/shm and is not in use: other programs of this machine have their own there."""
    names = os.listdir("/dev/shm")
    if not names:
        return []
    used = set()
    for pid in psutil.pids():
        try:
            with open(f"/proc/{pid}/maps") as file:
                used |= {line.split("/dev/shm/", 1)[1].split()[0] for line in file if "/dev/shm/" in line}
        except OSError:
            continue
    return sorted(set(names) - used)


def holdings() -> dict:
    """Counts and lists that must not grow by a run."""
    gc.collect()
    return {"processes": marked_processes(), "descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
            "shared memory": forgotten_shared_memory(), "temporary files": sorted(os.listdir(tempfile.gettempdir()))}


def added(before: dict, after: dict) -> dict:
    """What one of two `holdings` has more than an earlier one."""
    more = {}
    for key, now in after.items():
        if isinstance(now, int):
            new = f"{before[key]} -> {now}" if now > before[key] else ""
        else:
            new = [item for item in now if item not in before[key]]
        if new:
            more[key] = new
    return more
