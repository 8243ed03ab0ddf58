"""Read notebooks and write them so that the same content is always the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import warnings
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from utils.grading.errors import GradingError

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
ANCHOR = "# === {name}: answer (keep this line) ==="
_ANCHOR_LINE = re.compile(r"^\s*# === (?P<name>[a-z][a-z0-9]*): answer\b.*===\s*$")


def read(path: str | Path) -> NotebookNode:
    """Return the notebook in the file ``path``, upgraded to the current format.

    Raises ``GradingError`` if the file is missing or is not a notebook.
    """
    path = Path(path)
    try:
        with warnings.catch_warnings():  # a missing cell id is no concern here: ids are derived on writing
            warnings.simplefilter("ignore")
            return nbformat.reads(path.read_text(encoding="utf-8-sig"), as_version=4)
    except FileNotFoundError:
        raise GradingError(f"{path}: there is no such file. Give the path of a notebook (.ipynb).") from None
    except Exception as error:  # noqa: BLE001  whatever a file makes nbformat raise, the author gets a sentence
        raise GradingError(
            f"{path}: this is not a notebook that can be read ({type(error).__name__}: {str(error)[:200]}). "
            "Open it in JupyterLab and save it again."
        ) from None


def dumps(notebook: NotebookNode) -> str:
    """Return the notebook as text: sorted keys, line feeds only, one newline at the end."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).replace("\r\n", "\n").rstrip("\n") + "\n"


def write(path: str | Path, text: str) -> bool:
    """Write ``text`` to ``path`` in one step; return whether the file changed.

    A reader sees the old file or the new one, never half of it.  Halves of characters, which a student's program can
    print and UTF-8 cannot hold, become question marks.
    """
    path, data = Path(path), text.encode("utf-8", "replace")
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


def digest(text: str, length: int = 12) -> str:
    """Return the first ``length`` hexadecimal digits of the SHA-256 of ``text``, which may hold what UTF-8 cannot."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def grade_id(cell: NotebookNode) -> str | None:
    """Return the cell's nbgrader ``grade_id``, or ``None`` if it has none."""
    meta = cell.metadata.get("nbgrader")
    name = meta.get("grade_id") if isinstance(meta, dict) else None
    return name if isinstance(name, str) and name else None


def is_answer(cell: NotebookNode) -> bool:
    """Return whether this is a cell that a student fills in."""
    return grade_id(cell) is not None and cell.metadata.nbgrader.get("solution") is True


def is_check(cell: NotebookNode) -> bool:
    """Return whether this is a cell that earns points."""
    return grade_id(cell) is not None and cell.metadata.nbgrader.get("grade") is True and not is_answer(cell)


def anchor(answer_id: str) -> str:
    """Return the line that opens the answer cell ``answer_id``: it finds the cell when an editor loses its metadata.

    >>> anchor("q1-answer")
    '# === q1: answer (keep this line) ==='
    """
    return ANCHOR.format(name=answer_id.removesuffix("-answer"))


def anchored_id(source: str) -> str | None:
    """Return the ``grade_id`` that the anchor in a cell's first two code lines names, or ``None``.

    The second line is looked at because a cell magic (``%%writefile``) has to come first.

    >>> anchored_id("# === q1: answer (keep this line) ===\\nx = 1")
    'q1-answer'
    """
    for line in [line for line in source.splitlines() if line.strip()][:2]:
        if match := _ANCHOR_LINE.match(line):
            return f"{match['name']}-answer"
    return None


def plain(source: str) -> str:
    """Return the text of a cell without what does not count when two are compared: blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


def text_of(outputs: list, stream: str) -> str:
    """Return what a cell's ``outputs`` hold for one stream (``"stdout"`` or ``"stderr"``)."""
    return "".join(out.text for out in outputs if out.output_type == "stream" and out.name == stream)
