"""The warm process: it has loaded what a lab's run needs, and forks a boxed process for each run.

Loading torch, pytest and a notebook kernel takes seconds, a fork takes milliseconds.  Run as a script with one socket,
whose first message says what to load; each later one asks for a process:

* ``nbval``: a lab under nbval (:mod:`nbval_guard`), with a kernel that is a fork too (:mod:`warm_kernel`);
* ``worker``: a student's functions for the verify stage (:mod:`student_process`).

A student's code never runs here, only in forks of forks behind their own walls: a fork has a copy of this memory and no
way back.  So what is here must be what every student may see: no solutions, no seeds, no submissions.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
HERE = Path(os.path.realpath(__file__)).parent
NBVAL_MODULES = (
    "psutil",
    "pytest",
    "nbval.plugin",
    "nbval.kernel",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "matplotlib_inline.backend_inline",
    "nbval_guard",
    "warm_kernel",
)
VERIFY_MODULES = (
    "numpy",
    "torch.distributed",
    "torch.nn",
    "torch._dynamo",  # an optimizer needs it: seconds, in every worker
    "utils.checks.boundary",
    "student_process",
    "may_call",
    "routed_line",
    "routed_group",
)


def module_here(name: str):
    """Load a module of this folder under its own name, without the package around it."""
    known = sys.modules.get(f"course_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"course_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def receive(channel: socket.socket) -> tuple[dict | None, list[int]]:
    """Return the next message and the descriptors that came with it; ``None`` when the other end has closed."""
    head, handles, _, _ = socket.recv_fds(channel, 4, 2)
    if len(head) < 4:
        return None, handles
    left, parts = struct.unpack("!I", head)[0], []
    while left:
        parts.append(channel.recv(min(left, 65536)))
        if not parts[-1]:
            return None, handles
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), handles


def send(channel: socket.socket, fields: dict, handles: list[int] = ()) -> None:
    """Send a message, with open descriptors."""
    data = json.dumps(fields).encode()
    head = struct.pack("!I", len(data))
    if handles:
        socket.send_fds(channel, [head], list(handles))
        channel.sendall(data)
    else:
        channel.sendall(head + data)


def serve(requests: socket.socket) -> None:
    """Load what the first message names, then fork a process for every message until the other end closes."""
    wanted, _ = receive(requests)
    if wanted is None:
        return
    preload(wanted)
    signal.signal(signal.SIGCHLD, _reap)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # daemons stay this process's children
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # without a box, students' code has this process's user
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page
    send(requests, {"pid": os.getpid()})
    while True:
        try:
            request, handles = receive(requests)
        except InterruptedError:
            continue
        if request is None:
            return
        own = os.getpid()
        child = os.fork()
        if child == 0:
            module_here("box").guarded(functools.partial(_be_child, request, handles, own))
        for handle in handles:
            os.close(handle)
        send(requests, {"pid": child})


def _reap(*_) -> None:
    """See off the children that have ended, whose processor time then counts as this process's children's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def preload(wanted: dict) -> None:
    """Load the modules in ``wanted["modules"]`` and run the import statements in ``wanted["imports"]``.

    What cannot be imported is left to the run that needs it, which then says so.
    """
    sys.modules["rfc3987_syntax"] = None  # jsonschema does without it; importing it costs a second
    with tempfile.TemporaryDirectory() as tempfile.tempdir:  # torch's compiler makes a folder on import
        for name in wanted["modules"]:
            with contextlib.suppress(Exception):
                module_here(name) if (HERE / f"{name}.py").exists() else importlib.import_module(name)
        for statement in wanted["imports"]:
            with contextlib.suppress(Exception):
                exec(statement, {})
        if "utils.ranks" in sys.modules:
            with contextlib.suppress(Exception):
                for name in importlib.import_module("utils.ranks.forkserver").PRELOADED:
                    importlib.import_module(name)
    tempfile.tempdir = None


def _be_child(request: dict, handles: list[int], parent: int) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # so that its files in /proc are its own
    null = os.open(os.devnull, os.O_RDWR)
    output = handles[1] if len(handles) > 1 else null
    for standard, handle in enumerate((null, output, output)):
        os.dup2(handle, standard)
    keep_only({0, 1, 2, handles[0]})
    settle(request["env"])
    work = {"nbval": _nbval, "worker": _worker}[request["kind"]]
    return module_here("box").main(request["box"], functools.partial(work, request, handles[0]), parent)


def keep_only(handles: set[int]) -> None:
    """Close all other descriptors of this process."""
    last = max(handles)
    for handle in range(3, last):
        if handle not in handles:
            with contextlib.suppress(OSError):
                os.close(handle)
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def settle(env: dict[str, str]) -> None:
    """Make this fork's environment ``env`` and forget what was worked out from the warm process's own."""
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    random.seed()  # forks would all continue one sequence
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _nbval(request: dict, report: int) -> int:
    kernel = module_here("warm_kernel").PreparedKernel(report)
    kernel.serve_jupyter_client()
    return module_here("nbval_guard").main(report, request["cell_timeout"], "lab.ipynb")


def _worker(request: dict, channel: int) -> int:
    module_here("student_process").work(socket.socket(fileno=channel))
    return 0


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != str(HERE)]
    with socket.socket(fileno=int(sys.argv[1])) as own:
        serve(own)
