"""Run a command with an absolute deadline and leave none of its processes behind."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

REPORT_BYTES = 8_000_000


class Process(Protocol):
    """What :func:`follow` needs of a process; ``subprocess.Popen`` is one."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True)
class Finished:
    """How a run ended: what it reported, its last output, and whether and with what it had to be ended."""

    report: bytes
    output: str
    timed_out: bool
    left_behind: int
    seconds: float


def run(command: Sequence[str], *, env: dict[str, str], folder: Path, timeout_seconds: float) -> Finished:
    """Run ``command`` and return what it wrote to its report pipe.

    Arguments:
        command: the command; the text ``"{report_fd}"`` in it becomes the number of the pipe to report to.
        env: its environment, to which ``COURSE_RUN`` is added: processes that carry it are ended with the command.
        folder: where it runs.
        timeout_seconds: when it and everything that it started is ended, whatever it does.
    """
    run_id = os.urandom(8).hex()

    def start(report_fd: int, output_fd: int) -> subprocess.Popen:
        return subprocess.Popen(
            [part.replace("{report_fd}", str(report_fd)) for part in command],
            cwd=folder,
            env=env | {"COURSE_RUN": run_id},
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=subprocess.STDOUT,
            pass_fds=[report_fd],
            start_new_session=True,
        )

    return follow(start, folder=folder, timeout_seconds=timeout_seconds, run_id=run_id)


def follow(
    start: Callable[[int, int], Process], *, folder: Path, timeout_seconds: float, run_id: str = ""
) -> Finished:
    """Start a process, read its report until it ends or its time is over, and end all that it leaves behind.

    Arguments:
        start: starts the process with two descriptors, for its report and for what it prints, and returns it.
        folder: where what it prints is kept meanwhile.
        timeout_seconds: when it and everything that it started is ended, whatever it does.
        run_id: processes with this text as their variable ``COURSE_RUN`` are ended too.
    """
    begin = time.monotonic()
    reader, writer = os.pipe()
    report, over = bytearray(), False
    with open(folder / "output.txt", "w+b") as output, os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            process = start(writer, output.fileno())
        finally:
            os.close(writer)
        try:
            over = not _read_until_closed(pipe, report, begin + timeout_seconds)
            process.wait(timeout=max(0.1, begin + timeout_seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            over = True
        finally:
            ended_by_itself = process.poll() is not None
            left_behind = _end(process.pid, run_id)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
        tail = output.read().decode("utf-8", "replace")
    if not ended_by_itself:  # a run that was stopped has its processes, of course
        left_behind = 0
    return Finished(bytes(report), tail, over, left_behind, time.monotonic() - begin)


def _read_until_closed(pipe, report: bytearray, deadline: float) -> bool:
    """Read the pipe to its end into ``report``; return ``False`` if the deadline or the size limit came first."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                piece = pipe.read(65536)
                if not piece:
                    return True
                report += piece
                if len(report) > REPORT_BYTES:
                    return False
    return False


def _family(pid: int, run_id: str) -> list[psutil.Process]:
    """Return the process, its descendants, and whatever else carries the run's mark."""
    found = {}
    try:
        process = psutil.Process(pid)
        found = {member.pid: member for member in [process, *process.children(recursive=True)]}
    except psutil.NoSuchProcess:
        pass
    for process in psutil.process_iter() if run_id else ():
        try:
            if process.pid not in found and process.environ().get("COURSE_RUN") == run_id:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue
    return [process for process in found.values() if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _end(pid: int, run_id: str) -> int:
    """End the run's processes, first stopping all so that none can start another; return how many there were."""
    ended = set()
    for _ in range(5):
        family = _family(pid, run_id)
        if not family:
            break
        for action in (psutil.Process.suspend, psutil.Process.kill):
            for process in family:
                try:
                    action(process)
                except psutil.Error:
                    continue
        ended |= {process.pid for process in family}
        psutil.wait_procs([process for process in family if process.pid != pid], timeout=2)
    return len(ended - {pid})
