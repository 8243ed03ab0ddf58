"""Which checks a change of one answer can reach, by the names that cells define and use."""

from __future__ import annotations

import ast
from collections.abc import Iterable

_HARMLESS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.Expr,
)


def only_defines(source: str) -> bool:
    """Return whether running ``source`` does nothing but bind names: no calls, no loops, nothing set on other objects.

    >>> only_defines("import math\\ndef f(): print(1)"), only_defines("math.pi = 3"), only_defines("f()")
    (True, False, False)
    """
    tree = _parse(source)
    if tree is None or not all(isinstance(node, _HARMLESS) for node in tree.body):
        return False
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not all(isinstance(target, ast.Name) for target in targets):
                return False
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)) and any(
            isinstance(part, (ast.Call, ast.Await)) for part in ast.walk(node)
        ):
            return False
    return True


def bound_names(source: str) -> set[str]:
    """Return the names that the cell ``source`` binds at its top level.

    >>> sorted(bound_names("import os.path as p\\na, b = 1, 2\\ndef f(): c = 1"))
    ['a', 'b', 'f', 'p']
    """
    names: set[str] = set()
    tree = _parse(source)
    for node in tree.body if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {
                part.id
                for part in ast.walk(node)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return names


def used_names(source: str) -> set[str]:
    """Return every name that ``source`` mentions anywhere; a cell that cannot be parsed mentions its words."""
    tree = _parse(source)
    if tree is None:
        return set(source.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}


def reaches(names: set[str], source: str, cells: Iterable[str]) -> bool:
    """Return whether the code ``source`` uses one of ``names``, itself or through what ``cells`` define.

    >>> reaches({"f"}, "check(g)", ["def f(): pass", "def g(): return f()"])
    True
    """
    known = [(bound_names(cell), used_names(cell)) for cell in cells]
    found, grown = used_names(source), True
    while grown:
        size = len(found)
        for bound, used in known:
            if bound & found:
                found |= used
        grown = len(found) > size
    return bool(names & found)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None
