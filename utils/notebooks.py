"""The course's own notebooks: run them and keep their outputs, check them, edit them as text.

    python -m utils.notebooks execute lessons/*.ipynb        run in a clean kernel, store the outputs
    python -m utils.notebooks check lessons/*.ipynb          say what breaks the rules
    python -m utils.notebooks bootstrap lessons/*.ipynb      put the first code cell in, or renew it
    python -m utils.notebooks to-text lessons/01_x.ipynb     write lessons/01_x.py with cells marked '# %%'
    python -m utils.notebooks from-text lessons/01_x.py      put the text's cells back into the notebook

The same content always gives the same bytes, so a diff shows what an author changed and nothing else.
"""
from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from nbformat import NotebookNode

from utils.grading.errors import GradingError
from utils.grading.notebook import KERNELSPEC, digest, dumps, read, write

BOOTSTRAP = '''\
# Make `import utils` find the course: in a clone, where the course is installed, or on Colab.
import sys
from pathlib import Path

places = [Path.cwd(), *Path.cwd().parents, *Path("/content").glob("*")]
sys.path[:0] = [str(place) for place in places if (place / "utils" / "ranks").is_dir()][:1]
try:
    import utils.ranks
except ImportError as error:
    found = getattr(sys.modules.get("utils"), "__file__", None) or "not found"
    raise ImportError(f"The course's utils cannot be used ({error}; utils: {found}). Open this notebook in "
                      "a clone of the course with 'make lab', or install the course; restart the kernel.") from None'''

LARGEST_BYTES = 1_500_000
LONGEST_CELL = 45            # lines of a code cell in a lesson
CELL_SECONDS = 300
_KEPT_METADATA = ("tags", "nbgrader", "course", "deletable", "editable", "jupyter")
_MODEL_ID = re.compile(r'"model_id": ?"([0-9a-f]{32})"')


# ---- run and keep -------------------------------------------------------------------------------------------------

def execute(path: Path, cell_seconds: float = CELL_SECONDS) -> bool:
    """Run a notebook in a fresh kernel, in its own folder, and store its outputs; returns whether the file changed.

    Raises GradingError with the cell's error when a cell fails that is not tagged `raises-exception`; the file
    is then left as it was.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    notebook = read(path)
    for cell in _code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory(prefix="notebook-") as settings:
        client = NotebookClient(notebook, kernel_name="python3", timeout=cell_seconds, coalesce_streams=True,
                                resources={"metadata": {"path": str(path.parent.resolve())}})
        try:
            client.execute(env={**os.environ, "IPYTHONDIR": settings})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise GradingError(f"{path}: {error}") from None
    return write(path, dumps(normalise(notebook)))


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Reduce a notebook to what an author wrote and what its cells gave: no times, no editor's settings, fixed ids."""
    from utils.widgets.frame import without_live_views
    without_live_views(notebook)
    course = notebook.metadata.get("course")
    notebook.metadata = NotebookNode({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    if course:
        notebook.metadata["course"] = course
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    used = {}
    for cell in notebook.cells:
        cell.metadata = NotebookNode({key: cell.metadata[key] for key in _KEPT_METADATA if cell.metadata.get(key)})
        name = digest(f"{cell.cell_type}\n{cell.source}", 8)
        used[name] = used.get(name, 0) + 1
        cell.id = name if used[name] == 1 else f"{name}-{used[name]}"
    for cell in _code_cells(notebook):
        for output in cell.outputs:
            output.get("metadata", {}).clear()
            output.pop("transient", None)
    return _with_fixed_model_ids(notebook)


def _with_fixed_model_ids(notebook):
    """Number the random ids of widgets without a static form in the order in which they occur."""
    import nbformat
    text = nbformat.writes(notebook, version=nbformat.NO_CONVERT)
    for number, old in enumerate(dict.fromkeys(_MODEL_ID.findall(text))):
        text = text.replace(old, f"{number:032x}")
    return nbformat.reads(text, as_version=nbformat.NO_CONVERT)


# ---- check --------------------------------------------------------------------------------------------------------

def check(path: Path) -> list[str]:
    """Return a sentence for everything in a notebook that breaks the course's rules.

    In every notebook: the first code cell is the bootstrap cell, nothing is stored on stderr, no error is stored in
    a cell that is not tagged `raises-exception`, the file is small. In lessons and solutions every code cell has
    been run; in labs the check cells have. A lesson's code cells are short.
    """
    notebook, kind = read(path), path.resolve().parent.name
    cells = _code_cells(notebook)
    problems = []
    if not cells or cells[0].source.strip() != BOOTSTRAP:
        problems.append("the first code cell is not the bootstrap cell; copy utils.notebooks.BOOTSTRAP into it")
    if (size := path.stat().st_size) > LARGEST_BYTES:
        problems.append(f"{size / 1e6:.1f} MB, more than {LARGEST_BYTES / 1e6:g} MB; make its figures smaller")
    for number, cell in enumerate(cells, 1):
        problems += [f"code cell {number} ({_first_line(cell)}): {problem}" for problem in _check_cell(cell, kind)]
    return [f"{path}: {problem}" for problem in problems]


def _check_cell(cell, kind):
    tags = cell.metadata.get("tags", [])
    must_have_run = "check" in tags if kind == "labs" else True
    if must_have_run and cell.execution_count is None:
        yield "not run (no execution count), so nbval compares nothing; run 'python -m utils.notebooks execute'"
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            yield f"writes to stderr: {output.text.strip().splitlines()[:1]}"
        if output.output_type == "error" and not {"raises-exception", "nbval-raises-exception"} & set(tags):
            yield f"ends in {output.ename}: {output.evalue}; tag it raises-exception if that is meant"
    if kind == "lessons" and (lines := len(cell.source.splitlines())) > LONGEST_CELL:
        yield f"{lines} lines, more than {LONGEST_CELL}; move code to utils or split the cell"


def _code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _first_line(cell):
    return (cell.source.strip().splitlines() or ["empty"])[0][:50]


def bootstrap(path: Path) -> bool:
    """Make the bootstrap cell the notebook's first code cell; returns whether the file changed.

    A first code cell that sets `sys.path` is replaced; otherwise the cell is put in front of it.
    """
    from nbformat import v4
    notebook = read(path)
    position = next((i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"), len(notebook.cells))
    replaces = position < len(notebook.cells) and "sys.path" in notebook.cells[position].source
    count = notebook.cells[position].execution_count if replaces else None
    notebook.cells[position:position + replaces] = [v4.new_code_cell(BOOTSTRAP, execution_count=count)]
    return write(path, dumps(normalise(notebook)))


# ---- edit as text -------------------------------------------------------------------------------------------------

def to_text(path: Path) -> Path:
    """Write a notebook's cells as a Python file beside it (jupytext's percent format); returns that file."""
    import jupytext
    text = path.with_suffix(".py")
    text.write_text(jupytext.writes(read(path), fmt="py:percent"), encoding="utf-8")
    return text


def from_text(path: Path) -> Path:
    """Put the cells of a Python file into the notebook beside it; a cell whose code did not change keeps its outputs."""
    import jupytext
    notebook_path = path.with_suffix(".ipynb")
    edited = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    if notebook_path.exists():
        before = read(notebook_path)
        edited.metadata = before.metadata
        for cell in _code_cells(edited):
            same = next((old for old in _code_cells(before) if old.source == cell.source), None)
            if same:
                before.cells.remove(same)
                cell.outputs, cell.execution_count = same.outputs, same.execution_count
    write(notebook_path, dumps(normalise(edited)))
    return notebook_path


# ---- command line -------------------------------------------------------------------------------------------------

def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands on files; returns 1 if a notebook fails or breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m utils.notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("execute", "check", "bootstrap", "to-text", "from-text"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--timeout", type=float, default=CELL_SECONDS, help="seconds that one cell may take")
    chosen = parser.parse_args(arguments)
    failed = False
    for path in chosen.files:
        try:
            failed |= _run(chosen.command, path, chosen.timeout)
        except GradingError as error:
            failed = True
            print(error, file=sys.stderr)
    return int(failed)


def _run(command, path, cell_seconds) -> bool:
    """Run one command on one file and print what came of it; returns whether it broke a rule."""
    if command == "check":
        problems = check(path)
        print("\n".join(problems) or f"{path}: ok")
        return bool(problems)
    if command in ("to-text", "from-text"):
        print({"to-text": to_text, "from-text": from_text}[command](path))
        return False
    changed = execute(path, cell_seconds) if command == "execute" else bootstrap(path)
    print(f"{path}: {'changed' if changed else 'unchanged'}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
