"""The verify stage's own transport: collectives, groups and meshes, and what a question may call."""

import doctest
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from utils.checks import all_reduce
from utils.grading import may_call, messages
from utils.grading.messages import Call, StudentError, bytes_of, combine, numbers_of
from utils.grading.routed_calls import call_from
from utils.grading.student import Student, boundary_calls
from utils.grading.verify import cases_from_checks

ROOT = Path(__file__).resolve().parents[2]

ANSWERS = Path(__file__).with_name("collective_answers.py").read_text()


@pytest.fixture
def student(server):
    return Student(server, [["q1-answer", ANSWERS, True]], ROOT)


def numbers(world_size, length=4):
    return [[row] for row in np.arange(world_size * length, dtype="float32").reshape(world_size, length)]


def ops(run, rank=0):
    return [(call.op, call.elements, list(call.ranks)) for call in run.calls[rank]]


def test_sub_groups(student):
    run = student.on_ranks("pairs", numbers(4), collectives=("all_reduce", "new_group"))
    assert [value["total"].tolist() for value in run.values] == [[4, 6, 8, 10]] * 2 + [[20, 22, 24, 26]] * 2
    assert run.values[2]["largest"].tolist() == [12, 13, 14, 15] == run.values[2]["came"].tolist()
    assert ops(run, 3) == [("all_reduce", 4, [2, 3]), ("all_reduce", 4, [2, 3]), ("send", 4, [2, 3])]
    assert run.peers(3) == {2} and run.sent_bytes(3) == 16 and run.peers(2) == set()
    (send,) = [call for call in boundary_calls(run.calls[3], ()) if call["op"] == "send"]
    assert (send["peer"], send["ranks"], send["sent_bytes"]) == (2, [2, 3], 16)
    reduced = boundary_calls(run.calls[3], ())[0]
    assert reduced["sent_bytes"] == 16  # 2 (n - 1)/n S of a group of two


def test_a_mesh(student):
    run = student.on_ranks("grid", numbers(4, 2), collectives=("all_reduce", "all_gather", "new_group"))
    assert [value.tolist() for value in run.values] == [[2, 4, 10, 12]] * 4
    assert ops(run, 1) == [("all_reduce", 2, [0, 1]), ("all_gather", 4, [1, 3])]


def test_unequal_parts(student):
    run = student.on_ranks("uneven", numbers(3), collectives=("all_to_all",))
    expected = list(itertools.chain(*[[source] * (source + 1) for source in range(3)]))
    for value in run.values:
        assert value["single"][:, 0].tolist() == value["listed"].tolist() == expected
    first, second = boundary_calls(run.calls[2], ())
    assert first["sent_bytes"] == 2 * 3 * 2 * 4 and second["sent_bytes"] == 2 * 3 * 4
    with pytest.raises(StudentError, match="rank 1 gave 1 elements to rank 0, which had made room for 3"):
        student.on_ranks("uneven_wrong", numbers(2), collectives=("all_to_all",))


def test_calls_under_way(student):
    run = student.on_ranks("zero_step", numbers(2), collectives=("all_gather", "reduce_scatter"))
    assert [value["part"].tolist() for value in run.values] == [[4, 6], [8, 10]]
    assert run.values[1]["first"].tolist() == [4, 6, 8, 10]
    assert run.values[0]["second"].tolist() == [8, 12, 16, 20]
    assert all(value["done"] and type(value["early"]) is bool for value in run.values)
    scattered, first, second = run.calls[0]
    assert scattered.waited < first.start < second.start < first.waited < second.waited


EVERY_COLLECTIVE = ("new_group", *may_call.COLLECTIVES)


@pytest.mark.parametrize(
    "name, world_size, expected",
    [
        ("functional", 2, {"total": [4, 6, 8, 10], "part": [4, 5], "every": [4, 5, 6, 7]}),
        ("tensor_layer", 2, [[4, 5, 6, 7]]),
        ("objects", 3, [[0, 1, 2], ["hello", 3]]),
        ("any_source", 4, 1),
        ("ddp", 2, [[2, 3]]),
        ("two_groups_of_the_same_ranks", 2, [[4, 5, 6, 7], [5, 6, 7, 8]]),
    ],
)
def test_what_rank_0_ends_with(student, name, world_size, expected):
    values = student.on_ranks(name, numbers(world_size), collectives=EVERY_COLLECTIVE).values
    assert plain(values[0]) == expected


def test_zero_and_tensor_parallelism_run_here_as_anywhere(student):
    alone, run = (student.on_ranks("zero_training", numbers(n), seconds=30) for n in (1, 2))
    assert run.values[0].tolist() == run.values[1].tolist() and len(run.values[0]) == 51
    assert not np.allclose(run.values[0], alone.values[0])  # the second rank has other inputs
    assert run.sent_bytes(0) == sum(message.bytes for message in run.messages if message.target == 1) > 0
    words = ("all_reduce", "all_gather", "reduce_scatter", "new_group")
    alone, run = (
        student.on_ranks("tensor_parallel", numbers(n), collectives=words, seconds=30) for n in (1, 2)
    )
    assert np.allclose(run.values, alone.values[0], rtol=1e-12, atol=0)
    assert {call.reduce for call in run.calls[0] if call.op == "all_reduce"} == {"sum", "max"}
    assert {call.op for call in run.calls[0]} == {"all_reduce", "all_gather", "reduce_scatter"}
    assert all(call.group != "world" for calls in run.calls for call in calls)


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_numbers_of_two_bytes(student):
    run = student.on_ranks("half", numbers(2), collectives=("all_reduce",))
    tensors = [(torch.from_numpy(row) + 0.1).bfloat16() for (row,) in numbers(2)]
    assert (run.values[1] == sum(tensors).float().numpy()).all()
    assert boundary_calls(run.calls[0], ())[0]["sent_bytes"] == 8
    odd = torch.tensor([0.1, -3.3, 1e-40, 65504.0, float("inf"), float("nan"), 1.00390625, 1.01171875])
    for rounded in (numbers_of(bytes_of(odd.numpy(), "bfloat16"), "bfloat16"),):
        assert np.array_equal(rounded, odd.bfloat16().float().numpy(), equal_nan=True)


@pytest.mark.parametrize("op", may_call.EVERYTHING)
def test_each_call_exists_only_where_it_is_allowed(server, op):
    student = Student(server, [["q1-answer", ANSWERS, True]], ROOT)
    inputs = [[op], [op]]
    request = {"functions": ["any_call"], "probe": "", "tensors": True}
    run = student._run(request, inputs, 10.0, 2, (op,))
    assert [value["value"] for value in run.values] == [1, 1]
    others = tuple(word for word in may_call.EVERYTHING if word != op)
    names = "send|recv" if op == "send" else op  # one rank sends and the other receives: the first to ask is named
    with pytest.raises(StudentError, match=f"'({names})' is not part of this exercise. It may call: "):
        student._run(request, inputs, 10.0, 2, others)


@pytest.mark.parametrize(
    "name, allowed, words",
    [
        ("helps_itself", (), "'all_reduce' is not part of this exercise. It may call: send and recv"),
        ("makes_a_group_anyway", (), "'new_group' is not part of this exercise"),
        ("groups_differ", ("all_reduce", "new_group"), r"stuck: .*in the group of ranks \[0, 1\]"),
        ("uneven_list", ("reduce_scatter",), r"same size here; yours have \[2, 3\] elements"),
        ("rows_that_do_not_divide", ("all_to_all",), "3 rows over 2 ranks without sizes"),
        ("room_is_too_small", ("all_gather",), "32 bytes came; the tensors for them have room for 4"),
    ],
)
def test_what_goes_wrong_is_a_sentence(student, name, allowed, words):
    with pytest.raises(StudentError, match=words):
        student.on_ranks(name, numbers(2), collectives=allowed)


def _call(rank, op, **fields):
    data = np.array([4 * rank, 4 * rank + 1]).tobytes()
    return Call(
        rank, 1, op, -1, 0, "int64", 2, 0, "sum", data, 0, 0.0, "world", (0, 1), (1, 1), (1, 1), **fields
    )


@pytest.mark.parametrize(
    "op, expected",
    [
        ("scatter", [[0], [1]]),
        ("all_to_all", [[0, 4], [1, 5]]),
        ("gather", [[0, 1, 4, 5], []]),
        ("reduce", [[4, 6], []]),
    ],
)
def test_what_each_rank_gets_from_a_collective(op, expected):
    calls = [_call(rank, op) for rank in range(2)]
    combine(calls)
    assert [np.frombuffer(call.answer, "int64").tolist() for call in calls] == expected


GOOD = {
    "op": "all_gather", "number": 1, "group": "world", "ranks": [0, 1], "peer": -1, "tag": 0, "data": "AAAAAA==",
    "dtype": "float32", "elements": 2, "root": 0, "reduce": "sum", "parts": [], "room": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": []},
        {"ranks": [1]},
        {"ranks": [0, 0]},
        {"ranks": [0, 2]},
        {"ranks": [1, 0]},
        {"ranks": [0, -1]},
        {"ranks": "01"},
        {"ranks": [0]},
        {"ranks": [False, True]},
        {"group": 7},
        {"data": "AAAA"},
        {"data": "?"},
        {"elements": -2},
        {"elements": 1 << 50},
        {"dtype": "object"},
        {"reduce": "or"},
        {"number": True},
        {"root": 2},
        {"op": "all_to_all", "elements": 1},
        {"op": "all_to_all", "elements": 1, "parts": [2, -1], "room": [1, 1]},
        {"op": "reduce_scatter", "elements": 1},
        {"op": "send", "peer": 0, "elements": 1},
        {"op": "send", "peer": 2, "elements": 1},
        {"op": "send", "peer": -1, "elements": 1},
    ],
)
def test_a_forged_call_is_refused(change):
    call_from(GOOD, 0, 2, may_call.EVERYTHING, 0)
    with pytest.raises((ValueError, StudentError)):  # BadData is a ValueError
        call_from(GOOD | change, 0, 2, may_call.EVERYTHING, 0)


class Checks:
    """Stands for a module of utils.checks."""

    FUNCTIONS = {"q1": ("reduces",), "q2": ("reduces",)}
    MAY_CALL = {"q1": ("all_reduce",)}

    class Sub:
        name = "sum"

        @staticmethod
        def check(call, seed):
            arguments = {"cases": [{"arrays": [np.ones(2), np.ones(2)], "transposed": False}]}
            outputs = call({"probe": "all_reduce.in_place", "world_size": 2, "arguments": arguments})
            assert outputs["error"] is None, outputs["error"]["message"]
            assert outputs["results"][0][0].tolist() == [2, 2]

    QUESTIONS = {"q1": [Sub], "q2": [Sub]}


def test_a_labs_check_module_says_what_each_question_may_call(server):
    source = "import torch.distributed as dist\ndef reduces(x):\n    dist.all_reduce(x)\n"
    student = Student(server, [["q1-answer", source, True]], ROOT)
    cases = cases_from_checks(Checks)
    (allowed,), (refused,) = (cases[name](student, np.random.default_rng(1)) for name in ("q1", "q2"))
    allowed.run()
    with pytest.raises(AssertionError, match="It may call: nothing that communicates"):
        refused.run()


def test_calls_outside_the_cases_are_no_way_to_hide_them(server):
    """A student who says that a case is over before the rest is sent."""
    source = """
import types
import torch, torch.distributed as dist
from utils.ranks import rank as engine

def reduce_scatter(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    real, engine._recorder = engine._recorder, types.SimpleNamespace(next_number=int, event=lambda *a, **k: None)
    for number in range(9 if hasattr(real, "_channel") else 0):
        real.event("done", n=number)
    came = [torch.empty_like(tensor) for _ in range(n)]
    works = [dist.isend(tensor, peer) for peer in range(n) if peer != rank]
    for peer in range(n):
        dist.recv(came[peer], peer) if peer != rank else came[peer].copy_(tensor)
    [work.wait() for work in works]
    tensor.copy_(sum(came))
"""
    cases = cases_from_checks(all_reduce)["q1"]
    student = Student(server, [["q1-answer", source, True]], ROOT)
    for case in cases(student, np.random.default_rng(1)):
        if case.name == "elements sent":
            with pytest.raises(AssertionError, match="called send while your function was not running"):
                case.run()


def test_a_word_that_is_none_is_found_at_once():
    class Wrong(Checks):
        MAY_CALL = {"q1": ("allreduce",)}

    with pytest.raises(
        ValueError, match=r"MAY_CALL\['q1'\] has \['allreduce'\]; the words are send, new_group, all"
    ):
        cases_from_checks(Wrong)


def test_docstrings():
    assert doctest.testmod(may_call).failed == doctest.testmod(messages).failed == 0
