"""How long a new user waits: from `git clone` and `make lab` in an empty folder to the first picture of lesson 00.

    python -m benchmarks.first_picture

What the README tells to do is done, in a temporary folder and with an empty home: clone, `make lab`, open the page that it
prints in a browser, run cell after cell. Needs Chromium or Chrome and Playwright; `make test-browser` installs them. pip
loads what the machine's settings name; how far away that is decides much of the first row.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.measure import Table, digits, main
from utils.grading.notebook import read

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "browser"))
LESSON = "lessons/00_start_here.ipynb"
NOTE = """\
Of one walk, as the README tells it, in an empty folder and with an empty home; no time for reading. Installing is done once;
later calls of `make lab` begin with the second row."""


def tables(quick: bool = False) -> Iterator[Table]:
    """When each thing was there, in seconds since `git clone` began."""
    rows, before = [], 0.0
    for what, seconds in walk():
        rows.append((what, f"{digits(seconds - before)} s", f"{digits(seconds)} s"))
        before = seconds
    yield Table("First picture: from an empty folder", ("what", "time", "together"), rows, NOTE)


def walk() -> Iterator[tuple[str, float]]:
    """Follow the README; yields what is there now, and the seconds since the begin."""
    from lab import Lab, address, start_browser
    with tempfile.TemporaryDirectory(prefix="first-picture-", ignore_cleanup_errors=True) as folder:
        course, home, begin = Path(folder) / "course", Path(folder) / "home", time.monotonic()
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, course], check=True)
        with make(course, home, "lab", "LAB_ARGS=--no-browser --ip=127.0.0.1 --port=0 --LabApp.expose_app_in_browser=True"
                  ) as server, start_browser() as browser:
            found = address(server, home / "runtime", Path(folder) / "make.log")
            yield "installed, JupyterLab answers", time.monotonic() - begin
            if browser is None:
                yield "(no browser here to open it in)", time.monotonic() - begin
                return
            notebook = Lab(found, course, psutil.Process(server.pid)).open(browser.new_page(), LESSON)
            notebook.ask("panel.sessionContext.session?.kernel?.status == 'idle'", wait=True)
            yield "lesson 00 is open and its kernel ready", time.monotonic() - begin
            notebook.run_through(greeting())
            yield "four ranks have said hello", time.monotonic() - begin
            notebook.run_through(picture())
            yield "first picture", time.monotonic() - begin


def greeting() -> int:
    """The number of lesson 00's cell in which four ranks say hello."""
    return _first_cell(lambda output: "hello from rank 3" in output.get("text", ""))


def picture() -> int:
    """The number of lesson 00's first cell that draws."""
    return _first_cell(lambda output: "image/png" in output.get("data", {}))


def _first_cell(wanted):
    return next(number for number, cell in enumerate(read(ROOT / LESSON).cells) if any(map(wanted, cell.get("outputs", ()))))


@contextlib.contextmanager
def make(course: Path, home: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """`make` in the clone, with a home and settings of its own; what it started is ended at the end."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "XDG_", "MAKE", "VIRTUAL_ENV"))}
    ours |= {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / "runtime")}
    with (home.parent / "make.log").open("wb") as log:
        process = subprocess.Popen(["make", *arguments], cwd=course, env=ours, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        for late in psutil.wait_procs(family, timeout=20)[1]:
            late.kill()
        process.wait()


if __name__ == "__main__":
    main(tables, __doc__)
