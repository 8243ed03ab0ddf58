"""Read what a student handed in: only the text of cells, and never an exception."""

from __future__ import annotations

import json
from dataclasses import dataclass

LARGEST_BYTES, MOST_CELLS = 20_000_000, 5_000


@dataclass(frozen=True)
class Cell:
    """The text of one cell and the names that it carries (``""`` where it has none)."""

    kind: str
    source: str
    grade_id: str = ""
    id: str = ""


@dataclass(frozen=True)
class Submission:
    """The cells of a notebook, and ``problem``: ``(status, sentence)`` if it cannot be read."""

    cells: tuple[Cell, ...] = ()
    lab: str = ""
    lab_version: str = ""
    problem: tuple[str, str] | None = None


def parse(data: bytes) -> Submission:
    """Return the submission in the bytes of a file.

    Every input gives a result.  Outputs, attachments, unknown fields and all metadata except names are left behind;
    a notebook of format 3 or one with missing fields is read as far as it goes.
    """
    if len(data) > LARGEST_BYTES:
        return _unreadable(
            f"The file has {len(data) / 1e6:.1f} MB; the limit is {LARGEST_BYTES / 1e6:.0f} MB. "
            "Clear the outputs (Edit, Clear Outputs of All Cells) and save again.",
            "too_large",
        )
    if not data.strip():
        return _unreadable("The file is empty. Save the notebook again and hand it in again.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _unreadable(
            "The file is not UTF-8 text, as notebooks are. Open it in JupyterLab and save it again."
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        return _unreadable(
            f"The file is not valid JSON ({type(error).__name__}), so it is cut off or not a notebook. "
            "Save the notebook again and hand in the .ipynb file itself."
        )
    return _notebook(content)


def _notebook(content: object) -> Submission:
    if not isinstance(content, dict):
        return _unreadable("The file is JSON but not a notebook.")
    version, cells = content.get("nbformat", 4), content.get("cells")
    if version == 3 or (cells is None and isinstance(content.get("worksheets"), list)):
        cells = [
            cell
            for sheet in _list(content.get("worksheets"))
            if isinstance(sheet, dict)
            for cell in _list(sheet.get("cells"))
        ]
    elif version != 4:
        return _unreadable(
            f"The notebook has format {str(version)[:20]}; formats 3 and 4 can be read. "
            "Open it in JupyterLab and save it again."
        )
    if not isinstance(cells, list) or not cells:
        return _unreadable("The notebook has no cells. Hand in the notebook that you worked in.")
    if len(cells) > MOST_CELLS:
        return _unreadable(
            f"The notebook has {len(cells)} cells; the limit is {MOST_CELLS}. Delete those that are not yours.",
            "too_large",
        )
    course = _dict(_dict(content.get("metadata")).get("course"))
    return Submission(
        tuple(_cell(cell) for cell in cells if isinstance(cell, dict)),
        _text(course.get("lab")),
        _text(course.get("lab_version")),
    )


def _cell(cell: dict) -> Cell:
    source = cell.get("source", cell.get("input", ""))  # "input" is format 3's name
    if isinstance(source, list):
        source = "".join(piece for piece in source if isinstance(piece, str))
    names = _dict(_dict(cell.get("metadata")).get("nbgrader"))
    return Cell(
        _text(cell.get("cell_type")) or "code",
        _text(source).replace("\r\n", "\n").replace("\r", "\n"),
        _text(names.get("grade_id")),
        _text(cell.get("id")),
    )


def _text(value: object) -> str:
    """Return ``value`` if it is text, without the lone surrogates that JSON allows and UTF-8 does not."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _unreadable(sentence: str, status: str = "unreadable") -> Submission:
    return Submission(problem=(status, sentence))
