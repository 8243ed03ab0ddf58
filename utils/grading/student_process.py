"""The untrusted side of the verify stage: a server that has torch loaded and forks a boxed process per worker.

Run as a script with one socket.  Each request carries a second socket, the channel of the new worker.  A worker runs
the student's definitions, then answers calls over its channel; it holds no expected values, no seeds, no solutions.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import io
import linecache
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
HERE = Path(os.path.realpath(__file__)).parent


def _module(name: str):
    """Load a module of this folder under its own name, without the package around it."""
    spec = importlib.util.spec_from_file_location(f"course_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


box, plain_data = _module("box"), _module("plain_data")


def serve(requests: socket.socket) -> None:
    """Fork a worker for every request until the other end closes."""
    import numpy  # noqa: F401  loaded here so that no worker has to
    import torch.distributed
    import torch.nn  # noqa: F401

    for name in (
        "torch._dynamo",
        "utils.checks.boundary",
    ):  # an optimizer needs the first: seconds, in every worker
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # daemons stay this process's children
    plain_data.send(requests, {"ready": os.getpid()})
    while True:
        try:
            data, handles, _, _ = socket.recv_fds(requests, 65536, 1)
        except InterruptedError:
            continue
        if not data:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            box.guarded(functools.partial(_start_worker, data.decode(), handles[0]))
        os.close(handles[0])
        plain_data.send(requests, {"pid": child})


def _start_worker(description: str, handle: int) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    def inner() -> None:
        _worker(socket.socket(fileno=handle))
        os._exit(0)

    return box.main(description, inner)


def _worker(channel: socket.socket) -> None:
    import torch

    torch.set_num_threads(1)
    start = plain_data.receive(channel)
    os.environ.update({name: os.getcwd() for name in ("HOME", "TMPDIR", "MPLCONFIGDIR", "IPYTHONDIR")})
    sys.path.insert(0, start["root"])
    if start["world_size"]:
        _module("may_call")
        _module("routed_line")
        group = _module("routed_group")
        group.join(channel, start["rank"], start["world_size"], tuple(start["allowed"]))
        with contextlib.suppress(ImportError):
            importlib.import_module("utils.ranks.rank")._recorder = group.Marks(channel)
    namespace = _define(start["cells"])
    plain_data.send(channel, {"op": "ready"})
    while True:
        try:
            request = plain_data.receive(channel)
        except plain_data.Closed:
            return
        plain_data.send(channel, {"op": "result", "id": request["id"]} | _call(namespace, request))


def _call(namespace: dict, request: dict) -> dict:
    printed = io.StringIO()
    try:
        missing = [name for name in request["functions"] if not callable(namespace.get(name))]
        if missing:
            return {"error": f"NameError: your notebook does not define '{missing[0]}'"}
        functions = [namespace[name] for name in request["functions"]]
        arguments = plain_data.decode(request["arguments"])
        with contextlib.redirect_stdout(printed):
            if request["probe"]:
                value = _probe(request["probe"], functions, arguments)
            else:
                value = functions[0](*[_tensors(item) if request["tensors"] else item for item in arguments])
        return {"value": plain_data.encode({"value": value, "printed": printed.getvalue()[:2000]})}
    except BaseException as error:  # noqa: BLE001  whatever the student's code raises is an answer
        lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename.startswith("<q")]
        where = f" (your line: {lines[-1].line})" if lines and lines[-1].line else ""
        return {"error": f"{type(error).__name__}: {str(error)[:500]}{where}"}


def _probe(name: str, functions: list, arguments: dict):
    """Run ``utils.checks.probes.<name>``, which prepares what the functions get, as the lab's own checks do."""
    module, _, function = name.rpartition(".")
    boundary = importlib.import_module("utils.checks.boundary")
    probe = getattr(importlib.import_module(f"utils.checks.probes.{module}"), function)
    return boundary.plain(probe(*functions, **arguments))


def _tensors(value):
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if type(value) is list:
        return [_tensors(item) for item in value]
    if type(value) is dict:
        return {key: _tensors(item) for key, item in value.items()}
    return value


def _define(cells: list[list]) -> dict:
    """Run the cells in one namespace: answers as they are, other cells without what they do besides defining."""
    namespace: dict = {"__name__": "__main__"}
    for name, source, whole in cells:
        with contextlib.suppress(
            BaseException
        ):  # a cell that fails leaves its names undefined: that is the message
            tree = ast.parse(source)
            if not whole:
                tree.body = [node for node in tree.body if _defines(node)]
            linecache.cache[f"<{name}>"] = (len(source), None, source.splitlines(keepends=True), f"<{name}>")
            exec(compile(tree, f"<{name}>", "exec"), namespace)
    return namespace


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
        return True
    calls = {
        part.func.id
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
    }
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and "launch" not in calls


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != str(HERE)]
    with socket.socket(fileno=int(sys.argv[1])) as own:
        serve(own)
