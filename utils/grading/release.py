"""Make the lab that students receive from the solution, and see that the two stay in step."""

from __future__ import annotations

import copy
import difflib
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

from utils.grading.errors import ReleaseError
from utils.grading.kernel import CellRun, session
from utils.grading.leaks import leaks_in_files, leaks_in_lab
from utils.grading.lint import lint, lint_output, place
from utils.grading.markers import HIDDEN, STUB, find_regions, replace_regions
from utils.grading.notebook import (
    KERNELSPEC,
    digest,
    dumps,
    grade_id,
    is_answer,
    is_check,
    plain,
    read,
    text_of,
    write,
)
from utils.grading.questions import question_of

SHIPPED = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "Makefile",
    "environment.yml",
    "pyproject.toml",
    "constraints.txt",
    "lessons",
    "labs",
    "utils",
)


@dataclass(frozen=True)
class Released:
    """A lab that was made: where it belongs, its text, whether the file changed, and remarks for the author."""

    path: Path
    text: str
    changed: bool
    warnings: tuple[str, ...]


def release(
    solution_path: str | Path,
    lab_path: str | Path | None = None,
    *,
    root: str | Path | None = None,
    execute: bool = True,
) -> Released:
    """Write the lab of a solution.

    Arguments:
        solution_path: ``solutions/NN_name.ipynb``.
        lab_path: where to write; by default ``labs/`` beside ``solutions/``, under the same name.
        root: the course's folder, which holds ``utils``; by default the parent of ``solutions/``.
        execute: run the solution twice in fresh kernels to get the check cells' outputs; otherwise take the outputs
            stored in the solution.

    Raises ``ReleaseError``, with every reason, if the solution breaks a rule, fails, or would leak.
    """
    released = build(solution_path, lab_path, root=root, execute=execute)
    changed = write(released.path, released.text)
    return Released(released.path, released.text, changed, released.warnings)


def check_release(
    solution_path: str | Path,
    lab_path: str | Path | None = None,
    *,
    root: str | Path | None = None,
    execute: bool = True,
) -> str:
    """Return how the lab on disk differs from what its solution gives, as a unified diff; ``""`` if not at all.

    Arguments and errors are those of :func:`release`; nothing is written.
    """
    released = build(solution_path, lab_path, root=root, execute=execute)
    present = released.path.read_bytes() if released.path.exists() else b""
    if present == released.text.encode("utf-8"):
        return ""
    lines = difflib.unified_diff(
        present.decode("utf-8", "replace").splitlines(),
        released.text.splitlines(),
        f"{released.path.name} on disk",
        f"{released.path.name} from the solution",
        lineterm="",
    )
    return "\n".join(lines) or f"{released.path.name}: only line endings or bytes outside UTF-8 differ."


def build(
    solution_path: str | Path,
    lab_path: str | Path | None = None,
    *,
    root: str | Path | None = None,
    execute: bool = True,
) -> Released:
    """Return the lab of a solution without writing it; arguments and errors are those of :func:`release`."""
    solution_path = Path(solution_path).resolve()
    root = Path(root).resolve() if root else solution_path.parent.parent
    lab_path = Path(lab_path) if lab_path else root / "labs" / solution_path.name
    name = _name(solution_path, root)

    solution = read(solution_path)
    errors, warnings = lint(solution, name)
    if errors:
        raise ReleaseError(errors)
    outputs = _run_twice(solution, root, name) if execute else _stored_outputs(solution, name)
    text = dumps(lab_notebook(solution, outputs, solution_path.stem))

    leaks = [*leaks_in_lab(solution, text, _name(lab_path, root))]
    for copied in sorted((lab_path.parent / ".ipynb_checkpoints").glob("*.ipynb")):
        leaks += leaks_in_lab(solution, copied.read_text("utf-8", "replace"), _name(copied, root))
    allowed = solution.metadata.get("course", {}).get("taught_in", [])
    support = [path for path in shipped_files(root) if "utils" in path.relative_to(root).parts[:1]]
    leaks += leaks_in_files(solution, support, root, allowed)
    if leaks:
        raise ReleaseError(leaks)
    return Released(lab_path, text, False, tuple(warnings))


def lab_notebook(solution: NotebookNode, outputs: dict[str, str], stem: str) -> NotebookNode:
    """Return the lab of a solution that passed :func:`lint`.

    Arguments:
        solution: the solution notebook; it is left as it is.
        outputs: what each check cell prints, by ``grade_id``.
        stem: the lab's name, such as ``"01_all_reduce"``.
    """
    cells, count = [], 0
    for position, cell in enumerate(copy.deepcopy(solution.cells)):
        cell.source = cell.source.replace("\r\n", "\n").replace("\r", "\n")
        if is_answer(cell):
            cell = _answer_cell(cell)
        elif is_check(cell):
            count += 1
            cell = _check_cell(cell, outputs[grade_id(cell)], count)
        elif cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cell.metadata = _kept(cell.metadata)
        cell.id = grade_id(cell) or digest(f"{position}\n{cell.cell_type}\n{cell.source}")
        cells.append(cell)
    course = {**solution.metadata.get("course", {}), "lab": stem}
    course.pop("taught_in", None)
    lab = v4.new_notebook(
        cells=cells,
        metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}, "course": course},
    )
    lab.nbformat_minor = 5
    lab.metadata.course["lab_version"] = digest(dumps(lab))
    nbformat.validate(lab)
    return lab


def shipped_files(root: Path) -> list[Path]:
    """Return the files that students receive, sorted: no solutions, tests, caches or hidden files."""
    files = [
        path
        for name in SHIPPED
        for path in ([root / name] if (root / name).is_file() else (root / name).rglob("*"))
    ]
    return sorted(
        path
        for path in files
        if path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts)
    )


def _answer_cell(cell: NotebookNode) -> NotebookNode:
    regions, _ = find_regions(cell.source)
    stubs = cell.metadata.get("course", {}).pop("stub", STUB)
    cell.source = replace_regions(
        cell.source, regions, lambda n, _: stubs if isinstance(stubs, str) else stubs[n]
    )
    cell.outputs, cell.execution_count = [], None
    cell.metadata["nbgrader"] = _nbgrader(cell, grade=False, solution=True, locked=False)
    cell.metadata["tags"] = _tags(cell, "answer", "nbval-ignore-output")
    cell.metadata["course"] = {**cell.metadata.get("course", {}), "blank": digest(plain(cell.source))}
    cell.metadata["deletable"] = False
    return cell


def _check_cell(cell: NotebookNode, printed: str, count: int) -> NotebookNode:
    question = question_of(cell)
    regions, _ = find_regions(cell.source)
    visible = replace_regions(
        cell.source, regions, lambda _n, region: "" if region.kind == HIDDEN else "\n".join(region.body)
    )
    cell.source = visible.strip("\n")
    cell.outputs, cell.execution_count = [v4.new_output("stream", name="stdout", text=printed)], count
    cell.metadata["nbgrader"] = _nbgrader(
        cell, grade=True, solution=False, locked=True, points=question.points
    )
    cell.metadata["tags"] = _tags(cell, "check", "nbval-check-output")
    cell.metadata["course"] = {
        "question": question.name,
        "answers": list(question.answers),
        "timeout": question.timeout_seconds,
        "ranks": question.ranks,
        **({"hint": question.hint} if question.hint else {}),
    }
    cell.metadata["deletable"] = cell.metadata["editable"] = False
    return cell


def _nbgrader(cell: NotebookNode, **fields) -> dict:
    return {"schema_version": 3, "grade_id": grade_id(cell), "task": False, **fields}


def _tags(cell: NotebookNode, *first: str) -> list[str]:
    dropped = {
        "nbval-skip",
        "nbval-ignore-output",
        "nbval-check-output",
        "raises-exception",
        "nbval-raises-exception",
    }
    return sorted({*first, *(set(cell.metadata.get("tags", [])) - dropped)})


def _kept(metadata: NotebookNode) -> dict:
    kept = {
        key: metadata[key]
        for key in ("nbgrader", "tags", "course", "deletable", "editable")
        if metadata.get(key) is not None
    }
    if metadata.get("jupyter", {}).get("source_hidden"):
        kept["jupyter"] = {"source_hidden": True}
    return kept


def _run_twice(solution: NotebookNode, root: Path, name: str) -> dict[str, str]:
    first, second = (_run(solution, root, name) for _ in range(2))
    different = [
        f"{name}: check '{key}' printed {first[key]!r} and then {second[key]!r}. Print the same line every time."
        for key in first
        if first[key] != second[key]
    ]
    if different:
        raise ReleaseError(different)
    return first


def _run(solution: NotebookNode, root: Path, name: str) -> dict[str, str]:
    printed, problems = {}, []
    with session(root) as kernel:
        for number, cell in enumerate(solution.cells, start=1):
            if cell.cell_type != "code":
                continue
            where = place(name, number, cell)
            limit = question_of(cell).timeout_seconds if is_check(cell) else 600.0
            run = kernel.run(cell.source, limit)
            if run.error and "raises-exception" not in cell.metadata.get("tags", []):
                raise ReleaseError(
                    [f"{where}: the solution fails here with {run.error}\n{run.traceback}".rstrip()]
                )
            if is_check(cell):
                problems += [f"{where}: {remark}" for remark in lint_output(run, question_of(cell).name)]
                printed[grade_id(cell)] = run.stdout
    if problems:
        raise ReleaseError(problems)
    return printed


def _stored_outputs(solution: NotebookNode, name: str) -> dict[str, str]:
    printed, problems = {}, []
    for number, cell in enumerate(solution.cells, start=1):
        if is_check(cell):
            kinds = tuple(out.get("name", out.output_type) for out in cell.outputs)
            run = CellRun(
                text_of(cell.outputs, "stdout"), text_of(cell.outputs, "stderr"), kinds, None, "", 0.0
            )
            problems += [
                f"{place(name, number, cell)}: {remark}"
                for remark in lint_output(run, question_of(cell).name)
            ]
            printed[grade_id(cell)] = run.stdout
    if problems:
        raise ReleaseError(problems)
    return printed


def _name(path: Path, root: Path) -> str:
    path = path.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
