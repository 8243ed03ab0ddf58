"""Read what a rank claims to call: a frame of plain data becomes a :class:`Call`, or an error, before anything uses it."""

from __future__ import annotations

import base64
import time

from utils.grading import plain_data
from utils.grading.may_call import COLLECTIVES, NEW_GROUP, absent, missing
from utils.grading.messages import BFLOAT16, REDUCE, WORLD, Call, StudentError, element_bytes
from utils.grading.plain_data import BadData

_NUMBERS = ("number", "peer", "tag", "elements", "root")
_LISTS = ("ranks", "parts", "room")
_MOST_ELEMENTS = 1 << 40


def call_from(frame: dict, rank: int, world_size: int, allowed: tuple[str, ...], clock: int) -> Call:
    """Return the call that ``frame`` describes.

    Arguments:
        frame: what arrived; its ``peer`` and ``root`` count within the call's group.
        rank: whose channel it came from.
        world_size: how many ranks there are.
        allowed: what the question may call; see :mod:`utils.grading.may_call`.
        clock: how many messages had to come before it.

    Raises ``BadData`` for what is no call and ``StudentError`` for one that is not allowed or makes no sense.
    """
    _check_types(frame)
    op, ranks = frame["op"], tuple(frame["ranks"])
    _check_group(frame["group"], ranks, rank, world_size)
    _check_allowed(op, frame["group"], rank, allowed)
    peer, root = _check_partners(op, frame["peer"], frame["root"], ranks, rank)
    data = _data(frame, rank, ranks, root)
    if op == "all_to_all":
        _check_parts(frame, len(ranks))
    return Call(
        rank=rank,
        number=frame["number"],
        op=op,
        peer=peer,
        tag=frame["tag"],
        dtype=frame["dtype"],
        elements=frame["elements"],
        root=root,
        reduce=frame["reduce"],
        data=data,
        clock=clock,
        start=time.monotonic(),
        group=frame["group"],
        ranks=ranks,
        parts=tuple(frame["parts"]),
        room=tuple(frame["room"]),
    )


def _check_types(frame: dict) -> None:
    lists = [frame.get(name) for name in _LISTS]
    if not (
        all(type(frame.get(name)) is int for name in _NUMBERS)
        and all(type(frame.get(name)) is str for name in ("data", "group", "dtype", "reduce"))
        and all(type(value) is list and len(value) <= 1024 for value in lists)
        and all(type(item) is int and 0 <= item < _MOST_ELEMENTS for value in lists for item in value)
        and frame["dtype"] in (*plain_data.DTYPES, BFLOAT16)
        and frame["reduce"] in REDUCE
        and 0 <= frame["elements"] < _MOST_ELEMENTS
        and len(frame["group"]) <= 200
    ):
        raise BadData("a message that is not in order")


def _check_group(group: str, ranks: tuple[int, ...], rank: int, world_size: int) -> None:
    strangers = not ranks or max(ranks) >= world_size or len(set(ranks)) < len(ranks) or rank not in ranks
    if strangers or (group == WORLD and ranks != tuple(range(world_size))):
        raise BadData("a message in a group that it does not belong to")


def _check_allowed(op: str, group: str, rank: int, allowed: tuple[str, ...]) -> None:
    for name in (op,) if group == WORLD else (op, NEW_GROUP):
        if missing(name, allowed):
            raise StudentError(f"rank {rank}: {absent(name, allowed)}", "raised", rank)


def _check_partners(op: str, peer: int, root: int, ranks: tuple[int, ...], rank: int) -> tuple[int, int]:
    """Return the peer (-1 for any) and the root as global ranks."""
    size, others = len(ranks), "the others are" if len(ranks) > 1 else "there is only"
    if op in COLLECTIVES:
        if not 0 <= root < size:
            raise StudentError(
                f"rank {rank}: {op} with root {root}; there are ranks 0 to {size - 1}", "raised", rank
            )
        return -1, ranks[root]
    if not -1 <= peer < size or (peer >= 0 and ranks[peer] == rank) or (op, peer) == ("send", -1):
        raise StudentError(f"rank {rank}: {op} with rank {peer}; {others} 0 to {size - 1}", "raised", rank)
    return (ranks[peer] if peer >= 0 else -1), ranks[0]


def _data(frame: dict, rank: int, ranks: tuple[int, ...], root: int) -> bytes:
    op, elements = frame["op"], frame["elements"]
    try:
        raw = base64.b64decode(frame["data"], validate=True)
    except ValueError:
        raise BadData("a message whose data is damaged") from None
    parts = len(ranks) if op in ("all_gather", "gather") else 1
    empty = op == "recv" or (op == "scatter" and root != rank)
    if len(raw) * parts != (0 if empty else elements * element_bytes(frame["dtype"])):
        raise BadData("a message whose data does not fit its size")
    if op in ("reduce_scatter", "scatter") and elements % len(ranks):
        raise StudentError(
            f"rank {rank}: {op} of {elements} elements over {len(ranks)} ranks; they must divide it",
            "raised",
            rank,
        )
    return raw


def _check_parts(frame: dict, size: int) -> None:
    parts, room = frame["parts"], frame["room"]
    if len(parts) != size or len(room) != size or sum(parts) != frame["elements"]:
        raise BadData("an all_to_all whose parts do not fit its size")
