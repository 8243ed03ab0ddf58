"""Run the cells of one of the course's own notebooks, in a fresh kernel and a fresh folder.

For notebooks that the course trusts (solutions, labs, mutants); a student's notebook goes through ``nbval_stage``.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import v4

from utils.grading.notebook import text_of
from utils.grading.questions import TIMEOUT_SECONDS

RUNNING_VARIABLE = "COURSE_RUNNING"
NEEDED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "SYSTEMROOT",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class CellRun:
    """What one cell did: its output, and ``error`` (``"ValueError: …"``) if it did not finish."""

    stdout: str
    stderr: str
    kinds: tuple[str, ...]
    error: str | None
    traceback: str
    seconds: float


def environment(folder: Path, root: Path) -> dict[str, str]:
    """Return the environment for a process that works in ``folder`` with the course's ``utils`` from ``root``.

    Of this process's own variables only those cross that a Python program needs to start: no keys, no settings.
    ``COURSE_RUNNING`` tells a notebook's code that it is run for a release, a check or a grade.
    """
    path = [str(root), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    home = dict.fromkeys(
        (
            "HOME",
            "TMPDIR",
            "IPYTHONDIR",
            "MPLCONFIGDIR",
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTER_DATA_DIR",
            "TORCH_HOME",
            "XDG_CACHE_HOME",
        ),
        str(folder),
    )
    fixed = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        RUNNING_VARIABLE: "1",
    }
    return {name: os.environ[name] for name in NEEDED_VARIABLES if name in os.environ} | home | fixed


class Session:
    """A kernel that runs one cell at a time; make one with :func:`session`."""

    def __init__(self, client: NotebookClient):
        self._client = client
        self.alive = True

    def run(self, source: str, timeout_seconds: float = TIMEOUT_SECONDS) -> CellRun:
        """Run ``source`` and return what it did; an exception in the cell is a result, not an error here."""
        cell = v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._client.timeout_func = lambda _: timeout_seconds
        error, traceback, start = None, "", time.perf_counter()
        try:
            self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        except CellTimeoutError:
            self.alive, error = False, f"TimeoutError: the cell ran longer than its {timeout_seconds:g} s"
        except DeadKernelError:
            self.alive, error = (
                False,
                "DeadKernelError: the Python process of the notebook ended during the cell",
            )
        for output in cell.outputs:
            if output.output_type == "error":
                error = f"{output.ename}: {output.evalue}"
                traceback = _COLOUR.sub("", "\n".join(output.traceback))
        kinds = tuple(o.get("name", o.output_type) for o in cell.outputs if o.output_type != "error")
        seconds = time.perf_counter() - start
        return CellRun(
            text_of(cell.outputs, "stdout"), text_of(cell.outputs, "stderr"), kinds, error, traceback, seconds
        )


@contextmanager
def session(root: str | Path) -> Iterator[Session]:
    """Start a kernel in a fresh temporary folder that can ``import utils`` from ``root``; end both on leaving."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        client = NotebookClient(
            v4.new_notebook(),
            kernel_name="python3",
            allow_errors=True,
            timeout=None,
            resources={"metadata": {"path": str(folder)}},
        )
        with client.setup_kernel(
            env=environment(folder, Path(root).resolve()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ):
            yield Session(client)
