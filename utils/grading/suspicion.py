"""Hints for a human reader; none of them ever changes a score."""

from __future__ import annotations

import ast
import re

from utils.grading.notebook import digest

_WORDS = re.compile(
    r"\bsolutions?/|\bctypes\b|\bsocket\b|\bos\.kill\b|\bos\._exit\b|\bsubprocess\b|\b_getframe\b|\bgc\.get_|\bsys\.modules\b"
    r"|\b__code__\b|\bmeta_path\b|\bget_ipython\b|\bshowtraceback\b|\bset_trace\b|\b__reduce__\b|\bbuiltins\b|\bopen\(|\bsetsid\b"
    r"|\bos\.fork\b|\b__eq__\b|/proc/|\bexec\(|\beval\(|\bos\.system\b|\bpathlib\b|\burllib\b|\brequests\b|\binspect\."
    r"|\bkillpg\b|\bos\.kill|\bJPY_PARENT_PID\b|\bsitecustomize\b|\busercustomize\b|\.pth\b|\bsite-packages\b|\bconftest\b"
    r"|\bPYTHONSTARTUP\b|\.ipython\b|\bwrite_text\b|\bshutil\b|\bos\.(?:remove|unlink|replace|rename)\b|\bptrace\b|\bdup2\b"
    r"|\bimportlib\b|\b__builtins__\b|\bmultiprocessing\b|\bpickle\b|\bmarshal\b"
)

LARGEST_PARSED = 100_000
"""Characters: a syntax tree takes a thousand times the memory of the text, and this process is the grader's."""


def suspicious_words(source: str) -> list[str]:
    """Return the words in an answer that have no business there, sorted.

    >>> suspicious_words("import ctypes; open('x')")
    ['ctypes', 'open(']
    """
    return sorted(set(_WORDS.findall(source)))


def fingerprint(source: str) -> str:
    """Return a hash of the code that does not change with names of variables, comments or layout.

    >>> fingerprint("def f(a):\\n    return a + 1") == fingerprint("def g(b):  # mine\\n    return (b+1)")
    True
    """
    if len(source) > LARGEST_PARSED:
        return digest("".join(source.split()))
    try:
        return digest(_shape(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # no Python, or more than it can walk through or print
        return digest("".join(source.split()))


def _shape(source: str) -> str:
    tree, names = ast.parse(source), {}
    for node in ast.walk(tree):
        for field in ("name", "id", "arg"):
            if isinstance(value := getattr(node, field, None), str):
                setattr(node, field, names.setdefault(value, f"n{len(names)}"))
    return ast.dump(tree)
