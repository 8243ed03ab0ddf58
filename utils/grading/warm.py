"""The grader's end of the warm process (``warm_process.py``): ask it for a process behind walls."""

from __future__ import annotations

import ast
import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
from nbformat import NotebookNode

from utils.grading import warm_process
from utils.grading.errors import GradingError
from utils.grading.kernel import environment
from utils.grading.notebook import is_answer

START_SECONDS = 120.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# A fork copies the page table.  In pages of 2 MB, which Linux gives to who asks for them, that takes a tenth of the time.
QUICK_FORKS = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if sys.platform == "linux" else {}


@dataclass(frozen=True)
class WarmChild:
    """A process that the warm process forked, as :func:`utils.grading.processes.follow` wants it."""

    pid: int
    handle: int  # a descriptor that becomes readable when the process has ended; -1: it has

    def poll(self) -> int | None:
        """Return ``None`` while it runs."""
        return 0 if self.handle < 0 or select.select([self.handle], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        """Return when it has ended; raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        if self.handle >= 0 and not select.select([self.handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return 0

    def close(self) -> None:
        """Close the descriptor."""
        if self.handle >= 0:
            os.close(self.handle)


class Warm:
    """The warm process; it is started at the first use, started again when it was killed, and ended by :meth:`close`.

    Arguments:
        root: the course's folder, whose ``utils`` it loads.
        modules: what it loads, by name.
        imports: import statements that it runs besides.
    """

    def __init__(self, root: Path, modules: Iterable[str], imports: Iterable[str] = ()):
        self._root, self._wanted = root, {"modules": list(modules), "imports": list(imports)}
        self._lock, self._process, self._socket = threading.Lock(), None, None
        self._folder = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)

    @property
    def folder(self) -> Path:
        """An empty folder, for processes that need no files."""
        return Path(self._folder.name)

    def start(self, kind: str, box: str, env: dict[str, str], handles: list[int], **fields) -> int:
        """Have a process forked and return its id.

        Arguments:
            kind: ``"nbval"`` or ``"worker"``.
            box: the walls around it, as :meth:`utils.grading.sandbox.Sandbox.description` gives them.
            env: its environment.
            handles: its channel; if there is a second one, it gets what the process prints.
            fields: what else it must know.

        Raises ``GradingError`` if the warm process cannot be kept alive.
        """
        request = {"kind": kind, "box": box, "env": env} | fields
        with self._lock:
            for _ in range(2):
                if self._process is None or self._process.poll() is not None:
                    self._begin()
                with contextlib.suppress(OSError):
                    warm_process.send(self._socket, request, handles)
                    answer, _ = warm_process.receive(self._socket)
                    if answer is not None:
                        return answer["pid"]
                self._process.kill()
                self._process.wait()
        raise GradingError("the process that starts the runs ends again and again. Is there enough memory?")

    def begin(self, modules: Iterable[str] = ()) -> None:
        """Start it now, with ``modules`` loaded too, so that nothing is loaded after a student's code has run."""
        with self._lock:
            self._wanted["modules"] += modules
            self._begin()

    def _begin(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(START_SECONDS)
        env = environment(self.folder, self._root) | ONE_THREAD | QUICK_FORKS
        env["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # what a kernel sets before it imports
        with other, tempfile.TemporaryFile() as printed:
            self._process = subprocess.Popen(
                [sys.executable, os.path.realpath(warm_process.__file__), str(other.fileno())],
                pass_fds=[other.fileno()],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                warm_process.send(self._socket, self._wanted)
                other.close()
                answer, _ = warm_process.receive(self._socket)
            except OSError as error:
                raise GradingError(f"the process that starts the runs did not start: {error}.") from None
            if answer is None:
                printed.seek(0)
                said = printed.read().decode(errors="replace").strip().splitlines() or [
                    "it ended without a word"
                ]
                raise GradingError(f"the process that starts the runs did not start: {said[-1]}.")

    def end_children(self) -> None:
        """End every process below the warm one, daemons that hid from their run among them."""
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()

    def close(self) -> None:
        """End it, all that it forked, and its folder."""
        if self._process is not None:
            self.end_children()
            self._process.kill()
            self._process.wait()
            self._socket.close()
        self._folder.cleanup()


def open_child(pid: int) -> WarmChild:
    """Return the process with this id, which may have ended already."""
    try:
        return WarmChild(pid, os.pidfd_open(pid))
    except OSError:
        return WarmChild(pid, -1)


def imports_of(lab: NotebookNode) -> list[str]:
    """Return the import statements in the released lab's own cells: what every run of it will load."""
    found = []
    for cell in lab.cells:
        if cell.cell_type == "code" and not is_answer(cell):
            with contextlib.suppress(SyntaxError):  # a cell with magics
                nodes = ast.walk(ast.parse(cell.source))
                found += [
                    ast.unparse(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))
                ]
    return list(dict.fromkeys(found))


def warm_for(lab: NotebookNode, root: Path, *, nbval: bool, verify: bool) -> Warm:
    """Return the warm process for runs of ``lab`` under nbval, in the verify stage, or both."""
    modules = (warm_process.NBVAL_MODULES if nbval else ()) + (warm_process.VERIFY_MODULES if verify else ())
    return Warm(root, modules, imports_of(lab))
