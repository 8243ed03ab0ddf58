"""Run a notebook with nbval so that nothing in it can stall, flood or mislead the grader.

Run as a script, in a process of its own: ``python nbval_guard.py REPORT_FD CELL_TIMEOUT NOTEBOOK``.  It writes one
line of JSON per code cell to the file descriptor, as cells end.  What it changes in nbval 0.11:

* a cell's limit comes from its metadata (``course.timeout``); a cell that swallows the interrupt fails all the same,
  and later cells run normally instead of being marked as expected failures;
* a kernel that died, or was told to exit, is noticed at once and blamed on the cell that did it;
* output is read while the cell runs, up to a limit in bytes and in time;
* the kernel does not see ``PYTEST_CURRENT_TEST`` (ipykernel would hide the output of child processes);
* a check cell's last line must be the stored one; what a student's code prints before it does not matter.

It imports nothing of the course: its start-up time is part of every graded submission.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import time
from queue import Empty

BYTES_PER_CELL = 2_000_000
GRACE_SECONDS = 5.0
SLICE_SECONDS = 0.25
PATIENCE_SECONDS = 5.0
KEPT_CHARACTERS = 4_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


class CellStopped(Exception):
    """The guard ended a cell; the message says why."""


class Guard:
    """The pytest plugin: patches nbval once and reports every cell."""

    def __init__(self, report_fd: int, cell_timeout: float):
        self.report_fd, self.cell_timeout = report_fd, cell_timeout
        self.started = 0.0

    def pytest_configure(self) -> None:
        patch_kernel()
        patch_cell(self.cell_timeout)

    def pytest_runtest_logstart(self) -> None:
        self.started = time.perf_counter()

    def pytest_runtest_makereport(self, item, call) -> None:
        if call.when == "call" or (call.when == "setup" and call.excinfo):
            write_line(self.report_fd, cell_report(item, call, time.perf_counter() - self.started))


def cell_report(item, call, seconds: float) -> dict:
    """Return what happened to one cell, in plain data."""
    outputs = item.test_outputs or []
    error = next((out for out in outputs if out.output_type == "error"), None)
    stdout = "".join(out.text for out in outputs if out.output_type == "stream" and out.name == "stdout")
    stderr = "".join(out.text for out in outputs if out.output_type == "stream" and out.name == "stderr")
    if call.excinfo is None:
        outcome, message = "passed", ""
    elif isinstance(call.excinfo.value, CellStopped):
        outcome, message = "stopped", str(call.excinfo.value)
    elif error is not None:
        outcome, message = "failed", f"{error['ename']}: {error['evalue']}"
    elif call.excinfo.typename == "NbCellError":
        outcome, message = "failed", f"the cell printed {_last_line(stdout)!r}, not what the lab expects"
    else:
        outcome, message = "failed", str(call.excinfo.value)
    traceback = _COLOUR.sub("", "\n".join(error["traceback"])) if error is not None else ""
    return {
        "id": item.cell.get("id", ""),
        "outcome": outcome,
        "message": message[:KEPT_CHARACTERS],
        "traceback": traceback[-KEPT_CHARACTERS:],
        "stdout": stdout[:KEPT_CHARACTERS],
        "stderr": stderr[:KEPT_CHARACTERS],
        "cut": len(stdout) > KEPT_CHARACTERS or len(stderr) > KEPT_CHARACTERS,
        "seconds": round(seconds, 3),
    }


def patch_kernel() -> None:
    """Make nbval's kernel start with a clean environment, and watch it while it works."""
    from nbval import kernel

    start = kernel.start_new_kernel

    def start_new_kernel(*args, **options):
        options["env"] = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        return start(*args, **options)

    def await_reply(self, msg_id, timeout=None):
        deadline = time.monotonic() + (timeout or GRACE_SECONDS)
        while True:
            collect_output(self)
            try:
                message = self.kc.get_shell_msg(
                    timeout=max(0.0, min(SLICE_SECONDS, deadline - time.monotonic()))
                )
            except Empty:
                if not self.is_alive():
                    raise CellStopped(
                        "the Python process of the notebook ended while this cell was running"
                    ) from None
                if time.monotonic() >= deadline:
                    raise
                continue
            if message["parent_header"].get("msg_id") == msg_id:
                payload = message["content"].get("payload", [])
                self.told_to_exit = any(part.get("source") == "ask_exit" for part in payload)
                return

    kernel.start_new_kernel = start_new_kernel
    kernel.RunningKernel.await_reply = await_reply
    kernel.RunningKernel.told_to_exit = False
    kernel.RunningKernel.pending = None


def collect_output(kernel) -> None:
    """Move the output that has arrived from the kernel's socket to ``kernel.pending``, within the cell's limit."""
    if kernel.pending is None:
        kernel.pending, kernel.bytes_seen = [], 0
    while kernel.kc.iopub_channel.msg_ready():
        message = kernel.kc.get_iopub_msg(timeout=0)
        kernel.bytes_seen += sum(len(str(value)) for value in message["content"].values())
        if kernel.bytes_seen > BYTES_PER_CELL:
            raise CellStopped(f"the cell printed more than {BYTES_PER_CELL / 1e6:g} MB")
        kernel.pending.append(message)


def patch_cell(cell_timeout: float) -> None:
    """Give nbval's cells a limit of their own, and replace its rule for cells after a time-out."""
    from nbval.plugin import IPyNbCell, IPyNbFile

    run, compare = IPyNbCell.runtest, IPyNbCell.compare_outputs

    def get_kernel_message(self, timeout=None, stream="iopub"):
        while True:
            collect_output(self.kernel)
            if self.kernel.pending:
                return self.kernel.pending.pop(0)
            left = self.guard_deadline - time.monotonic()
            if left <= 0:
                raise Empty
            if not self.kernel.is_alive():
                raise CellStopped("the Python process of the notebook ended while this cell was running")
            self.kernel.kc.iopub_channel.socket.poll(int(1000 * min(SLICE_SECONDS, left)))

    def runtest(self):
        notebook, kernel = self.parent, self.parent.kernel
        if not kernel.is_alive():
            raise CellStopped("not run: an earlier cell ended the Python process of the notebook")
        limit = float(self.cell.metadata.get("course", {}).get("timeout", cell_timeout))
        self.config.option.nbval_cell_timeout = limit
        notebook.guard_deadline = time.monotonic() + limit + GRACE_SECONDS
        notebook.timed_out, kernel.told_to_exit = False, False
        kernel.pending, kernel.bytes_seen = [], 0
        try:
            run(self)
        except CellStopped:
            stop(kernel)
            raise
        except Exception:
            if notebook.timed_out:
                raise CellStopped(f"the cell ran longer than its limit of {limit:g} s") from None
            raise
        if notebook.timed_out:
            raise CellStopped(f"the cell ran longer than its limit of {limit:g} s")
        if kernel.told_to_exit:
            stop(kernel)
            raise CellStopped("the cell called exit() or quit(), which ends the notebook")

    def compare_outputs(self, test, ref, skip_compare=None):
        if "check" in self.cell.metadata.get("tags", []):
            self.comparison_traceback = []  # what nbval shows when the outputs differ
            return bool(_printed(ref)) and _last_line(_printed(test)) == _last_line(_printed(ref))
        return compare(self, test, ref, skip_compare or (*self.parent.skip_compare, "stderr"))

    IPyNbFile.get_kernel_message = get_kernel_message
    IPyNbCell.setup = lambda self: None
    IPyNbCell.runtest, IPyNbCell.compare_outputs = runtest, compare_outputs


def stop(kernel) -> None:
    """End the kernel, if it is not gone yet."""
    if hasattr(kernel, "km"):
        kernel.stop()


def _printed(outputs) -> str:
    return "".join(out.text for out in outputs if out.output_type == "stream" and out.name == "stdout")


def _last_line(text: str) -> str:
    return (text.rstrip().splitlines() or [""])[-1]


def main(report_fd: int, cell_timeout: float, notebook: str) -> int:
    """Run ``notebook`` and return pytest's exit code, which says nothing about points."""
    sys.path[:] = [
        entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))
    ]
    sys.modules["rfc3987_syntax"] = None  # jsonschema does without it; importing it costs a second
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # a student's code cannot open this process's pipe
        libc.prctl(
            _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # a daemon of a student's becomes this process's child
    os.set_inheritable(report_fd, False)
    import pytest

    folder = os.path.dirname(os.path.abspath(notebook))
    options = [
        "-p",
        "nbval.plugin",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.path.join(folder, "grader.ini"),
        "--rootdir",
        folder,
        "--nbval",
        "--nbval-current-env",
        "--color=no",
        "-q",
        "--tb=no",
        notebook,
    ]
    code = pytest.main(options, plugins=[Guard(report_fd, cell_timeout)])
    write_line(report_fd, {"left_behind": end_children()})
    return code


def end_children() -> int:
    """End what the notebook left running, after a moment in which it may end by itself; return how many it was."""
    import psutil

    ended: set[int] = set()
    patience = PATIENCE_SECONDS
    for _ in range(5):
        children = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.status() != psutil.STATUS_ZOMBIE
        ]
        _, children = psutil.wait_procs(children, timeout=patience)
        if not children:
            break
        for action in (psutil.Process.suspend, psutil.Process.kill):
            for child in children:
                with contextlib.suppress(psutil.Error):
                    action(child)
        ended |= {child.pid for child in children}
        psutil.wait_procs(children, timeout=2)
        patience = 0
    return len(ended)


def write_line(report_fd: int, fields: dict) -> None:
    """Write ``fields`` to the report as one line of JSON."""
    data = (json.dumps(fields) + "\n").encode()
    while data:
        data = data[os.write(report_fd, data) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
