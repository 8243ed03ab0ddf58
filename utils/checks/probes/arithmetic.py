"""Formulas on the far side of the boundary."""


def each(*functions, which, questions):
    """Call the student's function number `which` with each list of arguments."""
    return [functions[which](*question) for question in questions]
