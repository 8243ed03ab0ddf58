"""The package is light, its examples run, and the accepted lower edges of arguments are accepted."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import utils.theory
from utils.theory.arguments import (
    device_bytes,
    divides,
    fraction,
    non_negative,
    one_of,
    positive,
    whole_number,
)
from utils.theory.units import GB, SECONDS_PER_DAY, GiB

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(utils.theory.__path__, "utils.theory.")
    if not name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_says_what_it_does(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for attribute, value in vars(module).items():
        if not attribute.startswith("_") and callable(value) and value.__module__ == name:
            assert value.__doc__, f"{name}.{attribute} has no docstring"


def test_neither_torch_nor_processes_are_needed():
    code = (
        "import sys; before = set(sys.modules); import utils; base = set(sys.modules)\n"
        f"for name in {MODULES!r}: __import__(name)\n"
        "new = set(sys.modules) - base\n"
        "print(sorted(name for name in new if name.split('.')[0] in ('torch', 'pandas', 'matplotlib')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_what_the_checks_accept():
    import numpy as np

    assert whole_number("n", np.int64(3)) == 3 and whole_number("n", 7.5e9) == 7_500_000_000
    assert isinstance(whole_number("n", 4.0), int)
    assert whole_number("n", 0, minimum=0) == 0
    assert positive("x", 1e-9) and non_negative("x", 0) == 0 and fraction("x", 1) == 1
    assert one_of("x", 2, (1, 2)) == 2 and device_bytes("x", GB) == GB
    divides("a", 3, "b", 9)
    assert GiB / GB == pytest.approx(1.0737, abs=1e-4) and SECONDS_PER_DAY == 86400


@pytest.mark.parametrize("value", [None, "3", True, float("nan"), float("inf"), [3], 2.5, 0, -1])
def test_what_a_count_is_not(value):
    with pytest.raises(ValueError, match="^ranks must be .* was given"):
        whole_number("ranks", value)


@pytest.mark.parametrize("value", [None, "3", True, float("nan"), float("inf"), 0, -1])
def test_what_a_positive_number_is_not(value):
    with pytest.raises(ValueError, match="^seconds must be .* was given"):
        positive("seconds", value)
