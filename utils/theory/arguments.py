"""Refuse a wrong argument with a sentence: its name, its value, and what is allowed.

Each function returns the value that it accepted, so that a check and an assignment are one line.
All of them raise ValueError.
"""

import math
import numbers
from collections.abc import Iterable

from .units import GB


def whole_number(name, value, minimum=1, maximum=None):
    """Return `value` as an int, or raise ValueError when it is not a whole number in the range."""
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{name} must be a whole number, but {value!r} was given.")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, but {value!r} was given.")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, but {value!r} was given.")
    return int(value)


def positive(name, value):
    """Return `value`, or raise ValueError when it is not a finite number above 0."""
    number = _number(name, value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} must be a finite number above 0, but {value!r} was given.")
    return value


def non_negative(name, value):
    """Return `value`, or raise ValueError when it is not a finite number of at least 0."""
    number = _number(name, value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a finite number of at least 0, but {value!r} was given.")
    return value


def fraction(name, value):
    """Return `value`, or raise ValueError when it is not above 0 and at most 1."""
    if positive(name, value) > 1:
        raise ValueError(f"{name} must be above 0 and at most 1, but {value!r} was given.")
    return value


def one_of(name, value, allowed):
    """Return `value`, or raise ValueError with the list of what is allowed."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name} must be one of {choices}, but {value!r} was given.")
    return value


def several(name, value):
    """Return `value` as a tuple, or raise ValueError when it is not a list, a tuple or the like of at least one item."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list, but {value!r} was given. Write [{value!r}] for one item.")
    if not (items := tuple(value)):
        raise ValueError(f"{name} must have at least one item, but an empty list was given.")
    return items


def divides(divisor_name, divisor, name, value):
    """Raise ValueError unless `divisor` divides `value` without a rest."""
    if value % divisor:
        raise ValueError(
            f"{divisor_name} must divide {name}, but {divisor_name} = {divisor} and {name} = {value} "
            f"leave a rest of {value % divisor}."
        )


def device_bytes(name, value):
    """Return `value`, the bytes of a device's memory; refuse a number that must have been meant in GB.

    No accelerator holds less than 1 GB, so 80 was meant as 80 GB or as 80 GiB: which one, only the
    caller knows (they differ by 7 %).
    """
    if positive(name, value) < GB:
        raise ValueError(
            f"{name} is counted in bytes, but {value!r} was given, which is less than 1 GB. "
            f"Write {value!r} * GB (10**9 bytes) or {value!r} * GiB (2**30 bytes)."
        )
    return value


def _number(name, value):
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, but {value!r} was given.")
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{name} must be below 10**308, but a larger number was given.") from None
    return value
