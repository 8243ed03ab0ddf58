"""A notebook's kernel that is forked from a process which has everything loaded, and its server of ranks likewise.

The fork is made before pytest and its connections exist, so that the kernel starts from a clean state; it then waits to
be told its connection file.  Nothing that it does can reach the process that it came from.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

LAUNCHER = "ipykernel_launcher"
MESSAGE_BYTES = 1 << 20


class Forked:
    """A forked child, with the part of ``subprocess.Popen`` that its users need."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in this process has waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended; raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


class PreparedKernel:
    """A fork that waits to become a kernel; ``report_fd`` is closed there.  When this process ends, so does it."""

    def __init__(self, report_fd: int):
        self._channel, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            os.close(report_fd)
            self._channel.close()
            _end_here(lambda: _wait_and_run(its_end))
        its_end.close()
        self._process: Forked | None = Forked(pid)
        self._channel.recv(1)  # it leads its own group now, and an interrupt for it will not be for all

    def serve_jupyter_client(self) -> None:
        """Have ``jupyter_client`` use it for the first kernel that it launches; a second one starts afresh."""
        from jupyter_client.provisioning import local_provisioner

        launch_afresh = local_provisioner.launch_kernel

        def launch_kernel(command: list[str], **options):
            process, self._process = self._process, None
            if process is None or LAUNCHER not in command:
                return launch_afresh(command, **options)
            arguments = command[command.index(LAUNCHER) + 1 :]
            fields = {"arguments": arguments, "env": options["env"], "folder": os.fspath(options["cwd"] or ".")}
            self._channel.send(json.dumps(fields).encode())
            self._channel.close()
            return process

        local_provisioner.launch_kernel = launch_kernel


def _end_here(work) -> None:
    """Run ``work`` in a fork, which ends here whatever happens; exit functions are those of the process above."""
    code = 1
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001  the fork must not return into the code of its parent
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def _wait_and_run(channel: socket.socket) -> int:
    os.setsid()
    channel.send(b"x")
    text = channel.recv(MESSAGE_BYTES)
    channel.close()
    if not text:
        return 0
    told = json.loads(text)
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["folder"])
    sys.modules.pop("rfc3987_syntax", None)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    _prepare_server_of_ranks()
    sys.argv[:] = [LAUNCHER, *told["arguments"], f"--IPKernelApp.parent_handle={os.getppid()}"]
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance()
    return 0


def _prepare_server_of_ranks() -> None:
    """Fork the process that starts this kernel's ranks, where the lab has loaded the engine."""
    processes = sys.modules.get("utils.ranks.processes")
    forkserver = sys.modules.get("utils.ranks.forkserver")
    if processes is None or forkserver is None:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryFile() as printed:
        pid = os.fork()
        if pid == 0:
            ours.close()
            _end_here(lambda: _serve_ranks(forkserver, theirs, printed.fileno()))
        theirs.close()
        processes.adopt_server(Forked(pid), ours, os.dup(printed.fileno()))


def _serve_ranks(forkserver, control: socket.socket, output: int) -> int:
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    forkserver.main(control.detach())
    return 0
