"""Plain data over a socket: numbers, text, lists, dictionaries and arrays; never objects, never code.

Both ends use this module.  What comes from a student's process is checked here before anything looks at it.
"""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
import time
from typing import Any

import numpy as np

LARGEST_FRAME = 64_000_000
MOST_ITEMS = 1_000_000
"""Lists, dictionaries and commas in one message: as text they are a byte or two each, in memory fifty."""
DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DEEPEST = 20


class BadData(ValueError):
    """What arrived is not plain data; the message says what is wrong with it."""


class Closed(ConnectionError):
    """The other end is gone."""


def encode(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON data, arrays and torch tensors included.

    Raises ``BadData`` for anything that is not plain data: a subclass of a number or a list is not.
    """
    if depth > _DEEPEST:
        raise BadData("data nested too deeply")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        if kind is int and abs(value) >= 1 << 1000:
            raise BadData("a number with more than 300 digits")
        return value
    if kind is float:
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if kind in (list, tuple):
        return [encode(item, depth + 1) for item in value]
    if kind is dict:
        if not all(type(key) is str for key in value):
            raise BadData("a dictionary with keys that are not text")
        return {"__dict__": [[key, encode(item, depth + 1)] for key, item in value.items()]}
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        value = _array_of(value)
    if isinstance(value, np.generic):
        return encode(value.item(), depth)
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"__array__": value.dtype.name, "shape": list(value.shape), "data": data}
    raise BadData(f"a value of type {kind.__name__}: return numbers, text, lists, arrays or tensors")


def _array_of(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return tensor.numpy()


def decode(value: Any, depth: int = 0) -> Any:
    """Return the data that :func:`encode` gave, with arrays as new numpy arrays.

    Raises ``BadData`` if it is not of that form.
    """
    if depth > _DEEPEST + 2:
        raise BadData("data nested too deeply")
    kind = type(value)
    if value is None or kind in (bool, int, str, float):
        return value
    if kind is list:
        return [decode(item, depth + 1) for item in value]
    if kind is dict:
        if value.keys() == {"__dict__"} and type(value["__dict__"]) is list:
            pairs = value["__dict__"]
            if all(type(pair) is list and len(pair) == 2 and type(pair[0]) is str for pair in pairs):
                return {key: decode(item, depth + 1) for key, item in pairs}
        if value.keys() == {"__float__"} and value["__float__"] in ("inf", "-inf", "nan"):
            return float(value["__float__"])
        if value.keys() == {"__array__", "shape", "data"}:
            return _array(value)
    raise BadData("something that is not plain data")


def _array(value: dict) -> np.ndarray:
    name, shape, data = value["__array__"], value["shape"], value["data"]
    if name not in DTYPES or type(shape) is not list or type(data) is not str:
        raise BadData("an array without a proper type or shape")
    if len(shape) > 8 or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
        raise BadData("an array with an impossible shape")
    try:
        raw = base64.b64decode(data, validate=True)
    except ValueError:
        raise BadData("an array whose data is damaged") from None
    if len(raw) != math.prod(shape) * np.dtype(name).itemsize:
        raise BadData("an array whose data does not fit its shape")
    return np.frombuffer(raw, dtype=name).reshape(shape).copy()


def send(channel: socket.socket, fields: dict) -> None:
    """Send one message."""
    data = json.dumps(fields).encode()
    channel.sendall(struct.pack("!I", len(data)) + data)


def receive(channel: socket.socket, deadline: float | None = None) -> dict:
    """Return the next message.

    Arguments:
        channel: a stream socket.
        deadline: when to stop waiting (``time.monotonic``), however the bytes trickle in; ``None`` waits for ever.

    Raises ``TimeoutError`` at the deadline, ``Closed`` if the other end is gone and ``BadData`` for what is no message.
    """
    size = struct.unpack("!I", _exactly(channel, 4, deadline))[0]
    if size > LARGEST_FRAME:
        raise BadData(f"a message of {size / 1e6:.0f} MB; the limit is {LARGEST_FRAME / 1e6:.0f} MB")
    data = _exactly(channel, size, deadline)
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > MOST_ITEMS:
        raise BadData(f"a message with more than {MOST_ITEMS} items")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError, MemoryError):
        raise BadData("a message that is not JSON") from None
    if type(fields) is not dict:
        raise BadData("a message that is not a dictionary")
    return fields


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        channel.settimeout(None if deadline is None else max(1e-3, deadline - time.monotonic()))
        try:
            piece = channel.recv(min(size - len(pieces), 1 << 20))
        except TimeoutError:
            raise TimeoutError("no answer in time") from None
        except OSError as error:
            raise Closed(str(error)) from None
        if not piece:
            raise Closed("the process ended")
        pieces += piece
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("no answer in time")
    return bytes(pieces)
