"""The README's table of figures, taken from benchmarks/RESULTS.md.

    python -m benchmarks.summary        writes it anew; `make bench` does so too
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS, README = ROOT / "benchmarks" / "RESULTS.md", ROOT / "README.md"
BEGIN, END = "<!-- benchmarks:begin -->\n", "<!-- benchmarks:end -->\n"

LAUNCH, RANKS = "Launch: cold and warm", (2, 4, 8)
ROWS = [  # what stands in the README; the title of a table; how its rows begin; which of its columns
    ("first launch of a notebook, right after its first cell", "Launch: the first one in a notebook", ["0 s"], 2),
    ("the same, when the reader took two seconds", "Launch: the first one in a notebook", ["2 s"], 2),
    ("every later launch of 2, 4, 8 ranks", LAUNCH, [f"{n}, `launch`" for n in RANKS], 3),
    ("`torch.multiprocessing.spawn` of as many, times as long", LAUNCH,
     [f"{n}, `torch.multiprocessing.spawn`" for n in RANKS], 4),
    ("a call in `ipyparallel`'s processes, which live on, times as long", LAUNCH, [f"{n}, `ipyparallel`" for n in RANKS], 4),
    ("memory that each of 4 ranks holds alone (MB)", "Launch: memory that each rank holds alone", ["4"], 1),
    ("recording a 1 MiB all-reduce on 2, 4 ranks, times as long as without", "Recorder: what it costs",
     [f"1 MiB all-reduce, {n} ranks" for n in (2, 4)], 3),
    ("lesson 01's ring on 64 MB and 2, 4 ranks, times as long as gloo's all-reduce", "All-reduce: by hand and gloo's",
     [f"{n} ranks, 64 MB, ring" for n in (2, 4)], 2),
    ("answer of a slider in lessons 01, 04, 05", "Widgets: a control moves",
     ["ring_steps, N = 4", "explore_schedules, m", "plan_layouts, GPUs, new plans"], 1),
    ("all lessons and solutions, run one after the other", "Course: running the notebooks", ["together"], 2),
    ("from an empty folder to lesson 00's first picture", "First picture: from an empty folder", ["first picture"], 2),
    ("`course grade` of 6 submissions; `nbgrader autograde` of the same", "Grading: 6 submissions of lab 01_all_reduce",
     ["`course grade", "`nbgrader"], 1),
]


def cells(results: str) -> dict[tuple[str, str], list[str]]:
    """{(title, first cell): all cells of the row} of every table in a text like RESULTS.md."""
    found, title = {}, ""
    for line in results.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        elif line.startswith("| "):
            row = [cell.strip() for cell in line.strip("|").split("|")]
            found[title, row[0]] = row
    return found


def table(results: str) -> str:
    """The README's table, in Markdown: medians without their quartiles."""
    found = cells(results)

    def figure(title, begin, column):
        """A machine may lack a browser or a peer: then there is no such row."""
        rows = (row for (of, first), row in found.items() if of == title and first.startswith(begin))
        return next((re.sub(r" \(.*", "", row[column]) for row in rows), "not measured")

    lines = ["| what | figure |", "|---|---|"]
    for what, title, begins, column in ROWS:
        lines.append(f"| {what} | {', '.join(figure(title, begin, column) for begin in begins)} |")
    return "\n".join(lines) + "\n"


def with_table(readme: str, results: str) -> str:
    """The README's text with the figures of `results`."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(results) + END + rest.split(END)[1]


def main() -> None:
    """Write the figures into the README."""
    README.write_text(with_table(README.read_text("utf-8"), RESULTS.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
