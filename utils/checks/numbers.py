"""Formulas as answers: ask a student's function for numbers, and compare them one by one."""

import math

from utils.checks.verdict import outputs_of, wrong


def answers(call, which, questions, name):
    """What the student's function number `which`, called `name`, returns for each list of arguments in `questions`."""
    given = f"{name}{tuple(questions[0])}"
    outputs = outputs_of(call, "arithmetic.each", 1, given, which=which, questions=questions)
    return outputs["results"][0]


def compare(came, expected, name, questions, hint=lambda question, value, right: None):
    """Raise CheckFailed for the first number that is wrong; hint(question, came, expected) may say what to look at."""
    for question, value, right in zip(questions, came, expected, strict=True):
        given = in_words(name, question)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(f"{name} must return a number.", given, str(value), right)
        if not math.isclose(value, right, rel_tol=1e-9, abs_tol=0):
            raise wrong(f"{name} returns a wrong number.", given, value, right, hint(question, value, right))


def in_words(name, question):
    """A call as the student would write it: name(1,000, 'adam')."""
    numbers = (f"{part:,}" if type(part) is int else repr(part) for part in question)  # True is no number
    return f"{name}({', '.join(numbers)})"
