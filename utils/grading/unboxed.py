"""What can still be done where there is no box: copies for each run that the next one does not see, and an alarm.

Without a box a student's code may write wherever this account may.  So each run gets a copy of the course's ``utils`` as
it was when grading began, and afterwards the grader looks whether anything has changed that a Python of this account
would load.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOADED_EARLY = ("ranks", "theory", "parallel", "checks")


def snapshot(root: Path) -> dict[str, bytes]:
    """Return the files of the course's ``utils``, by their path below ``root``."""
    files = [path for path in (root / "utils").rglob("*") if path.is_file()]
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in files
        if "__pycache__" not in path.parts
    }


@contextmanager
def fresh_course(files: dict[str, bytes]) -> Iterator[Path]:
    """Write ``files`` into a new folder and return it; it is gone on leaving."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as name:
        for path, data in files.items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(data)
        yield Path(name)


def modules_of(root: Path) -> list[str]:
    """Return the modules of ``utils`` that a worker may need, to be loaded before any student's code runs."""
    paths = [path for folder in LOADED_EARLY for path in sorted((root / "utils" / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def installed(root: Path) -> str:
    """Return a hash of what Python would load besides the course's ``utils``: names, sizes and times of change.

    That is what lies in the environment's folders that this account may write, and the modules beside ``utils``: a
    ``sitecustomize.py`` or ``.pth`` file there would run in every later process.  A change of a file's content always
    changes its time of change, which no ordinary account can set.
    """
    seen = hashlib.sha256()
    for base in dict.fromkeys([sys.prefix, site.getusersitepackages()]):
        for parent, folders, names in os.walk(base):
            folders.sort()
            if os.access(parent, os.W_OK):
                _add(seen, parent, names)
    for place in (root, root / "utils"):
        _add(seen, str(place), [path.name for path in place.glob("*.py")])
    for parent, _, names in os.walk(root / "utils"):
        if os.path.basename(parent) == "__pycache__":
            _add(seen, parent, names)
    return seen.hexdigest()


def _add(seen, parent: str, names: list[str]) -> None:
    for name in sorted(names):
        path = os.path.join(parent, name)
        try:
            facts = os.lstat(path)
        except OSError:
            continue
        seen.update(
            f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ctime_ns}\n".encode(errors="replace")
        )
