import json
import math
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.grading import plain_data
from utils.grading.plain_data import BadData, Closed, decode, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_what_is_sent_arrives(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize("dtype", plain_data.DTYPES)
def test_arrays_arrive_with_their_type_and_shape(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    came = decode(json.loads(json.dumps(encode(array))))
    assert came.dtype == array.dtype and came.shape == (2, 3) and (came == array).all()


def test_numbers_that_json_does_not_know():
    assert [decode(encode(x)) for x in (math.inf, -math.inf)] == [math.inf, -math.inf] and math.isnan(
        decode(encode(math.nan))
    )


class Always(float):
    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    "value",
    [Always(1), object(), {1: 2}, {"a"}, b"x", lambda: 1, 1 << 1200, np.array(["x"]), np.array([None])],
)
def test_what_is_not_plain_data_is_not_sent(value):
    with pytest.raises(BadData):
        encode(value)


def test_nothing_is_nested_for_ever():
    loop = []
    loop.append(loop)
    with pytest.raises(BadData, match="nested too deeply"):
        encode(loop)


@pytest.mark.parametrize(
    "value",
    [
        {"x": 1},
        {"__dict__": 3},
        {"__dict__": [[1, 2]]},
        {"__float__": "1e999"},
        {"__array__": "object", "shape": [1], "data": ""},
        {"__array__": "float32", "shape": [2], "data": "AAAA"},
        {"__array__": "float32", "shape": [-1], "data": ""},
        {"__array__": "float32", "shape": [1 << 50], "data": ""},
        {"__array__": "float32", "shape": "1", "data": ""},
        {"__array__": "float32", "shape": [1], "data": "!"},
        {"__array__": "float32", "shape": [True], "data": "AAAAAA=="},
    ],
)
def test_what_is_not_of_the_form_is_refused(value):
    with pytest.raises(BadData):
        decode(value)


def framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


@pytest.mark.parametrize(
    "data, error",
    [
        (framed(b"[" * 100_000), BadData),
        (framed(b"1"), BadData),
        (framed(b"\xff"), BadData),
        (framed(b'{"a": ' + b"9" * 9000 + b"}"), BadData),
        (struct.pack("!I", 1 << 31), BadData),
        (b"", Closed),
        (b"\0\0", Closed),
        (framed(b"{}")[:5], Closed),
    ],
)
def test_a_bad_message_is_one_kind_of_error(data, error):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(data)
        with pytest.raises(error):
            plain_data.receive(ours, time.monotonic() + 5)


def test_a_slow_drip_does_not_move_the_deadline():
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip():
        theirs.sendall(struct.pack("!I", 1000))
        while not stop.wait(0.02):
            theirs.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        plain_data.receive(ours, start + 0.3)
    assert time.monotonic() - start < 10
    stop.set()
    thread.join()
    ours.close()
    theirs.close()
