"""Submissions to the tiny lab, each named by what it must get: honest ones, mistakes, broken files, runaways, attacks.

Every case is ``name: (bytes, expectation)``; an expectation is ``(status, q1, q2, flags)`` with the points of the two
questions (3 and 2) and the flags that must be there.
"""

from __future__ import annotations

import copy
import json

from nbformat import v4

from .test_graft import SOLVED, answering, cell_of, new_ids, strip_metadata, submitted

ANCHOR = "# === q1: answer (keep this line) ===\n"
WRONG = "def add(left, right):\n    return 0\n"
RIGHT = "def add(left, right):\n    return left + right\n"
INDEPENDENT_DOUBLE = "# === q2: answer (keep this line) ===\ndef double(number):\n    return 2 * number\n"


def answers(
    add: str | None = RIGHT, double: str | None = INDEPENDENT_DOUBLE, change=lambda notebook: None
) -> bytes:
    """Return a submission with the code ``add`` for q1 and ``double`` for q2."""

    def edit(notebook):
        if add is not None:
            answering("q1-answer", add if add.startswith("# ===") else ANCHOR + add)(notebook)
        if double is not None:
            answering("q2-answer", double)(notebook)
        change(notebook)

    return submitted(edit)


def _moved(notebook):
    notebook.cells.append(notebook.cells.pop(notebook.cells.index(cell_of(notebook, "q1-check"))))


def _deleted(notebook):
    notebook.cells.remove(cell_of(notebook, "q1-check"))


def _twice(notebook):
    notebook.cells.append(copy.deepcopy(cell_of(notebook, "q1-check")))
    notebook.cells[-1].id = "again"


def _run(notebook):
    """Saved after running: the student's own output is stored where the lab's was."""
    cell_of(notebook, "q1-check").outputs = [v4.new_output("stream", text="q1: 0/3 checks passed\n")]


def _cleared(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def _check_is_text(notebook):
    cell = cell_of(notebook, "q1-check")
    notebook.cells[notebook.cells.index(cell)] = v4.new_markdown_cell(
        cell.source, id=cell.id, metadata=cell.metadata
    )


def _helper(notebook):
    notebook.cells.insert(
        3, v4.new_code_cell("import operator\ndef helper(a, b):\n    return operator.add(a, b)")
    )


def _check_named_as_answer(notebook):
    """The check cell carries the answer's name: it is taken as a second part of the answer."""
    cell = cell_of(notebook, "q1-check")
    cell.metadata.nbgrader.grade_id, cell.source = "q1-answer", "print('q1: 3/3 checks passed')"


def _edit(text):
    return lambda notebook: cell_of(notebook, "q1-check").update(source=text)


HONEST = {
    "passes_all": (SOLVED, ("ok", 3, 2, {"edited_check"})),
    "blank": (submitted(), ("blank", 0, 0, set())),
    "fails_q1": (answers(WRONG), ("ok", 0, 2, set())),
    "blank_q2": (answers(RIGHT, None), ("ok", 3, 0, set())),
    "partly_q1": (
        answers("def add(left, right):\n    return left + right if left < 50 else 0\n"),
        ("ok", 1.5, 2, {"mismatch"}),
    ),
    "helper_cell": (
        answers("def add(left, right):\n    return helper(left, right)\n", change=_helper),
        ("ok", 3, 2, {"extra_cells"}),
    ),
    "leftover_stub_q1": (
        answers(RIGHT.replace("    return", "    raise NotImplementedError()\n    return")),
        ("ok", 0, 2, set()),
    ),
    "prints_a_lot": (
        answers(RIGHT.replace("    return", "    print('x' * 9000)\n    return")),
        ("ok", 3, 2, {"output_cut"}),
    ),
    "warns": (
        answers("import warnings\n" + RIGHT.replace("    return", "    warnings.warn('NNPACK')\n    return")),
        ("ok", 3, 2, set()),
    ),
}
MISTAKES = {
    "saved_after_running": (answers(WRONG, change=_run), ("ok", 0, 2, set())),
    "outputs_cleared": (answers(WRONG, change=_cleared), ("ok", 0, 2, set())),
    "check_deleted": (answers(WRONG, change=_deleted), ("ok", 0, 2, set())),
    "check_moved": (answers(change=_moved), ("ok", 3, 2, set())),
    "check_twice": (answers(change=_twice), ("ok", 3, 2, set())),
    "check_edited": (
        answers(WRONG, change=_edit("print('q1: 3/3 checks passed')")),
        ("ok", 0, 2, {"edited_check"}),
    ),
    "check_skipped": (
        answers(WRONG, change=_edit("# NBVAL_SKIP\ntiny.q1(add)")),
        ("ok", 0, 2, {"edited_check"}),
    ),
    "check_is_text": (answers(WRONG, change=_check_is_text), ("ok", 0, 2, set())),
    "metadata_stripped": (answers(change=strip_metadata), ("ok", 3, 2, set())),
    "ids_new": (answers(change=new_ids), ("ok", 3, 2, set())),
    "ids_new_and_wrong": (answers(WRONG, change=new_ids), ("ok", 0, 2, set())),
    "check_named_as_answer": (
        answers(WRONG, change=_check_named_as_answer),
        ("ok", 0, 2, {"duplicate_cell"}),
    ),
    "answer_missing": (
        answers(change=lambda n: n.cells.remove(cell_of(n, "q1-answer"))),
        ("ok", 0, 2, {"missing_answer"}),
    ),
    "marker_lines": (answers("# NBVAL_SKIP\n# NBVAL_RAISES_EXCEPTION\n" + WRONG), ("ok", 0, 2, set())),
    "wrong_lab": (
        answers(change=lambda n: n.metadata.course.update(lab="02_other")),
        ("wrong_lab", 0, 0, set()),
    ),
    "old_version": (
        answers(change=lambda n: n.metadata.course.update(lab_version="old")),
        ("ok", 3, 2, {"old_version"}),
    ),
}
BROKEN = {
    "empty": (b"", ("unreadable", 0, 0, set())),
    "cut_off": (answers()[:700], ("unreadable", 0, 0, set())),
    "bom": (b"\xef\xbb\xbf" + answers(), ("ok", 3, 2, set())),
    "utf16": (answers().decode().encode("utf-16"), ("unreadable", 0, 0, set())),
    "format_9": (answers().replace(b'"nbformat": 4', b'"nbformat": 9'), ("unreadable", 0, 0, set())),
    "nested": (b"[" * 100_000, ("unreadable", 0, 0, set())),
    "no_outputs": (
        json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": ANCHOR + RIGHT}]}).encode(),
        ("ok", 3, 0, {"missing_answer"}),
    ),
    "odd_kernel": (
        answers(change=lambda n: n.metadata.kernelspec.update(name="../../evil")),
        ("ok", 3, 2, set()),
    ),
    "huge": (b" " * 20_000_001, ("too_large", 0, 0, set())),
}
RUNAWAY = {
    "sleeps_q1": (answers("import time; time.sleep(99)\n" + RIGHT), ("timeout", 0, 2, set())),
    "swallows_interrupt_q1": (
        answers("import time\ntry:\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    pass\n" + WRONG),
        ("timeout", 0, 2, set()),
    ),
    "swallows_interrupt_then_right_q1": (
        answers("import time\ntry:\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    pass\n" + RIGHT),
        ("timeout", 0, 2, set()),
    ),
    "crash_q1_others_ok": (
        answers("import os; os._exit(0)\n" + RIGHT),
        ("crashed", 0, 2, {"suspicious_api"}),
    ),
    "exit_q1_others_ok": (answers(RIGHT + "exit()\n"), ("crashed", 0, 2, set())),
    "segfault_in_the_check_q1": (
        answers("def add(left, right):\n    import ctypes; ctypes.string_at(0)\n"),
        ("crashed", 0, 2, {"suspicious_api"}),
    ),
    "floods_q1": (answers("print('x' * 5_000_000)\n" + RIGHT), ("too_large", 0, 2, set())),
    "eats_memory_in_q1": (
        answers(RIGHT.replace("    return", "    block = bytearray(1 << 40)\n    return")),
        ("ok", 0, 2, set()),
    ),
    "asks_in_q1": (
        answers(RIGHT.replace("    return", "    name = input()\n    return")),
        ("ok", 0, 2, set()),
    ),
    "daemon": (
        answers(
            "import subprocess, sys\n_ = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(93)'],"
            " start_new_session=True)\n" + RIGHT
        ),
        ("ok", 3, 2, {"suspicious_api", "leftover_processes"}),
    ),
}
