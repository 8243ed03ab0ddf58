"""Ranks that are spawned: a fresh Python for each, which takes seconds and works everywhere."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from utils.ranks.files import Files


class SpawnedProcesses:
    def __init__(self):
        self._running: dict[int, subprocess.Popen] = {}
        self.stopped: dict[int, int] = {}
        self.lost = ""
        self._alive, kept_open = os.pipe()  # the second end closes with this process, whatever ends it
        self._open = [self._alive, kept_open]

    def start(self, rank, files):
        passed = [*files, self._alive]
        self._running[rank] = subprocess.Popen(
            [sys.executable, "-c", program("utils.ranks.spawned", rank, *passed)], pass_fds=passed,
            stdin=subprocess.DEVNULL, stdout=files.output, stderr=files.output, start_new_session=True)

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while True:
            ended = {rank: process.returncode for rank, process in self._running.items() if process.poll() is not None}
            if ended or not self._running or time.monotonic() >= until:
                break
            time.sleep(0.01)
        for rank in ended:
            process = self._running.pop(rank)
            _end_group(process.pid)
        return ended

    def signal(self, number):
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)

    def close(self):
        self.signal(signal.SIGKILL)
        while self._running:
            self.wait(1.0)
        while self._open:
            os.close(self._open.pop())


def _end_group(process_id):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, signal.SIGKILL)


def main(rank: int, *descriptors: int) -> None:
    """A spawned rank's process: watch the notebook, then do what every rank does."""
    *files, alive = descriptors

    def end_when_the_notebook_ends():
        os.read(alive, 1)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_when_the_notebook_ends, daemon=True).start()
    from utils.ranks.worker import run_rank
    os._exit(run_rank(rank, Files(*files)))


def program(module, *arguments):
    """Source for `python -c`: import `module` from where this process would, then call its main.

    A notebook's folder comes last, if the course is not in it: a `random.py` there, which this process never saw, must
    not take the place of Python's own while torch is loaded.
    """
    here, course = os.getcwd(), str(Path(__file__).parents[2])
    path = sorted((os.path.abspath(entry or here) for entry in sys.path), key=lambda entry: course != entry == here)
    return f"import sys; sys.path[:] = {path!r}; from {module} import main; main(*{arguments!r})"
