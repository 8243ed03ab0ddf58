"""Find the submissions in what a course platform gives: folders, trees, bulk downloads, zip files."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.grading.errors import GradingError
from utils.grading.notebook import digest
from utils.grading.submission import LARGEST_BYTES
from utils.grading.tables import read_rows

_CANVAS = re.compile(r"(?P<who>[^_]+)_(?P<late>LATE_)?\d+_\d+_(?P<file>.+)")
_MOODLE = re.compile(r"(?P<who>.+?_\d+)_assignsubmission_file(_.*)?")
_BROWSERS_COPY, _PLATFORMS_COPY = re.compile(r" ?\(\d+\)$"), re.compile(r"-\d+$")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ZIP_BYTES, ZIP_RATIO = 500_000_000, 200


@dataclass(frozen=True)
class Submitted:
    """One student's file: where it came from, its bytes, when it was written, and older files of the same student."""

    student: str
    source: str
    data: bytes
    modified: float
    flags: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True)
class _File:
    parts: tuple[str, ...]
    data: bytes
    modified: float
    flags: tuple[str, ...] = ()


def collect(place: str | Path, lab: str) -> list[Submitted]:
    """Return the newest submission of each student, sorted by student.

    Arguments:
        place: a folder (notebooks, one folder per student, an nbgrader tree, a Canvas, Moodle or Gradescope download) or
            a zip file of one.
        lab: the lab's name, to tell it from the student's in a file name.

    Raises ``GradingError`` if ``place`` does not exist or holds no notebook.
    """
    place = Path(place)
    if place.is_dir():
        files = list(_files_of_folder(place))
    elif zipfile.is_zipfile(place):
        try:
            files = list(_files_of_zip(place))
        except zipfile.BadZipFile as error:
            raise GradingError(f"{place}: this zip file is damaged ({error}). Download it again.") from None
    else:
        raise GradingError(
            f"{place}: neither a folder nor a zip file. Give the folder that holds the submissions."
        )
    by_name: dict[str, list[_File]] = {}
    wrapped = _shared_folders(files)
    for file in files:
        by_name.setdefault(_name_of(file.parts, lab, wrapped), []).append(file)
    if not by_name:
        raise GradingError(
            f"{place}: no notebook (.ipynb) in it. Give the folder that holds the submissions."
        )
    return sorted(
        (_newest(student, by_name[name]) for name, student in _ids(by_name).items()),
        key=lambda one: one.student,
    )


def student_of(parts: tuple[str, ...], lab: str, wrapped: int = 0) -> str:
    """Return the student's id from the path of a notebook, as the course platforms write it.

    The outermost folder decides, because a platform or the instructor made it.  What lies in it has names that the
    student chose, and a student must not be able to choose somebody else's.

    Arguments:
        parts: the path's parts.
        lab: the lab's name.
        wrapped: how many of the outermost folders all files have in common: they may be nobody's.

    >>> student_of(("alice.ipynb",), "01_lab"), student_of(("submitted", "bob", "01_lab", "01_lab.ipynb"), "01_lab")
    ('alice', 'bob')
    >>> student_of(("doejane_LATE_123_456_01_lab-2.ipynb",), "01_lab")
    'doejane'
    >>> student_of(("Jane Doe_987_assignsubmission_file_", "01_lab.ipynb"), "01_lab")
    'Jane-Doe_987'
    """
    return safe_id(_name_of(parts, lab, wrapped))


def _name_of(parts: tuple[str, ...], lab: str, wrapped: int) -> str:
    folders = [part for part in parts[:-1] if part not in ("submitted", lab)]
    inner = [part for part in parts[wrapped:-1] if part not in ("submitted", lab)]
    stem = parts[-1].removesuffix(".ipynb")
    for text in (*folders[: len(folders) - len(inner) + 1], *([] if inner else [stem])):
        if match := _MOODLE.fullmatch(text) or _CANVAS.fullmatch(text):
            return match["who"]
    if len(folders) > 1 and folders[0].startswith("assignment_"):
        return folders[1]
    if folders:
        return (inner or folders)[0]
    plain = _BROWSERS_COPY.sub("", stem)
    # only behind the lab's name is a number that of a copy: team-1 is not team-2
    numbered = _PLATFORMS_COPY.sub("", plain)
    if numbered == lab:
        return stem
    for whole, rest in (
        (plain, plain.removesuffix(lab)),
        (numbered, numbered.removesuffix(lab)),
        (plain, plain.removeprefix(lab)),
    ):
        if rest != whole and rest.strip("_- "):
            return rest.strip("_- ")
    return plain


def _ids(names: Iterable[str]) -> dict[str, str]:
    """Return an id for each name.  Of two names that would get the same one, the one that is it already keeps it."""
    ids = {name: safe_id(name) for name in names}
    taken = Counter(ids.values())
    return {
        name: made if taken[made] == 1 or made == name else f"{made}-{digest(name, 6)}"
        for name, made in ids.items()
    }


def _shared_folders(files: list[_File]) -> int:
    """Return how many outermost folders all files lie in."""
    ways = [file.parts[:-1] for file in files] or [()]
    shared = 0
    while all(len(way) > shared and way[shared] == ways[0][shared] for way in ways):
        shared += 1
    return shared


def safe_id(text: str) -> str:
    """Return ``text`` if it is a plain id, else a plain id made from it that stays different from others.

    >>> safe_id("a-b.c"), safe_id("../x")[:6] != "../x", safe_id("Jane Doe")
    ('a-b.c', True, 'Jane-Doe')
    """
    if _SAFE.fullmatch(text):
        return text
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:48]
    if slug and text.replace(" ", "-") == slug:
        return slug
    return f"{slug or 'student'}-{digest(text, 6)}"


def read_roster(path: str | Path) -> list[str]:
    """Return the ids in a roster: the column ``student_id``, or else the first one, of a CSV file.

    Raises ``GradingError`` if the file is missing, unreadable or empty.
    """
    rows = [row for row in read_rows(path, "a column student_id") if row and row[0].strip()]
    if not rows:
        raise GradingError(f"{path}: the roster is empty. It has one student id a line.")
    header = [name.strip().lower() for name in rows[0]]
    column = header.index("student_id") if "student_id" in header else 0
    skip = 1 if header[column] in ("student_id", "id", "student") else 0
    return [safe_id(row[column].strip()) for row in rows[skip:] if len(row) > column]


def _newest(student: str, files: list[_File]) -> Submitted:
    ordered = sorted(files, key=lambda file: (file.modified, _copy_number(file.parts[-1]), file.parts))
    last = ordered[-1]
    canvas = _CANVAS.fullmatch(last.parts[-1].removesuffix(".ipynb"))
    return Submitted(
        student,
        _source(last),
        last.data,
        last.modified,
        (*last.flags, "late")
        if canvas and canvas["late"]
        else last.flags,  # the platform's own clock says so
        tuple(_source(file) for file in ordered[:-1]),
    )


def _source(file: _File) -> str:
    """Return the file's path as text that can be written; a name on a disk may be bytes that are none."""
    return "/".join(file.parts).encode("utf-8", "replace").decode("utf-8")


def _copy_number(name: str) -> int:
    stem = name.removesuffix(".ipynb")
    match = _BROWSERS_COPY.search(stem) or _PLATFORMS_COPY.search(stem)
    return int(re.sub(r"\D", "", match[0])) if match else 0


def _wanted(parts: tuple[str, ...]) -> bool:
    return parts[-1].endswith(".ipynb") and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _files_of_folder(place: Path) -> Iterator[_File]:
    for parent, folders, names in os.walk(place, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            parts = path.relative_to(place).parts
            if not _wanted(parts):
                continue
            try:
                handle = os.open(
                    path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
                )
            except OSError:
                yield _File(parts, b"", 0.0, ("link_or_unreadable",))
                continue
            with os.fdopen(handle, "rb") as file:
                facts = os.fstat(handle)
                if not stat.S_ISREG(facts.st_mode):
                    yield _File(parts, b"", 0.0, ("link_or_unreadable",))
                else:
                    yield _File(parts, file.read(LARGEST_BYTES + 1), facts.st_mtime)


def _files_of_zip(place: Path) -> Iterator[_File]:
    total = 0
    with zipfile.ZipFile(place) as archive:
        for entry in sorted(archive.infolist(), key=lambda item: item.filename):
            parts = tuple(part for part in re.split(r"[/\\]", entry.filename) if part not in ("", ".", ".."))
            if entry.is_dir() or not parts or not _wanted(parts):
                continue
            modified = _zip_time(entry)
            if stat.S_ISLNK(entry.external_attr >> 16):
                yield _File(parts, b"", modified, ("link_or_unreadable",))
                continue
            if entry.file_size > max(LARGEST_BYTES, 1) or entry.file_size > ZIP_RATIO * max(
                entry.compress_size, 1000
            ):
                yield _File(parts, b" " * (LARGEST_BYTES + 1), modified)
                continue
            try:
                with archive.open(entry) as file:
                    data = file.read(LARGEST_BYTES + 1)
            except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError):
                data = b""
            total += len(data)
            if total > ZIP_BYTES:
                raise GradingError(
                    f"{place}: unpacks to more than {ZIP_BYTES / 1e6:g} MB. Unpack it and give the folder."
                )
            yield _File(parts, data, modified)


def _zip_time(entry: zipfile.ZipInfo) -> float:
    import datetime

    try:
        return datetime.datetime(*entry.date_time).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
