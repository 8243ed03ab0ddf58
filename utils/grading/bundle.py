"""The archive that students receive."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from utils.grading.errors import ReleaseError
from utils.grading.leaks import leaks_in_files
from utils.grading.notebook import read
from utils.grading.release import shipped_files

_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_CLONE_ONLY = re.compile(rb"<!-- clone:begin -->\n.*?<!-- clone:end -->\n", re.DOTALL)


def write_bundle(archive: str | Path, root: str | Path, solutions: Iterable[Path] = ()) -> list[str]:
    """Write a zip file for students: lessons, labs, ``utils`` and how to install; no solutions, mutants or tests.

    The same files give the same bytes.  Of a ``.md`` file, what stands between ``<!-- clone:begin -->`` and
    ``<!-- clone:end -->`` is left out: it is about files that students do not get.

    Arguments:
        archive: where to write.
        root: the course's folder.
        solutions: solutions whose code must not be in any of the files.

    Returns the names in the archive.  Raises ``ReleaseError`` if a file holds a piece of a solution.
    """
    archive, root = Path(archive), Path(root).resolve()
    files = shipped_files(root)
    leaks = []
    for solution in map(read, solutions):
        course = solution.metadata.get("course", {})
        lessons = [
            path.relative_to(root).as_posix()
            for path in files
            if "lessons" in path.relative_to(root).parts[:1]
        ]
        leaks += leaks_in_files(solution, files, root, [*course.get("taught_in", []), *lessons])
    if leaks:
        raise ReleaseError(leaks)
    names = [path.relative_to(root).as_posix() for path in files]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as out:
        for name, path in zip(names, files):
            entry = zipfile.ZipInfo(f"course/{name}", _FIXED_TIME)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            content = path.read_bytes()
            out.writestr(entry, _CLONE_ONLY.sub(b"", content) if path.suffix == ".md" else content)
    return names
