"""How long the whole course takes to run: every lesson and every solution, in a fresh kernel each.

    python -m benchmarks.course [--quick]

Copies are run, in a temporary folder: the stored notebooks stay as they are.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Table, digits, main, seconds_of
from utils import notebooks
from utils.grading.notebook import read

ROOT = Path(__file__).resolve().parents[1]
NOTE = """\
Each notebook once, one after the other, from the start of its kernel to its last output: real ranks, pictures, checks."""


def tables(quick: bool = False, paths: Sequence[Path] = ()) -> Iterator[Table]:
    """A row for each notebook, and their sum."""
    paths = paths or sorted(ROOT.glob("lessons/*.ipynb")) + sorted(ROOT.glob("solutions/*.ipynb"))
    rows, total = [], 0.0
    for path in paths[: 1 if quick else None]:
        seconds = seconds_of_notebook(path)
        cells = sum(cell.cell_type == "code" for cell in read(path).cells)
        rows.append((f"{path.parent.name}/{path.name}", cells, f"{digits(seconds)} s", 1))
        total += seconds
    rows.append(("together", sum(row[1] for row in rows), f"{digits(total)} s", 1))
    yield Table("Course: running the notebooks", ("notebook", "code cells", "time", "n"), rows, NOTE)


def seconds_of_notebook(path: Path) -> float:
    """Run a copy of it; raises GradingError if one of its cells fails."""
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        copy = Path(folder) / path.parent.name / path.name
        copy.parent.mkdir()
        shutil.copy(path, copy)
        return seconds_of(lambda: notebooks.execute(copy))


if __name__ == "__main__":
    main(tables, __doc__)
