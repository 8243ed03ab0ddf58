"""The one narrow way from a check to a student's function: ``call(inputs) -> outputs``, plain data on both sides.

Plain data are None, booleans, numbers, strings, lists, dicts with string keys and numpy arrays. So the function may
run anywhere: here, on ranks that `launch` starts, or behind whatever wall a grader puts between the two.

inputs
    probe       "module.function" in utils.checks.probes: prepares what the student's function gets, on every rank
    world_size  number of ranks
    arguments   keyword arguments of the probe: dict
    functions   (only where the student's functions live) is not part of the inputs: `call` knows them

outputs
    error     None, or {"kind", "message", "rank"}: the run failed, and the rest is empty. Kinds are those of RankError
              ("raised", "deadlock", "timeout", "difference", …) and "unpicklable"
    results   what the probe returned, one entry per rank
    calls     one list per rank: {"op", "peer", "elements", "dtype", "sent_bytes", "ranks", "start", "waited", "case"} of
              each communication call in order, as the engine recorded it; `peer` is a global rank, `ranks` are the
              global ranks of the call's group, `case` is the probe's name for that stretch
    spans     one list per rank: {"name", "start", "end", …} with the tags of each span
    printed   what each rank printed: list of strings
"""

import contextlib
import importlib
import io

import numpy as np

from utils.ranks import RankError, launch, span
from utils.ranks.pickles import UnpicklableError

TIMEOUT_SECONDS = 10
CASE = "case of a check"


def call_on_ranks(*functions):
    """Return the `call` that runs `functions` (the student's, in the order of the exercise) on ranks of this machine."""

    def call(inputs):
        arguments, world_size = plain(inputs["arguments"]), int(inputs["world_size"])
        with contextlib.redirect_stdout(io.StringIO()):  # what is said of the run is in the outputs
            try:
                run = launch(
                    _run_probe, str(inputs["probe"]), functions, arguments,
                    world_size=world_size, timeout=TIMEOUT_SECONDS, backend="gloo", echo=False,
                )  # fmt: skip
            except RankError as error:
                printed = [] if error.run is None else error.run.outputs
                return _failed(error.kind, str(error), error.rank, printed)
            except UnpicklableError as error:
                return _failed("unpicklable", str(error), None, [])
        return {
            "error": None,
            "results": run.results,
            "calls": [_calls(record) for record in run.records],
            "spans": [_spans(record) for record in run.records],
            "printed": run.outputs,
        }

    return call


def case(name):
    """Mark a stretch of a probe: the calls inside carry this name."""
    return span(CASE, case=name)


def plain(value):
    """`value` as plain data, copied: tensors become arrays; subclasses of anything become the thing itself.

    Raises TypeError for what is not plain.
    """
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.array(value, order="C", subok=False)
    raise TypeError(
        f"A number, a list of numbers, an array or a tensor was expected here, not a {type(value).__name__}: {value!r:.80}"
    )


def _run_probe(name, functions, arguments):
    module, _, function = name.rpartition(".")
    probe = getattr(importlib.import_module(f"utils.checks.probes.{module}"), function)
    return plain(probe(*functions, **arguments))


def _failed(kind, message, rank, printed):
    error = {"kind": kind, "message": message, "rank": rank}
    return {"error": error, "results": [], "calls": [], "spans": [], "printed": list(printed)}


def _calls(record):
    cases = [(item.start, item.end, item.tags["case"]) for item in record.spans if item.name == CASE]
    return [
        {
            "op": item.op,
            "peer": item.peer,
            "elements": item.elements,
            "dtype": item.dtype,
            "sent_bytes": item.sent,
            "ranks": list(item.ranks),
            "start": item.start,
            "waited": item.waited,
            "case": next((name for start, end, name in cases if start <= item.start <= end), None),
        }
        for item in record.calls
    ]


def _spans(record):
    return [
        {"name": item.name, "start": item.start, "end": item.end, **item.tags}
        for item in record.spans
        if item.name != CASE
    ]
