"""How a check ends: one fixed line when all is right, one short error that says what is wrong when it is not."""

import pickle
import re
from dataclasses import dataclass

import numpy as np

from utils.checks.boundary import call_on_ranks


class CheckFailed(AssertionError):
    """An answer is not right yet. The message says what was given, what came, what was expected, where to look."""

    def _render_traceback_(self):
        """What a notebook shows: the message alone."""
        return f"CheckFailed: {self}".splitlines()


@dataclass(frozen=True)
class SubCheck:
    """One thing that is looked at: its name for the student, and check(call, seed), which raises CheckFailed."""

    name: str
    check: object


@dataclass(frozen=True)
class Result:
    """The outcome of one sub-check; `message` is empty when it passed."""

    name: str
    passed: bool
    message: str


def wrong(sentence, given=None, came=None, expected=None, look_at=None):
    """Return the CheckFailed that says `sentence` first, and then what it was about, a line each."""
    values = {"given": given, "came": came, "expected": expected, "look at": look_at}
    lines = {label: shown(value) for label, value in values.items() if value is not None}
    if lines.get("came") == lines.get("expected") and type(came) is type(expected) is float:
        lines |= {"came": repr(came), "expected": repr(expected)}  # they differ in digits that are not shown
    details = [f"  {label:<10}{text}" for label, text in lines.items()]
    return CheckFailed("\n".join([sentence, *details]))


def verify(sub_checks, call, seed):
    """Run every sub-check through `call` and return a Result for each: for partial credit."""
    call = once_each(call)
    return [_result(sub_check, call, seed) for sub_check in sub_checks]


def once_each(call):
    """`call`, but equal inputs are run only once: sub-checks may look at the same run from several sides."""
    known = {}

    def remembered(inputs):
        key = pickle.dumps(inputs)
        if key not in known:
            known[key] = call(inputs)
        return known[key]

    return remembered


def check_all(question, sub_checks, functions, seed):
    """Run the sub-checks on the student's `functions` until one fails; print one line when none does.

    Raises CheckFailed with the message of the first that fails.
    """
    message = first_failure(question, sub_checks, functions, seed)
    if message:
        raise CheckFailed(message) from None
    print(f"{question}: {len(sub_checks)}/{len(sub_checks)} checks passed")


def first_failure(question, sub_checks, functions, seed):
    """The message of the first sub-check that fails, and how many passed before it; "" when none fails."""
    call = once_each(call_on_ranks(*functions))
    for number, sub_check in enumerate(sub_checks):
        result = _result(sub_check, call, seed)
        if not result.passed:
            count = f"{number} of {len(sub_checks)} checks passed; the next one is “{sub_check.name}”."
            return f"{result.message}\n{question}: {count}"
    return ""


def check_everything(questions, functions, namespace, seed):
    """Check all `questions` with the `functions` found in `namespace`, usually `globals()`; print a line for each."""
    for question, names in functions.items():
        missing = [name for name in names if not callable(namespace.get(name))]
        if missing:
            message = f"{missing[0]} is not defined: run the cell of its exercise."
        else:
            message = first_failure(question, questions[question], [namespace[name] for name in names], seed)
        print(f"{question}: {'not yet: ' + message.splitlines()[0] if message else 'passed'}")


def _result(sub_check, call, seed):
    try:
        sub_check.check(call, seed)
    except CheckFailed as failure:
        return Result(sub_check.name, False, str(failure))
    except (
        Exception
    ) as error:  # outputs of the wrong form: the other side of the boundary is not to be trusted
        message = f"What came back cannot be read ({type(error).__name__}: {error})."
        return Result(sub_check.name, False, message)
    return Result(sub_check.name, True, "")


def outputs_of(call, probe, world_size, given, **arguments):
    """Call the student's function on `world_size` ranks; raise CheckFailed with the verdict if the run fails.

    `given` describes the inputs in words.
    """
    outputs = call({"probe": probe, "world_size": world_size, "arguments": arguments})
    error = outputs["error"]
    if error is None:
        if any(len(outputs[name]) != world_size for name in ("results", "calls", "spans")):
            raise wrong("What came back is not one result for each rank.", given)
        return outputs
    message, kind = _without_our_own_lines(str(error["message"]), probe), str(error["kind"])
    if "NotImplementedError" in message:
        (name, *_) = re.findall(r"line \d+, in (\w+)", message)[-1:] or ["the function"]
        raise CheckFailed(
            f"There is no answer yet: {name} raised NotImplementedError.\n"
            "  look at   the line '# YOUR CODE HERE': your code takes its place and that of the line below it"
        )
    sentence = {
        "deadlock": "The ranks wait for each other and would wait for ever.",
        "timeout": "The function did not come to an end.",
        "difference": "The ranks did not call what belongs together.",
        "killed": "A rank was killed while it ran the function.",
        "unpicklable": "The function, or what it returned, cannot be used.",
    }.get(kind, "The function raised an error.")
    printed = [
        f"rank {rank} printed: {text.strip()[:300]}"
        for rank, text in enumerate(outputs["printed"])
        if text.strip()
    ]
    lines = [f"  {line}" for line in message.splitlines()]
    raise CheckFailed("\n".join([sentence, *lines, f"  given     {given}", *printed[:8]]))


def calls_only_in(outputs, cases, given):
    """Raise CheckFailed if a rank communicated outside `cases`, the names of the stretches that the probe marks.

    For checks that count the calls of a case: what is sent before or after it would not be counted.
    """
    for rank, calls in enumerate(outputs["calls"]):
        for made in calls:
            if made["case"] not in cases:
                raise wrong(f"Rank {rank} called {made['op']} while your function was not running.", given)


def _without_our_own_lines(message, probe):
    """The verdict without the frames of the checks: the student's own lines are what counts."""
    ours = (f"{probe.split('.')[0]}.py ", "alive.py ", "arithmetic.py ", "boundary.py ")
    return "\n".join(line for line in message.splitlines() if not line.strip().startswith(ours))


def shown(value):
    """Numbers short enough to read: at most 8 of an array, 5 digits each; large ones with all digits before the point."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        numbers = ", ".join(f"{number:.5g}" for number in flat[:8].tolist())
        return f"[{numbers}{', …' if flat.size > 8 else ''}]"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
