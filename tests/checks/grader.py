"""What a grader does with a lab's checks: a `call` of its own between them and the student, and seeds of its own."""
import numpy as np

from utils.checks.boundary import call_on_ranks, plain
from utils.checks.probes.arithmetic import each
from utils.checks.verdict import verify


def over_a_wall(functions, seen=None):
    """A call that lets nothing but plain data pass in either direction, and keeps in `seen` what went in."""
    call = call_on_ranks(*functions)

    def other_side(inputs):
        inputs = as_seen(inputs, seen)
        outputs = call(inputs)
        assert_plain(outputs)
        return plain(outputs)

    return other_side


def in_this_process(functions, seen=None):
    """A call without ranks, for functions that do not communicate; nothing but plain data passes here either."""

    def call(inputs):
        assert (inputs["probe"], inputs["world_size"]) == ("arithmetic.each", 1)
        result = plain(each(*functions, **as_seen(inputs, seen)["arguments"]))
        return {"error": None, "results": [result], "calls": [[]], "spans": [[]], "printed": [""]}

    return call


def as_seen(inputs, seen):
    inputs = plain(inputs)
    assert_plain(inputs)
    if seen is not None:
        seen.append(inputs)
    return inputs


def assert_plain(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            assert_plain(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            assert type(key) is str
            assert_plain(item)
    else:
        assert value is None or type(value) in (bool, int, float, str, np.ndarray), type(value)


def assert_passes_with_any_seed(sub_checks, functions, way=over_a_wall):
    """Right functions pass whatever the seed is, and another seed gives them other inputs."""
    given = []
    for seed in (101, 102):
        seen = []
        results = verify(sub_checks, way(functions, seen), seed)
        assert [result.message for result in results] == [""] * len(results)
        given.append(repr(seen))
    assert given[0] != given[1]


def failed(sub_checks, call, seed):
    """The names of the sub-checks that do not pass."""
    return [result.name for result in verify(sub_checks, call, seed) if not result.passed]
