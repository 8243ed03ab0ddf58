"""The boundary: only plain data pass, whatever the student's function does comes back as an outcome."""

import math
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from utils.checks import boundary
from utils.checks.boundary import call_on_ranks, plain


class Always:
    """Equal to everything."""

    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.0


class Seven(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Array(np.ndarray):
    pass


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "word", [1, [2.0]], {"a": [None]}])
def test_plain_data_pass(value):
    assert plain(value) == value


@pytest.mark.parametrize(
    "value, kind",
    [(Seven(7), int), (np.float32(1.5), float), (np.bool_(True), bool), ((1, 2), list), (np.int64(3), int)],
)
def test_subclasses_become_the_thing_itself(value, kind):
    assert type(plain(value)) is kind


def test_tensors_and_arrays_become_own_arrays():
    array = np.arange(6.0).reshape(2, 3)
    for value in (
        array.view(Array),
        torch.from_numpy(array).t().contiguous().t(),
        torch.nn.Parameter(torch.from_numpy(array)),
    ):
        result = plain(value)
        assert (
            type(result) is np.ndarray and result.flags.c_contiguous and not np.shares_memory(result, array)
        )
        np.testing.assert_array_equal(result, array)
    assert plain(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "value", [Always(), object(), {1, 2}, np.array([Always()]), lambda: 1, 1j, [Always()]]
)
def test_everything_else_is_refused(value):
    with pytest.raises(TypeError, match="A number, a list of numbers, an array or a tensor was expected"):
        plain(value)


def in_place(function, arrays, transposed=False):
    cases = [{"arrays": arrays, "transposed": transposed}]
    return call_on_ranks(function)(
        {"probe": "all_reduce.in_place", "world_size": len(arrays), "arguments": {"cases": cases}}
    )


def test_outputs_are_values_calls_and_prints(capsys):
    def send_right(tensor):
        rank = dist.get_rank()
        print("hello from", rank)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)

    outputs = in_place(send_right, [np.full(3, 5.0), np.zeros(3)])
    assert outputs["error"] is None
    assert outputs["results"][1][0].tolist() == [5.0] * 3
    (sent,), (received,) = outputs["calls"]
    assert (sent["op"], sent["peer"], sent["elements"], sent["dtype"], sent["case"]) == (
        "send",
        1,
        3,
        "float64",
        0,
    )
    assert sent["sent_bytes"] == 24
    assert (received["op"], received["peer"]) == ("recv", 0)
    assert outputs["printed"] == ["hello from 0\n", "hello from 1\n"]
    assert capsys.readouterr() == ("", "")


def test_the_function_works_on_copies():
    array = np.zeros(2)
    in_place(lambda tensor: tensor.fill_(9), [array])
    assert array.tolist() == [0, 0]


def wait_for_nobody(tensor):
    dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size())


def raises(tensor):
    raise KeyError("oh")


def never_ends(tensor):
    while True:
        time.sleep(0.01)


def kills_itself(tensor):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "function, kind, message",
    [
        (raises, "raised", "KeyError: 'oh'"),
        (wait_for_nobody, "deadlock", "all wait in recv, and nobody sends"),
        (never_ends, "timeout", "did not end within 3 s"),
        (kills_itself, "killed", "SIGKILL"),
    ],
)
def test_failures_come_back_within_seconds(function, kind, message, monkeypatch):
    monkeypatch.setattr(boundary, "TIMEOUT_SECONDS", 3)
    begin = time.monotonic()
    outputs = in_place(function, [np.zeros(1), np.zeros(1)])
    assert time.monotonic() - begin < 60
    assert outputs["error"]["kind"] == kind and message in outputs["error"]["message"]
    assert outputs["results"] == outputs["calls"] == []


def test_a_function_that_cannot_be_sent():
    lock = __import__("threading").Lock()
    outputs = in_place(lambda tensor: lock, [np.zeros(1)])
    assert outputs["error"]["kind"] == "unpicklable"


def test_an_answer_that_is_equal_to_everything_is_no_answer():
    call = call_on_ranks(lambda *_: Always())
    outputs = call(
        {"probe": "arithmetic.each", "world_size": 1, "arguments": {"which": 0, "questions": [[1]]}}
    )
    assert "A number, a list of numbers, an array or a tensor was expected" in outputs["error"]["message"]


def test_nan_stays_nan():
    assert math.isnan(plain(float("nan")))
