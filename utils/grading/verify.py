"""Verify answers behind a process wall: this process calls the student's functions with fresh inputs, over plain data.

Nothing of the student's is imported, unpickled or run here.  What to verify is written in
``solutions/verify/NN_name.py``, one function per question::

    def q1(student, random):
        def three_ranks():
            values = random.integers(0, 100, (3, 6)).astype("float32")
            run = student.on_ranks("ring_reduce_scatter", [[row] for row in values])
            assert run.steps == 2, f"a ring of 3 takes 2 steps, yours took {run.steps}"
        return [Case("3 ranks", three_ranks), Case("a length that 3 does not divide", …, hidden=True)]
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import secrets
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from nbformat import NotebookNode

import utils
from utils.grading.grade import SubCheck
from utils.grading.may_call import EVERYTHING
from utils.grading.notebook import is_answer
from utils.grading.sandbox import Sandbox
from utils.grading.student import Server, Student, cells_of
from utils.grading.warm import Warm


@dataclass(frozen=True)
class Case:
    """One thing to verify: ``run`` returns if it is right and raises ``AssertionError`` with a sentence if not."""

    name: str
    run: Callable[[], None]
    hidden: bool = False


CasesOf = Callable[[Student, np.random.Generator], Iterable[Case]]


class Verifier:
    """What an :class:`~utils.grading.grade.Assignment` calls after nbval; :meth:`close` it at the end."""

    def __init__(
        self,
        cases: dict[str, CasesOf],
        root: Path,
        sandbox: Sandbox,
        seed: int | None,
        warm: Warm | None = None,
    ):
        self.seed = secrets.randbits(32) if seed is None else seed
        self._cases, self._root = cases, root
        self._server = Server(root, sandbox, warm)

    def __call__(self, grafted: NotebookNode, passed: Iterable[str]) -> dict[str, list[SubCheck]]:
        """Return the sub-checks of each question in ``passed`` for which there are cases."""
        student = Student(self._server, cells_of(grafted), self._root)
        return {name: self._verify(name, student) for name in passed if name in self._cases}

    def _verify(self, name: str, student: Student) -> list[SubCheck]:
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        results = []
        for case in self._cases[name](student, random):
            try:
                case.run()
            except AssertionError as error:  # StudentError is one, and so is what the lab's checks raise
                results.append(SubCheck(case.name, False, str(error)[:1000], case.hidden))
            except Exception as error:  # noqa: BLE001  a reply of an unexpected shape is the student's fault too
                results.append(
                    SubCheck(
                        case.name,
                        False,
                        f"what came back could not be compared ({type(error).__name__})",
                        case.hidden,
                    )
                )
            else:
                results.append(SubCheck(case.name, True, "", case.hidden))
        return results

    def close(self) -> None:
        """End the processes."""
        self._server.close()


def cases_from_file(path: Path) -> dict[str, CasesOf]:
    """Return the functions in ``solutions/verify/NN_name.py``, by question."""
    spec = importlib.util.spec_from_file_location(f"course_verify_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and re.fullmatch(r"q[a-z0-9]*", name)
    }


def cases_from_checks(module: ModuleType) -> dict[str, CasesOf]:
    """Return cases that run the sub-checks of a lab's own check module behind the wall, with fresh seeds.

    The module has ``QUESTIONS`` (for each question its sub-checks, as in :mod:`utils.checks.verdict`) and ``FUNCTIONS``
    (the names of the student's functions).  ``MAY_CALL``, if there is one, says what each question may call: see
    :mod:`utils.grading.routed_group`.

    Raises ``ValueError`` for a word in ``MAY_CALL`` that is none.
    """
    functions = getattr(module, "FUNCTIONS", None) or getattr(module, "_FUNCTIONS", {})
    may_call = getattr(module, "MAY_CALL", None)
    for question, words in (may_call or {}).items():
        if unknown := set(words) - set(EVERYTHING):
            raise ValueError(
                f"MAY_CALL[{question!r}] has {sorted(unknown)}; the words are {', '.join(EVERYTHING)}."
            )

    def cases_of(question: str) -> CasesOf:
        def cases(student: Student, random: np.random.Generator) -> list[Case]:
            from utils.checks.verdict import once_each

            seed = int(random.integers(1 << 31))
            words = EVERYTHING if may_call is None else tuple(may_call.get(question, ()))
            call = once_each(functools.partial(student.probe, list(functions[question]), may_call=words))
            return [
                Case(sub.name, functools.partial(sub.check, call, seed)) for sub in module.QUESTIONS[question]
            ]

        return cases

    return {
        question: cases_of(question) for question in getattr(module, "QUESTIONS", {}) if question in functions
    }


def checks_of(lab: NotebookNode) -> str:
    """Return the name of the module in ``utils.checks`` that a released lab imports; ``""`` if it imports none.

    Lab 03 is called after its lesson, its checks after their subject: ``from utils.checks import tensor as check``.
    """
    given = "\n".join(cell.source for cell in lab.cells if cell.cell_type == "code" and not is_answer(cell))
    found = re.search(r"^from utils\.checks import (\w+)", given, re.MULTILINE)
    return found[1] if found else ""


def verifier_of(
    lab: NotebookNode, root: Path, sandbox: Sandbox, seed: int | None = None, warm: Warm | None = None
) -> Verifier | None:
    """Return the verifier of a lab, or ``None`` if nothing says how to verify it.

    Cases come from the module of ``utils.checks`` that the lab imports, where it has ``QUESTIONS``, and from
    ``solutions/verify/NN_name.py``, which outranks it question by question.

    Arguments:
        lab: the released lab.
        root: the course's folder.
        sandbox: the walls around the workers.
        seed: for the inputs; by default a new one, so that nobody can know them.
        warm: what forks the workers; by default a process of the verifier's own.
    """
    name = lab.metadata.get("course", {}).get("lab", "")
    cases: dict[str, CasesOf] = {}
    checks = checks_of(lab)
    own = Path(utils.__file__).resolve().parent
    if checks and (root / "utils" / "checks" / f"{checks}.py").exists() and own == (root / "utils").resolve():
        cases |= cases_from_checks(importlib.import_module(f"utils.checks.{checks}"))
    hidden = root / "solutions" / "verify" / f"{name}.py"
    if hidden.exists():
        cases |= cases_from_file(hidden)
    return Verifier(cases, root, sandbox, seed, warm) if cases else None
