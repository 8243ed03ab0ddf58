"""Find and replace the regions between ``### BEGIN …`` and ``### END …`` lines of a cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

SOLUTION, HIDDEN = "SOLUTION", "HIDDEN TESTS"
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"

_MARKER = re.compile(r"^(?P<indent>[ \t]*)### (?P<edge>BEGIN|END) (?P<kind>SOLUTION|HIDDEN TESTS)[ \t]*$")
_OTTER = re.compile(r"^(?P<indent>[ \t]*)# ?(?P<edge>BEGIN|END) (?P<kind>SOLUTION)[ \t]*$")
_LOOKS_LIKE = re.compile(r"#+\s*(BEGIN|END)[ _-]*(SOLUTIONS?|HIDDEN[ _-]*TESTS?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Region:
    """Lines ``first`` to ``last`` of a cell, the two marker lines included, counted from 1."""

    kind: str
    first: int
    last: int
    indent: str
    body: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A sentence about one line of a cell; ``fatal`` ones stop the release."""

    line: int
    sentence: str
    fatal: bool = True


def find_regions(source: str) -> tuple[list[Region], list[Remark]]:
    """Return the regions of a cell and what is wrong with its markers.

    >>> regions, remarks = find_regions("### BEGIN SOLUTION\\nx = 1\\n### END SOLUTION")
    >>> regions[0].body, remarks
    (('x = 1',), [])
    >>> find_regions("### END SOLUTION")[1][0].sentence
    "'### END SOLUTION' has no '### BEGIN SOLUTION' above it. Add one or remove this line."
    """
    regions: list[Region] = []
    remarks: list[Remark] = []
    opened: tuple[str, int, str] | None = None  # kind, line, indent
    lines = source.splitlines()
    for number, line in enumerate(lines, start=1):
        match = _MARKER.match(line)
        if match is None and (match := _OTTER.match(line)):
            right = f"### {match['edge']} {match['kind']}"
            remarks.append(
                Remark(number, f"'{line.strip()}' is read as '{right}'; write it with '###'.", fatal=False)
            )
        if match is None:
            if _LOOKS_LIKE.search(line):
                remarks.append(
                    Remark(
                        number,
                        f"'{line.strip()}' is not a marker, but looks like one. A marker is a "
                        "line of its own: '### BEGIN SOLUTION', '### END SOLUTION', "
                        "'### BEGIN HIDDEN TESTS' or '### END HIDDEN TESTS'.",
                    )
                )
            continue
        kind = match["kind"]
        if match["edge"] == "BEGIN":
            if opened:
                remarks.append(
                    Remark(
                        number,
                        f"'### BEGIN {kind}' stands inside the region '{opened[0]}' that line "
                        f"{opened[1]} opened. Close that one first: regions do not nest.",
                    )
                )
            opened = (kind, number, match["indent"])
        elif opened is None:
            remarks.append(
                Remark(
                    number,
                    f"'### END {kind}' has no '### BEGIN {kind}' above it. Add one or remove this line.",
                )
            )
        else:
            begin_kind, first, indent = opened
            body = tuple(lines[first : number - 1])
            if begin_kind != kind:
                remarks.append(
                    Remark(
                        number,
                        f"'### END {kind}' closes a region that line {first} opened as "
                        f"'{begin_kind}'. Make the two lines agree.",
                    )
                )
            elif indent != match["indent"]:
                remarks.append(
                    Remark(
                        number,
                        f"'### END {kind}' is indented by {len(match['indent'])} characters, "
                        f"its BEGIN (line {first}) by {len(indent)}. Indent both alike.",
                    )
                )
            elif not any(text.strip() for text in body):
                remarks.append(
                    Remark(first, f"the region '{kind}' is empty. Put the code between its two lines.")
                )
            regions.append(Region(begin_kind, first, number, indent, body))
            opened = None
    if opened:
        remarks.append(
            Remark(opened[1], f"'### BEGIN {opened[0]}' is never closed. Add '### END {opened[0]}'.")
        )
    return regions, remarks


def replace_regions(source: str, regions: list[Region], replacement: Callable[[int, Region], str]) -> str:
    """Return ``source`` with each region replaced.

    Arguments:
        source: the text of a cell.
        regions: what :func:`find_regions` found in it.
        replacement: from a region and its number (from 0) to the new text, which is indented like the marker; an
            empty text removes the region's lines.
    """
    lines = source.splitlines()
    for number, region in reversed(list(enumerate(regions))):
        text = replacement(number, region)
        lines[region.first - 1 : region.last] = [
            region.indent + line if line else "" for line in text.splitlines()
        ]
    return "\n".join(lines)
