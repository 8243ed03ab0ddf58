"""The untrusted side of the verify stage: a process that runs a student's definitions and answers calls.

The warm process forks one for each worker (``warm_process.py``).  It speaks over one channel, and holds no expected
values, no seeds, no solutions.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import linecache
import os
import socket
import sys
import traceback
from pathlib import Path

HERE = Path(os.path.realpath(__file__)).parent


def _module(name: str):
    """Load a module of this folder under its own name, without the package around it, unless it is loaded already."""
    if f"course_{name}" in sys.modules:
        return sys.modules[f"course_{name}"]
    spec = importlib.util.spec_from_file_location(f"course_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


plain_data = _module("plain_data")


def work(channel: socket.socket) -> None:
    """Run the cells that come over ``channel``, then answer calls until it closes."""
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
