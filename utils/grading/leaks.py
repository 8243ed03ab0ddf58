"""Look for lines of a solution in what students receive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbformat import NotebookNode

from utils.grading.markers import find_regions

SHORTEST_SECRET = 12
RUN_OF_LINES = 3
TEXT_SUFFIXES = {".py", ".ipynb", ".md", ".txt", ".toml", ".yml", ".yaml", ".json", ".cfg", ".ini"}


def secret_lines(solution: NotebookNode) -> list[list[str]]:
    """Return, for each region, its lines that nobody sees otherwise: 12 or more characters, shown nowhere outside."""
    regions, shown = [], set()
    for cell in solution.cells:
        found, _ = find_regions(cell.source)
        inside = {number for region in found for number in range(region.first, region.last + 1)}
        lines = cell.source.splitlines()
        shown |= {line.strip() for number, line in enumerate(lines, start=1) if number not in inside}
        regions += [region.body for region in found]
    return [
        [line.strip() for line in body if _size(line) >= SHORTEST_SECRET and line.strip() not in shown]
        for body in regions
    ]


def leaks_in_lab(solution: NotebookNode, text: str, name: str) -> Iterator[str]:
    """Yield a sentence for every secret line that occurs in the ``text`` of a lab file (cells, outputs, metadata)."""
    plain = _unescape(text)
    for line in sorted({line for lines in secret_lines(solution) for line in lines}):
        if line in plain:
            yield f"{name}: shows the solution's line '{line}'. Remove it there, or give it outside the region."


def leaks_in_files(
    solution: NotebookNode, files: Iterable[Path], root: Path, allowed: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a sentence for every file that holds three secret lines of one region in a row.

    A single line can be an idiom (``rank = dist.get_rank()``); three in a row are an answer.  Regions with fewer
    lines count when all of their lines stand together.

    Arguments:
        solution: the solution notebook.
        files: what to search; files that are not text are passed over.
        root: the course's folder, for naming files.
        allowed: names, relative to ``root``, of files in which the course teaches this code openly.
    """
    runs = [run for lines in secret_lines(solution) if len(lines) > 1 for run in _runs(lines)]
    for path in files:
        name = path.relative_to(root).as_posix()
        if path.suffix not in TEXT_SUFFIXES or name in set(allowed):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        text = _unescape(text) if path.suffix == ".ipynb" else text
        stripped = "\n".join(
            line.strip().strip('",') if path.suffix == ".ipynb" else line.strip()
            for line in text.splitlines()
            if _size(line) >= SHORTEST_SECRET
        )
        for run in runs:
            if run in stripped:
                first = run.splitlines()[0]
                yield (
                    f"{name}: holds a piece of the solution, from the line '{first}' on. Remove it, or list the "
                    "file in the solution's metadata as course.taught_in if the course shows it openly."
                )
                break


def _runs(lines: list[str]) -> Iterator[str]:
    width = min(RUN_OF_LINES, len(lines))
    return ("\n".join(lines[start : start + width]) for start in range(len(lines) - width + 1))


def _size(line: str) -> int:
    return len(re.sub(r"\s", "", line))


def _unescape(text: str) -> str:
    """Return the text of a JSON file with the escapes of its strings undone."""
    return (
        text.replace("\\\\", "\0")
        .replace('\\"', '"')
        .replace("\\n", "\n")
        .replace("\\t", "\t")
        .replace("\0", "\\")
    )
