"""Start the ranks' processes, hear how they end, end them. Two ways: fork from a warm server, or spawn afresh."""
import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Protocol

from utils.ranks.files import Files
from utils.ranks.interrupts import interrupts_held
from utils.ranks.scratch import scratch_file
from utils.ranks.spawned import SpawnedProcesses, program

MESSAGE_BYTES = 4096
_PATIENCE_SECONDS = 20.0  # so long may the ranks' server take, on a busy machine, to end them all


class Processes(Protocol):
    """What `launch` needs; `ForkedProcesses` and `SpawnedProcesses` both are one."""

    stopped: dict[int, int]   # {rank: signal} of those that do not run at present: SIGSTOP and its like
    lost: str                 # empty, or a sentence: why nothing more will be heard of the ranks

    def start(self, rank: int, files: Files) -> None: ...
    def wait(self, seconds: float) -> dict[int, int]: ...    # {rank: exit code} of those that ended by now
    def signal(self, number: int) -> None: ...               # to every rank that still runs
    def close(self) -> None: ...                             # end every rank and return when all are gone


def start_processes(method: str | None = None) -> Processes:
    """Choose how ranks start: "forkserver" (Linux, 0.2 s) or "spawn" (everywhere, several seconds)."""
    method = method or ("forkserver" if sys.platform == "linux" else "spawn")
    if method == "forkserver":
        return ForkedProcesses(_warm_server())
    if method == "spawn":
        return SpawnedProcesses()
    raise ValueError(f"start_method is 'forkserver', 'spawn' or None (let the course choose), not {method!r}.")


# ---- forked from a server that has torch loaded -------------------------------------------------------------------

class ForkServer:
    """The notebook's end of `utils.ranks.forkserver`: one process per kernel, started by a lesson's first cell or a launch."""

    def __init__(self, process, control: socket.socket, errors: int):
        self.owner = os.getpid()
        self.process, self.control, self._errors = process, control, errors
        self._ready = False

    @classmethod
    def started(cls):
        """A new process, which begins to load torch."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, os.fdopen(scratch_file("errors"), "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", program("utils.ranks.forkserver", theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True)
            return cls(process, ours, os.dup(errors.fileno()))

    def wait_until_ready(self) -> None:
        """Return when the server has loaded torch; raises RuntimeError with what it printed if it could not."""
        if self._ready:
            return
        while not (select.select([self.control], [], [], 1.0)[0] or self.trouble()):
            pass
        trouble = self.trouble()
        with interrupts_held():  # what was read must not be lost
            self._ready = not trouble and _hear(self.control) is not None
        if not self._ready:
            printed = os.pread(self._errors, 10_000, 0).decode(errors="replace").strip().splitlines()
            self.close()
            if printed:
                raise RuntimeError(f"The process that starts the ranks could not load torch: {printed[-1]}. "
                                   "`course doctor` looks for the reason.")
            raise RuntimeError(f"{trouble} The next launch starts it anew.")

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.trouble()

    def trouble(self) -> str:
        """Empty, or a sentence: why this server starts no more ranks."""
        if self.process.poll() is not None or _hung_up(self.control):
            return "The process that starts the ranks was ended, and the ranks with it."
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] in "Tt":
                return "The process that starts the ranks was stopped from outside, so it was ended, and the ranks with it."
        return ""

    def close(self, patience_seconds: float = 5) -> None:
        """End it; if it does not end by itself in time, it is killed, and the ranks die with it."""
        if self.owner != os.getpid():  # a forked copy of the kernel: the server is not ours to end
            return
        self.control.close()
        with contextlib.suppress(OSError):
            os.close(self._errors)
        self._errors = -1
        if self._ready:  # else it has no ranks to see off, and hears nothing while it loads
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_seconds)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


_server: ForkServer | None = None


def _warm_server() -> ForkServer:
    """The kernel's server, ready to fork. Loading torch here at the same time costs no extra time."""
    server = _living_server()
    import torch.distributed  # noqa: F401
    server.wait_until_ready()
    return server


def _living_server() -> ForkServer:
    """The kernel's server, started or restarted when needed; it may still be loading torch."""
    global _server
    if _server is None or not _server.alive():
        if _server is not None:
            _server.close()
        else:
            atexit.register(lambda: _server and _server.close())
        _server = ForkServer.started()
    return _server


def start_loading_in_a_notebook() -> None:
    """In a notebook's kernel, have the server load torch while the first cells are read: the first launch waits less.

    Nowhere else: a program that imports the course may never launch. What goes wrong here is told when it launches.
    """
    kernels = sys.modules.get("ipykernel.kernelapp")
    if sys.platform == "linux" and kernels and kernels.IPKernelApp.initialized():
        with contextlib.suppress(OSError):
            _living_server()


def adopt_server(process, control: socket.socket, errors: int) -> None:
    """Let this kernel's ranks start from a server that was forked for it: torch need not be loaded once more.

    process  the server, with the methods of subprocess.Popen; it runs `utils.ranks.forkserver.main`
    control  the other end of its socket
    errors   descriptor of the file that it prints to
    """
    global _server
    atexit.register(lambda: _server and _server.close())
    _server = ForkServer(process, control, errors)


class ForkedProcesses:
    def __init__(self, server: ForkServer):
        self._server = server
        self._running: set[int] = set()
        self._closed = False
        self.stopped: dict[int, int] = {}
        self.lost = ""

    def start(self, rank, files):
        self._running.add(rank)
        try:
            socket.send_fds(self._server.control, [json.dumps({"start": rank}).encode()], files)
        except OSError:
            self._lose(self._server.trouble())

    def wait(self, seconds):
        ended = {}
        while self._running and not self.lost:
            if not select.select([self._server.control], [], [], 0 if ended else seconds)[0]:
                if trouble := self._server.trouble():
                    self._lose(trouble)
                break
            message = _hear(self._server.control)
            if message is None:
                self._lose(self._server.trouble())
            elif "stopped" in message:
                self.stopped[message["stopped"]] = message["by"]
            elif "ended" in message:
                ended[message["ended"]] = message["status"]
                self._running.discard(message["ended"])
        return ended

    def signal(self, number):
        self._tell({"signal": int(number)})

    def close(self):
        """The server's answer also takes whatever it had said before from the line: the next run hears of itself only."""
        if self._closed or self.lost:
            return
        self._tell({"end": True})
        until = time.monotonic() + _PATIENCE_SECONDS
        try:
            while not self.lost:
                if not select.select([self._server.control], [], [], 0.2)[0]:
                    if trouble := self._server.trouble() or (time.monotonic() > until and _NO_ANSWER):
                        self._lose(trouble)
                elif (message := _hear(self._server.control)) is None:
                    self._lose(self._server.trouble())
                elif "gone" in message:
                    self._closed = True
                    return
        except BaseException:  # interrupted once more: without the server nothing of it lives on
            self._server.close()
            raise

    def _tell(self, message):
        with contextlib.suppress(OSError):
            self._server.control.send(json.dumps(message).encode())

    def _lose(self, why):
        """Without the server nothing of its ranks lives on: the kernel ends them with it."""
        self.lost = why or _NO_ANSWER
        self._running.clear()
        self._server.close(patience_seconds=0.5)


_NO_ANSWER = "The process that starts the ranks did not answer any more, so it was ended, and the ranks with it."


def _hung_up(control) -> bool:
    poll = select.poll()
    poll.register(control, 0)
    return bool(poll.poll(0))


def _hear(control):
    """The server's next message; None when it is gone."""
    with contextlib.suppress(OSError):
        if text := control.recv(MESSAGE_BYTES):
            return json.loads(text)
    return None
