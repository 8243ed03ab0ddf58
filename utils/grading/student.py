"""Call a student's functions in other processes: one for a plain function, one per rank for a collective."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from nbformat import NotebookNode

from utils.grading import plain_data
from utils.grading.kernel import environment
from utils.grading.may_call import EVERYTHING, SEND
from utils.grading.messages import Call, Mark, RoutedRun, StudentError
from utils.grading.notebook import is_answer, is_check
from utils.grading.plain_data import BadData, Closed
from utils.grading.routed import Router
from utils.grading.sandbox import Sandbox
from utils.grading.warm import ONE_THREAD, Warm
from utils.grading.warm_process import VERIFY_MODULES

CALL_SECONDS = 10.0
START_SECONDS = 30.0
PER_RANK = ("arrays", "states")
PER_ROWS = "row_batches"


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
    """Starts workers from a warm process: from the one given, which is its owner's to close, or from one of its own."""

    def __init__(self, root: Path, sandbox: Sandbox, warm: Warm | None = None):
        self._root, self._sandbox = root, sandbox
        self._own = None if warm else Warm(root, VERIFY_MODULES)
        self._warm = warm or self._own

    def worker(self) -> Worker:
        """Start a worker and return it.

        Raises ``GradingError`` if the warm process cannot be kept alive.
        """
        folder = self._warm.folder
        env = environment(folder, self._root) | ONE_THREAD
        own, other = socket.socketpair()
        try:
            pid = self._warm.start("worker", self._sandbox.description(folder), env, [other.fileno()])
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        try:
            return Worker(own, psutil.Process(pid))
        except psutil.NoSuchProcess:
            return Worker(own, None)

    def close(self) -> None:
        """End the workers and, if it is its own, the warm process."""
        self._warm.end_children()
        if self._own is not None:
            self._own.close()


def patience(most: float = 4.0) -> float:
    """How many times as long as on an idle machine a call may take here now: by the processes that wait for a core.

    Limits are seconds of the clock, and a right answer must not fail because the machine is busy.
    """
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(most, max(1.0, waiting))


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

    def on_ranks(
        self,
        name: str,
        arguments: list[list],
        *,
        tensors: bool = True,
        seconds: float = CALL_SECONDS,
        collectives: Iterable[str] = (),
    ) -> RoutedRun:
        """Call ``name(*arguments[rank])`` on ``len(arguments)`` ranks whose messages go through this process.

        The default process group is ready on each rank; only ``send``, ``recv``, ``isend``, ``irecv``,
        ``batch_isend_irecv`` and the ``collectives`` exist (``"new_group"`` among them allows groups and meshes).
        Other arguments and errors are those of :meth:`call`.
        """
        request = {"functions": [name], "probe": "", "tensors": tensors}
        run = self._run(request, arguments, seconds, len(arguments), (SEND, *collectives))
        return replace(run, values=[value["value"] for value in run.values])

    def probe(self, functions: list[str], inputs: dict, may_call: Iterable[str] = EVERYTHING) -> dict:
        """Do what the ``call`` of :mod:`utils.checks.boundary` does, behind the wall: same inputs, same outputs.

        ``may_call`` is what the question may call; :mod:`utils.grading.routed_group` has the words.
        """
        world_size = int(inputs["world_size"])
        request = {"functions": functions, "probe": str(inputs["probe"]), "tensors": False}
        arguments = [own_part(inputs["arguments"], rank, world_size) for rank in range(world_size)]
        try:
            run = self._run(request, arguments, CALL_SECONDS, world_size, tuple(may_call))
        except StudentError as error:
            return {
                "error": {"kind": error.kind, "message": str(error), "rank": error.rank},
                "results": [],
                "calls": [],
                "spans": [],
                "printed": [],
            }
        return {
            "error": None,
            "results": [value["value"] for value in run.values],
            "calls": [boundary_calls(calls, marks) for calls, marks in zip(run.calls, run.marks)],
            "spans": [boundary_spans(marks) for marks in run.marks],
            "printed": [str(value["printed"]) for value in run.values],
        }

    def _run(
        self, request: dict, arguments: list, seconds: float, world_size: int, allowed: tuple[str, ...]
    ) -> RoutedRun:
        seconds *= patience()
        deadline = time.monotonic() + seconds + START_SECONDS
        workers: list[Worker] = []
        try:
            for _ in arguments:
                workers.append(self._server.worker())
            channels = [worker.channel for worker in workers]
            for rank, channel in enumerate(channels):
                self._tell(
                    channel,
                    {
                        "root": str(self._root),
                        "rank": rank,
                        "world_size": world_size,
                        "allowed": list(allowed),
                        "cells": self._cells,
                    },
                )
            for channel in channels:
                self._expect_ready(channel, deadline)
            ids = [secrets.token_hex(8) for _ in channels]
            for channel, call_id, values in zip(channels, ids, arguments):
                self._tell(channel, request | {"id": call_id, "arguments": plain_data.encode(values)})
            run = Router(channels, ids, time.monotonic() + seconds, allowed).run()
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


def own_part(value: Any, rank: int, world_size: int) -> Any:
    """Return ``value`` without what is meant for other ranks.

    That is what lists under the keys in ``PER_RANK`` have for them, and, in arrays below ``PER_ROWS``, the rows that
    ``torch.tensor_split`` gives to them, which become zeros.  A rank that held the others' inputs could compute with them
    by itself and send anything.

    >>> own_part({"arrays": [1, 2], "n": [3, 4]}, 1, 2)
    {'arrays': [None, 2], 'n': [3, 4]}
    >>> own_part({"row_batches": [np.array([5, 6, 7])]}, 1, 2)
    {'row_batches': [array([0, 0, 7])]}
    """
    if isinstance(value, list):
        return [own_part(item, rank, world_size) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {}
    for key, inner in value.items():
        if key in PER_RANK and isinstance(inner, list) and len(inner) == world_size:
            parts[key] = [part if number == rank else None for number, part in enumerate(inner)]
        elif key == PER_ROWS:
            parts[key] = _own_rows(inner, rank, world_size)
        else:
            parts[key] = own_part(inner, rank, world_size)
    return parts


def _own_rows(value: Any, rank: int, world_size: int) -> Any:
    if isinstance(value, list):
        return [_own_rows(item, rank, world_size) for item in value]
    if isinstance(value, dict):
        return {key: _own_rows(item, rank, world_size) for key, item in value.items()}
    own, rows = np.zeros_like(value), np.array_split(np.arange(len(value)), world_size)[rank]
    own[rows] = value[rows]
    return own


def boundary_calls(calls: Iterable[Call], marks: Iterable[Mark]) -> list[dict]:
    """Return a rank's calls in the form of :mod:`utils.checks.boundary`, with sizes and times as the router saw them."""
    from utils.checks.boundary import CASE
    from utils.ranks.definitions import bytes_by_definition

    marks = list(marks)
    ends = {mark.number: mark.time for mark in marks if mark.kind == "done"}
    cases = [
        (mark.time, ends.get(mark.number, float("inf")), mark.tags.get("case"))
        for mark in marks
        if mark.name == CASE
    ]
    return [
        {
            "op": call.op,
            "peer": call.peer if call.op in ("send", "recv") and call.peer >= 0 else None,
            "elements": call.elements,
            "dtype": call.dtype,
            "start": call.start,
            "waited": call.waited,
            "sent_bytes": bytes_by_definition(
                call.op,
                call.elements * call.element_bytes,
                len(call.ranks),
                is_root=call.root == call.rank,
                parts=call.part_bytes,
            )[0],
            "ranks": list(call.ranks),
            "case": next((case for start, end, case in cases if start <= call.start <= end), None),
        }
        for call in calls
    ]


def boundary_spans(marks: Iterable[Mark]) -> list[dict]:
    """Return a rank's spans in the form of :mod:`utils.checks.boundary`."""
    from utils.checks.boundary import CASE

    marks = list(marks)
    ends = {mark.number: mark.time for mark in marks if mark.kind == "done"}
    return [
        {"name": mark.name, "start": mark.time, "end": ends.get(mark.number), **mark.tags}
        for mark in marks
        if mark.kind == "span" and mark.name != CASE
    ]


def cells_of(grafted: NotebookNode) -> list[list]:
    """Return the cells that define a student's names: ``[name, source, whole]``, without checks.

    Answers are run as a whole; of other cells only what defines something.
    """
    return [
        [cell.id, cell.source, is_answer(cell)]
        for cell in grafted.cells
        if cell.cell_type == "code" and not is_check(cell)
    ]
