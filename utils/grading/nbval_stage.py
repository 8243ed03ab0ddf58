"""Run a grafted lab under nbval, in a process and a folder of its own, and say what became of every cell."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from utils.grading import nbval_guard, processes
from utils.grading.kernel import environment
from utils.grading.notebook import dumps, is_check
from utils.grading.sandbox import Sandbox
from utils.grading.warm import ONE_THREAD, Warm, WarmChild, open_child

CELL_TIMEOUT_SECONDS = 60.0
TOTAL_TIMEOUT_SECONDS = 600.0
NO_SANDBOX = Sandbox()


@dataclass(frozen=True)
class CellResult:
    """What became of one cell: ``outcome`` is ``"passed"``, ``"failed"`` or ``"stopped"``."""

    outcome: str
    message: str = ""
    traceback: str = ""
    stdout: str = ""
    stderr: str = ""
    cut: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class NbvalRun:
    """The cells that ended, by cell id; ``status`` is ``"ok"``, ``"timeout"`` or ``"crashed"``."""

    cells: dict[str, CellResult]
    status: str
    left_behind: int
    seconds: float
    output: str

    def passed(self, check: str) -> bool:
        """Return whether the cell ``check`` ran to its end and passed: nothing else earns a point."""
        return check in self.cells and self.cells[check].outcome == "passed"


def run_nbval(
    lab: NotebookNode,
    root: str | Path,
    *,
    sandbox: Sandbox = NO_SANDBOX,
    cell_timeout: float = CELL_TIMEOUT_SECONDS,
    total_timeout: float = TOTAL_TIMEOUT_SECONDS,
    warm: Warm | None = None,
) -> NbvalRun:
    """Run ``lab`` under nbval with the guard.

    Arguments:
        lab: a grafted lab.
        root: the course's folder, whose ``utils`` the lab imports.
        sandbox: the walls around it.
        cell_timeout: seconds for a cell that names no limit of its own.
        total_timeout: seconds after which everything is ended.
        warm: a process that has everything loaded; without it each run loads everything anew.
    """
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "lab.ipynb").write_text(dumps(lab), encoding="utf-8")
        (folder / "grader.ini").write_text("[pytest]\n")
        env = environment(folder, Path(root).resolve()) | ONE_THREAD
        env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if warm is None:
            guard = [sys.executable, os.path.realpath(nbval_guard.__file__)]
            command = sandbox.wrap([*guard, "{report_fd}", str(cell_timeout), "lab.ipynb"], folder)
            finished = processes.run(command, env=env, folder=folder, timeout_seconds=total_timeout)
        else:
            with contextlib.ExitStack() as stack:

                def start(report_fd: int, output_fd: int) -> WarmChild:
                    handles, walls = [report_fd, output_fd], sandbox.description(folder)
                    child = open_child(warm.start("nbval", walls, env, handles, cell_timeout=cell_timeout))
                    stack.callback(child.close)
                    return child

                finished = processes.follow(start, folder=folder, timeout_seconds=total_timeout)
    cells, left_behind = _read_report(finished.report)
    wanted = {cell.id for cell in lab.cells if cell.cell_type == "code"}
    status = "timeout" if finished.timed_out else "ok" if wanted <= set(cells) else "crashed"
    return NbvalRun(cells, status, finished.left_behind + left_behind, finished.seconds, finished.output)


def judged_part(lab: NotebookNode) -> NotebookNode:
    """Return ``lab`` up to its last check: what comes after it cannot change a verdict, and takes time."""
    last = max(
        (number for number, cell in enumerate(lab.cells) if is_check(cell)), default=len(lab.cells) - 1
    )
    part = copy.copy(lab)
    part.cells = lab.cells[: last + 1]
    return part


def _read_report(report: bytes) -> tuple[dict[str, CellResult], int]:
    """Return the cells in the guard's report and how many processes it had to end.

    The report may stop anywhere; a line that cannot be read is passed over.
    """
    cells, left_behind = {}, 0
    for line in report.splitlines():
        try:
            fields = json.loads(line)
            if "left_behind" in fields:
                left_behind += int(fields["left_behind"])
            else:
                cells.setdefault(str(fields.pop("id")), CellResult(**fields))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return cells, left_behind
