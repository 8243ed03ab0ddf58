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
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from nbformat import NotebookNode

from utils.grading import box, plain_data
from utils.grading.errors import GradingError
from utils.grading.grade import SubCheck
from utils.grading.kernel import environment
from utils.grading.notebook import is_answer, is_check
from utils.grading.plain_data import BadData, Closed
from utils.grading.questions import questions
from utils.grading.routed import RoutedRun, Router, StudentError
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
        return self._run(name, [list(arguments)], tensors, seconds, 0)[0]

    def on_ranks(self, name: str, arguments: list[list], *, tensors: bool = True,
                 seconds: float = CALL_SECONDS) -> RoutedRun:
        """Call ``name(*arguments[rank])`` on ``len(arguments)`` ranks whose messages go through this process.

        The default process group is ready on each rank; only ``send``, ``recv``, ``isend``, ``irecv`` and
        ``batch_isend_irecv`` exist.  Arguments and errors are those of :meth:`call`.
        """
        return self._run(name, arguments, tensors, seconds, len(arguments))

    def _run(self, name: str, arguments: list[list], tensors: bool, seconds: float, world_size: int) -> Any:
        deadline = time.monotonic() + seconds + START_SECONDS
        workers: list[Worker] = []
        try:
            for _ in arguments:
                workers.append(self._server.worker())
            channels = [worker.channel for worker in workers]
            for rank, channel in enumerate(channels):
                self._tell(channel, {"root": str(self._root), "rank": rank, "world_size": world_size, "allowed": [],
                                     "cells": self._cells})
            for rank, channel in enumerate(channels):
                self._expect_ready(channel, rank, deadline)
            ids = [secrets.token_hex(8) for _ in channels]
            for channel, call_id, values in zip(channels, ids, arguments):
                self._tell(channel, {"id": call_id, "name": name, "tensors": tensors, "arguments": plain_data.encode(values)})
            run = Router(channels, ids, time.monotonic() + seconds).run()
            return run if world_size else run.values
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
    def _expect_ready(channel: socket.socket, rank: int, deadline: float) -> None:
        try:
            ready = plain_data.receive(channel, deadline)
        except (Closed, TimeoutError, BadData):
            raise StudentError("your cells end the process or take too long when they are defined") from None
        if ready != {"op": "ready"}:
            raise StudentError("your cells sent something before they were called")


class Verifier:
    """What an :class:`~utils.grading.grade.Assignment` calls after nbval; :meth:`close` it at the end."""

    def __init__(self, path: Path, lab: NotebookNode, root: Path, sandbox: Sandbox, seed: int | None):
        self.seed = secrets.randbits(32) if seed is None else seed
        self._functions, self._lab, self._root = _load(path), lab, root
        self._server = Server(root, sandbox)

    def __call__(self, grafted: NotebookNode, passed: Iterable[str]) -> dict[str, list[SubCheck]]:
        """Return the sub-checks of each question in ``passed`` for which there is a function."""
        student = Student(self._server, cells_of(grafted), self._root)
        known = {question.name for question in questions(self._lab)}
        return {name: self._verify(name, student) for name in passed if name in known and name in self._functions}

    def _verify(self, name: str, student: Student) -> list[SubCheck]:
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        results = []
        for case in self._functions[name](student, random):
            try:
                case.run()
            except AssertionError as error:  # StudentError is one
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


def _load(path: Path) -> dict[str, Callable]:
    spec = importlib.util.spec_from_file_location(f"course_verify_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}


def verifier_of(path: Path, lab: NotebookNode, root: Path, sandbox: Sandbox, seed: int | None = None) -> Verifier:
    """Return the verifier of a lab.

    Arguments:
        path: ``solutions/verify/NN_name.py``.
        lab: the released lab.
        root: the course's folder.
        sandbox: the walls around the workers.
        seed: for the inputs; by default a new one, so that nobody can know them.
    """
    return Verifier(path, lab, root, sandbox, seed)
