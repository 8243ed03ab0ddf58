"""Small pieces of the sentences that a reader sees: ranks, places in their code, calls."""
import linecache
import os
import re

from utils.ranks.places import is_course_file
from utils.ranks.record import Call, Place

_CELL = re.compile(r"ipykernel_\d+|<ipython-input|<jupyter|^<cell")


def ranks_text(ranks) -> str:
    """
    >>> ranks_text([2]), ranks_text([0, 2, 3])
    ('rank 2', 'ranks 0, 2 and 3')
    """
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def verb(ranks, one: str, many: str) -> str:
    """The verb's form for one rank or many."""
    return one if len(ranks) == 1 else many


def place_text(where: Place | None, with_source: bool = False) -> str:
    """ "cell line 4", "ring.py line 12" or "collectives.py in _exchange", with the source line on request. """
    if where is None:
        return "in backward"
    filename, line, function = where
    if _CELL.search(filename):
        text = f"cell line {line}"
    elif is_course_file(filename):
        text = f"{os.path.basename(filename)} in {function}"
    else:
        text = f"{os.path.basename(filename)} line {line}"
    source = linecache.getline(filename, line).strip() if with_source else ""
    return f"{text}: {source}" if source else text


def frame_text(where: Place, source: str = "") -> str:
    """ "cell line 4, in hello: 1 / 0": one frame of a traceback. """
    text = place_text(where)
    if not is_course_file(where[0]):
        text += f", in {where[2]}"
    return f"{text}: {source}" if source else text


def size_text(elements: int, dtype: str) -> str:
    return f"{elements:,} {dtype} element{'s' * (elements != 1)}".replace("  ", " ")


def call_text(call: Call) -> str:
    """ "all_reduce", "send to rank 1", "recv from rank 0" or "recv from any rank". """
    if call.op == "send":
        return f"send to rank {call.peer}"
    if call.op == "recv":
        return "recv from any rank" if call.peer is None else f"recv from rank {call.peer}"
    return call.op


def group_text(ranks, world_size: int) -> str:
    return "the group of all ranks" if len(ranks) == world_size else f"the group of {ranks_text(ranks)}"
