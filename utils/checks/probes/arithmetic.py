"""Formulas on the far side of the boundary."""

import copy


def each(*functions, which, questions):
    """Call the student's function number `which` with each list of arguments, which must stay as they are."""
    return [_asked(functions[which], question) for question in questions]


def _asked(function, question):
    before = copy.deepcopy(question)
    answer = function(*question)
    unchanged(question, before, "an argument")
    return answer


def unchanged(now, before, what):
    """Raise ValueError if a student's function changed what it was given, plain data, and had no business to."""
    if now != before:
        raise ValueError(f"Your function changed {what}: it was {before!r:.200} and became {now!r:.200}. Work on a copy.")


def number_or_none(value, what):
    """`value` as a float, or None; TypeError if it is neither a number nor None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number, not a {type(value).__name__}. A tensor's number is tensor.item().")
    return float(value)
