"""Prove that a lab's checks can tell right from wrong before any student meets them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from utils.grading.errors import GradingError
from utils.grading.kernel import CellRun, Session, session
from utils.grading.notebook import anchor, grade_id, is_answer, is_check, read
from utils.grading.questions import Question, question_of, questions
from utils.grading.reach import bound_names, only_defines, reaches
from utils.grading.release import lab_notebook


@dataclass(frozen=True)
class Mutant:
    """A known wrong answer: the answer cell it replaces, its code, and a piece of the message it must get."""

    path: Path
    answer: str
    message: str
    code: str

    @property
    def source(self) -> str:
        """The text of the answer cell."""
        return f"{anchor(self.answer)}\n{self.code}"


@dataclass(frozen=True)
class SelfCheck:
    """What :func:`self_check` found: ``problems`` is empty when the lab can be trusted."""

    questions: int
    mutants: int
    problems: tuple[str, ...]


def read_mutant(path: Path) -> Mutant:
    """Return the mutant in ``<question>_<what>.py``.

    Its docstring's first line is a piece of the message that the check must give.
    Raises ``GradingError`` if the file has no such line or no code.
    """
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise GradingError(
            f"{path.name}, line {error.lineno}: {error.msg}. A mutant is wrong, but it is valid Python."
        ) from None
    docstring = ast.get_docstring(tree)
    if not docstring or len(tree.body) < 2:
        raise GradingError(
            f"{path.name}: a mutant is a docstring, whose first line is a piece of the message that its "
            "check must give, followed by the code of the answer cell."
        )
    code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip("\n") + "\n"
    return Mutant(path, f"{path.stem.split('_')[0]}-answer", docstring.splitlines()[0].strip(), code)


def mutants_of(solution_path: Path) -> list[Mutant]:
    """Return the mutants of a solution, from ``mutants/<its name>/*.py`` beside it."""
    return [
        read_mutant(path)
        for path in sorted((solution_path.parent / "mutants" / solution_path.stem).glob("*.py"))
    ]


def self_check(solution_path: str | Path, *, root: str | Path | None = None) -> SelfCheck:
    """Run the blank lab, the solution and every mutant, and return what does not behave.

    * Blank lab: every check must fail.
    * Solution: every check must pass.
    * Mutant of a question: that question's check must fail with the mutant's message, and every check that does not
      name the changed answer in its ``answers`` must still pass.  Every question needs at least one mutant.

    Arguments:
        solution_path: ``solutions/NN_name.ipynb``.
        root: the course's folder; by default the parent of ``solutions/``.

    Raises ``GradingError`` if a notebook or a mutant cannot be read.
    """
    solution_path = Path(solution_path).resolve()
    root = Path(root) if root else solution_path.parent.parent
    solution, mutants = read(solution_path), mutants_of(solution_path)
    asked = questions(solution)
    blank = lab_notebook(solution, {question.check: "" for question in asked}, solution_path.stem)
    problems = [
        *_missing(asked, mutants),
        *_blank_problems(blank, root),
        *_solved_problems(solution, mutants, asked, root),
    ]
    return SelfCheck(len(asked), len(mutants), tuple(problems))


def _missing(asked: tuple[Question, ...], mutants: list[Mutant]) -> list[str]:
    tried, known = (
        {mutant.answer for mutant in mutants},
        {answer for question in asked for answer in question.answers},
    )
    problems = [
        f"{mutant.path.name}: no check looks at '{mutant.answer}'. Name the file <question>_<what>.py, with one "
        f"of {', '.join(sorted(name.removesuffix('-answer') for name in known))}."
        for mutant in mutants
        if mutant.answer not in known
    ]
    return problems + [
        f"{question.name}: no mutant. Add solutions/mutants/…/{question.name}_<what>.py with a classical "
        "mistake."
        for question in asked
        if not tried & set(question.answers)
    ]


def checks_to_run(mutant: Mutant, solution: NotebookNode) -> list[NotebookNode]:
    """Return the check cells that a mutant is tried on: its own, and others whose outcome it could change unasked.

    A check that names the answer may fail; one that does not name it and cannot reach it by any name is not run.
    """
    cells = {
        cell.id: cell.source for cell in solution.cells if cell.cell_type == "code" and not is_check(cell)
    }
    original = next(cell.source for cell in solution.cells if grade_id(cell) == mutant.answer)
    names = bound_names(mutant.code) | bound_names(original)
    chosen = []
    for cell in solution.cells:
        if is_check(cell):
            question = question_of(cell)
            own = question.name == mutant.answer.removesuffix("-answer")
            unasked = mutant.answer not in question.answers
            quiet = only_defines(mutant.code) and not reaches(names, cell.source, cells.values())
            if own or (unasked and not quiet):
                chosen.append(cell)
    return chosen or [cell for cell in solution.cells if is_check(cell)]


def _run_checks(kernel: Session, cells: list[NotebookNode]) -> dict[str, CellRun]:
    return {
        grade_id(cell): kernel.run(cell.source, question_of(cell).timeout_seconds)
        for cell in cells
        if kernel.alive
    }


def _run_all(kernel: Session, notebook: NotebookNode) -> dict[str, CellRun]:
    runs = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and kernel.alive:
            limit = question_of(cell).timeout_seconds if is_check(cell) else 600.0
            run = kernel.run(cell.source, limit)
            if is_check(cell):
                runs[grade_id(cell)] = run
    return runs


def _blank_problems(blank: NotebookNode, root: Path) -> list[str]:
    with session(root) as kernel:
        runs = _run_all(kernel, blank)
    problems = []
    for question in questions(blank):
        run = runs.get(question.check)
        if run is None:
            problems.append(f"{question.name}: the blank lab ended the kernel before this check ran.")
        elif run.error is None:
            problems.append(
                f"{question.name}: the check passes on the blank lab ({run.stdout.strip()!r}). It must raise."
            )
    return problems


def _solved_problems(
    solution: NotebookNode, mutants: list[Mutant], asked: tuple[Question, ...], root: Path
) -> list[str]:
    answers = {grade_id(cell): cell.source for cell in solution.cells if is_answer(cell)}
    waiting, problems = [mutant for mutant in mutants if mutant.answer in answers], []
    first = True
    while first or waiting:  # one kernel serves all mutants unless one of them ends it
        with session(root) as kernel:
            runs = _run_all(kernel, solution)
            failed = [
                question for question in asked if question.check not in runs or runs[question.check].error
            ]
            if failed:
                return problems + [
                    f"{question.name}: the solution itself fails: "
                    f"{runs[question.check].error if question.check in runs else 'the kernel ended'}."
                    for question in failed
                ]
            first = False
            while waiting and kernel.alive:
                mutant = waiting.pop(0)
                defined = kernel.run(mutant.source)
                runs = _run_checks(kernel, checks_to_run(mutant, solution))
                problems += _mutant_problems(mutant, defined, runs, asked)
                for source in answers.values():  # the right answers again, for the next mutant
                    if kernel.alive:
                        kernel.run(source)
    return problems


def _mutant_problems(
    mutant: Mutant, defined: CellRun, runs: dict[str, CellRun], asked: tuple[Question, ...]
) -> list[str]:
    name, problems = mutant.path.name, []
    if defined.error:
        return [f"{name}: the code itself raises {defined.error}. A mutant is wrong only when it is checked."]
    own = mutant.answer.removesuffix("-answer")
    judges = [q for q in asked if q.name == own] or [q for q in asked if mutant.answer in q.answers]
    for question in judges[:1]:
        run = runs.get(question.check)
        if run is None or run.error is None:
            problems.append(
                f"{name}: {question.name} passes with this wrong answer. Its check must tell the difference."
            )
        elif mutant.message not in f"{run.error}\n{run.stdout}":
            problems.append(
                f"{name}: {question.name} fails, but its message is {run.error!r} and does not hold "
                f"{mutant.message!r}."
            )
    for question in asked:
        run = runs.get(question.check)
        if mutant.answer not in question.answers and run is not None and run.error:
            problems.append(
                f"{name}: {question.name} fails too ({run.error!r}), though it does not name '{mutant.answer}' "
                "in its 'answers'. Make its check independent, or name the answer there."
            )
    return problems
