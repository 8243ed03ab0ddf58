"""Verify answers behind a process wall: this process calls the student's functions with fresh inputs, over plain data.

Nothing of the student's is imported, unpickled or run here.  What to verify is written in
``solutions/verify/NN_name.py``, one function per question::

    def q1(student, random):
        def three_ranks():
            values = random.integers(0, 100, (3, 6)).astype("float32")
            run = student.on_ranks("ring_reduce_scatter", [[row] for row in values])
            assert run.steps == 2, f"a ring of 3 takes 2 steps, yours took {run.steps}"
        return [Case("3 ranks", three_ranks), Case("a length that 3 does not divide", …, hidden=True)]
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
from nbformat import NotebookNode

import utils
from utils.grading import box, plain_data
from utils.grading.errors import GradingError
from utils.grading.grade import SubCheck
from utils.grading.kernel import environment
from utils.grading.notebook import is_answer, is_check
from utils.grading.plain_data import BadData, Closed
from utils.grading.routed import COLLECTIVES, Call, Mark, RoutedRun, Router, StudentError
from utils.grading.sandbox import Sandbox

SERVER = Path(os.path.realpath(__file__)).with_name("student_process.py")
CALL_SECONDS = 10.0
START_SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    """One thing to verify: ``run`` returns if it is right and raises ``AssertionError`` with a sentence if not."""

    name: str
    run: Callable[[], None]
    hidden: bool = False


CasesOf = Callable[["Student", np.random.Generator], Iterable[Case]]


@dataclass(frozen=True)
class Worker:
    """A process that holds a student's functions: the channel to it, and the process unless it is gone already."""

    channel: socket.socket
    process: psutil.Process | None

    def end(self) -> None:
        """End it with everything that it started."""
        self.channel.close()
        try:
            family = [*self.process.children(recursive=True), self.process] if self.process else []
        except psutil.NoSuchProcess:
            return
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()


class Server:
    """The process that forks workers; it is started at the first use and ended by :meth:`close`."""

    def __init__(self, root: Path, sandbox: Sandbox):
        self._root, self._sandbox = root, sandbox
        self._lock, self._process, self._socket = threading.Lock(), None, None
        self._folder = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)

    def worker(self) -> Worker:
        """Start a worker and return it."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            own, other = socket.socketpair()
            try:
                socket.send_fds(self._socket, [self._description().encode()], [other.fileno()])
            finally:
                other.close()
            pid = plain_data.receive(self._socket, time.monotonic() + START_SECONDS)["pid"]
        try:
            return Worker(own, psutil.Process(pid))
        except psutil.NoSuchProcess:
            return Worker(own, None)

    def _start(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        env = environment(Path(self._folder.name), self._root) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, str(SERVER), str(other.fileno())], pass_fds=[other.fileno()],
                                         env=env, cwd=self._folder.name, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        other.close()
        try:
            plain_data.receive(self._socket, time.monotonic() + START_SECONDS)
        except (Closed, TimeoutError, BadData) as error:
            raise GradingError(f"the verify stage's server did not start: {error}.") from None

    def _description(self) -> str:
        box_ = self._sandbox
        if box_.level != "userns":
            return box.limits(box_.memory_bytes)
        return box.spec(self._folder.name, hide=list(box_.hide), keep=list(box_.keep), memory_bytes=box_.memory_bytes)

    def end_workers(self) -> None:
        """End every process below the server, daemons that hid from their worker among them."""
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()

    def close(self) -> None:
        """End the server, its workers and their folder."""
        if self._process is not None:
            self.end_workers()
            self._process.kill()
            self._process.wait()
            self._socket.close()
        self._folder.cleanup()


class Student:
    """A student's functions, each call in fresh processes."""

    def __init__(self, server: Server, cells: list[list], root: Path):
        self._server, self._cells, self._root = server, cells, root

    def call(self, name: str, *arguments: Any, tensors: bool = True, seconds: float = CALL_SECONDS) -> Any:
        """Call ``name(*arguments)`` in one process and return the result as plain data.

        Arguments:
            name: the function's name in the notebook.
            arguments: plain data; arrays arrive as torch tensors, or as numpy arrays if ``tensors`` is false.
            seconds: the limit.

        Raises ``StudentError`` if it raises, ends, is too slow or returns something that is not plain data.
        """
        request = {"functions": [name], "probe": "", "tensors": tensors}
        return self._run(request, [list(arguments)], seconds, 0, ()).values[0]["value"]

    def on_ranks(self, name: str, arguments: list[list], *, tensors: bool = True, seconds: float = CALL_SECONDS,
                 collectives: Iterable[str] = ()) -> RoutedRun:
        """Call ``name(*arguments[rank])`` on ``len(arguments)`` ranks whose messages go through this process.

        The default process group is ready on each rank; only ``send``, ``recv``, ``isend``, ``irecv``,
        ``batch_isend_irecv`` and the ``collectives`` exist.  Other arguments and errors are those of :meth:`call`.
        """
        request = {"functions": [name], "probe": "", "tensors": tensors}
        run = self._run(request, arguments, seconds, len(arguments), tuple(collectives))
        return replace(run, values=[value["value"] for value in run.values])

    def probe(self, functions: list[str], inputs: dict) -> dict:
        """Do what the ``call`` of :mod:`utils.checks.boundary` does, behind the wall: same inputs, same outputs."""
        world_size = int(inputs["world_size"])
        request = {"functions": functions, "probe": str(inputs["probe"]), "tensors": False}
        try:
            run = self._run(request, [inputs["arguments"]] * world_size, CALL_SECONDS, world_size, COLLECTIVES)
        except StudentError as error:
            return {"error": {"kind": error.kind, "message": str(error), "rank": error.rank}, "results": [], "calls": [],
                    "spans": [], "printed": []}
        return {"error": None, "results": [value["value"] for value in run.values],
                "calls": [boundary_calls(calls, marks, world_size) for calls, marks in zip(run.calls, run.marks)],
                "spans": [boundary_spans(marks) for marks in run.marks],
                "printed": [str(value["printed"]) for value in run.values]}

    def _run(self, request: dict, arguments: list, seconds: float, world_size: int, allowed: tuple[str, ...]) -> RoutedRun:
        deadline = time.monotonic() + seconds + START_SECONDS
        workers: list[Worker] = []
        try:
            for _ in arguments:
                workers.append(self._server.worker())
            channels = [worker.channel for worker in workers]
            for rank, channel in enumerate(channels):
                self._tell(channel, {"root": str(self._root), "rank": rank, "world_size": world_size,
                                     "allowed": list(allowed), "cells": self._cells})
            for channel in channels:
                self._expect_ready(channel, deadline)
            ids = [secrets.token_hex(8) for _ in channels]
            for channel, call_id, values in zip(channels, ids, arguments):
                self._tell(channel, request | {"id": call_id, "arguments": plain_data.encode(values)})
            run = Router(channels, ids, time.monotonic() + seconds).run()
            for rank, value in enumerate(run.values):
                if type(value) is not dict or value.keys() != {"value", "printed"}:
                    raise StudentError(f"rank {rank}: sent a result of the wrong form", "unpicklable", rank)
            return run
        finally:
            for worker in workers:
                worker.end()

    @staticmethod
    def _tell(channel: socket.socket, fields: dict) -> None:
        try:
            plain_data.send(channel, fields)
        except OSError:
            raise StudentError("the process with your code ended before it was called") from None

    @staticmethod
    def _expect_ready(channel: socket.socket, deadline: float) -> None:
        try:
            ready = plain_data.receive(channel, deadline)
        except (Closed, TimeoutError, BadData):
            raise StudentError("your cells end the process or take too long when they are defined") from None
        if ready != {"op": "ready"}:
            raise StudentError("your cells sent something before they were called")


def boundary_calls(calls: Iterable[Call], marks: Iterable[Mark], world_size: int) -> list[dict]:
    """Return a rank's calls in the form of :mod:`utils.checks.boundary`, with sizes and times as the router saw them."""
    from utils.checks.boundary import CASE
    from utils.ranks.definitions import bytes_by_definition

    marks = list(marks)
    ends = {mark.number: mark.time for mark in marks if mark.kind == "done"}
    cases = [(mark.time, ends.get(mark.number, float("inf")), mark.tags.get("case")) for mark in marks if mark.name == CASE]
    return [{"op": call.op, "peer": call.peer if call.op in ("send", "recv") and call.peer >= 0 else None,
             "elements": call.elements, "dtype": call.dtype, "start": call.start, "waited": call.waited,
             "sent_bytes": bytes_by_definition(call.op, call.elements * np.dtype(call.dtype).itemsize, world_size,
                                               is_root=call.root == call.rank)[0],
             "case": next((case for start, end, case in cases if start <= call.start <= end), None)} for call in calls]


def boundary_spans(marks: Iterable[Mark]) -> list[dict]:
    """Return a rank's spans in the form of :mod:`utils.checks.boundary`."""
    from utils.checks.boundary import CASE

    marks = list(marks)
    ends = {mark.number: mark.time for mark in marks if mark.kind == "done"}
    return [{"name": mark.name, "start": mark.time, "end": ends.get(mark.number), **mark.tags}
            for mark in marks if mark.kind == "span" and mark.name != CASE]


class Verifier:
    """What an :class:`~utils.grading.grade.Assignment` calls after nbval; :meth:`close` it at the end."""

    def __init__(self, cases: dict[str, CasesOf], root: Path, sandbox: Sandbox, seed: int | None):
        self.seed = secrets.randbits(32) if seed is None else seed
        self._cases, self._root = cases, root
        self._server = Server(root, sandbox)

    def __call__(self, grafted: NotebookNode, passed: Iterable[str]) -> dict[str, list[SubCheck]]:
        """Return the sub-checks of each question in ``passed`` for which there are cases."""
        student = Student(self._server, cells_of(grafted), self._root)
        return {name: self._verify(name, student) for name in passed if name in self._cases}

    def _verify(self, name: str, student: Student) -> list[SubCheck]:
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        results = []
        for case in self._cases[name](student, random):
            try:
                case.run()
            except AssertionError as error:  # StudentError is one, and so is what the lab's checks raise
                results.append(SubCheck(case.name, False, str(error)[:1000], case.hidden))
            except Exception as error:  # noqa: BLE001  a reply of an unexpected shape is the student's fault too
                results.append(SubCheck(case.name, False, f"what came back could not be compared ({type(error).__name__})",
                                        case.hidden))
            else:
                results.append(SubCheck(case.name, True, "", case.hidden))
        return results

    def close(self) -> None:
        """End the processes."""
        self._server.close()


def cells_of(grafted: NotebookNode) -> list[list]:
    """Return the cells that define a student's names: ``[name, source, whole]``, without checks.

    Answers are run as a whole; of other cells only what defines something.
    """
    return [[cell.id, cell.source, is_answer(cell)] for cell in grafted.cells
            if cell.cell_type == "code" and not is_check(cell)]


def cases_from_file(path: Path) -> dict[str, CasesOf]:
    """Return the functions in ``solutions/verify/NN_name.py``, by question."""
    spec = importlib.util.spec_from_file_location(f"course_verify_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if callable(value) and re.fullmatch(r"q[a-z0-9]*", name)}


def cases_from_checks(module: ModuleType) -> dict[str, CasesOf]:
    """Return cases that run the sub-checks of a lab's own check module behind the wall, with fresh seeds.

    The module has ``QUESTIONS`` (for each question its sub-checks, as in :mod:`utils.checks.verdict`) and ``FUNCTIONS``
    (the names of the student's functions).
    """
    functions = getattr(module, "FUNCTIONS", None) or getattr(module, "_FUNCTIONS", {})

    def cases_of(question: str) -> CasesOf:
        def cases(student: Student, random: np.random.Generator) -> list[Case]:
            seed = int(random.integers(1 << 31))
            call = functools.partial(student.probe, list(functions[question]))
            return [Case(sub.name, functools.partial(sub.check, call, seed)) for sub in module.QUESTIONS[question]]
        return cases

    return {question: cases_of(question) for question in getattr(module, "QUESTIONS", {}) if question in functions}


def verifier_of(lab: NotebookNode, root: Path, sandbox: Sandbox, seed: int | None = None) -> Verifier | None:
    """Return the verifier of a lab, or ``None`` if nothing says how to verify it.

    Cases come from ``utils/checks/<name>.py`` where it has ``QUESTIONS``, and from ``solutions/verify/NN_name.py``, which
    outranks it question by question.

    Arguments:
        lab: the released lab.
        root: the course's folder.
        sandbox: the walls around the workers.
        seed: for the inputs; by default a new one, so that nobody can know them.
    """
    name = lab.metadata.get("course", {}).get("lab", "")
    cases: dict[str, CasesOf] = {}
    short = re.sub(r"^\d+_", "", name)
    own = Path(utils.__file__).resolve().parent
    if short and (root / "utils" / "checks" / f"{short}.py").exists() and own == (root / "utils").resolve():
        cases |= cases_from_checks(importlib.import_module(f"utils.checks.{short}"))
    hidden = root / "solutions" / "verify" / f"{name}.py"
    if hidden.exists():
        cases |= cases_from_file(hidden)
    return Verifier(cases, root, sandbox, seed) if cases else None
