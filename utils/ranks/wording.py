"""Small pieces of the sentences that a reader sees: ranks, places in their code, calls."""
import linecache
import os
import re

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
    """ "cell line 4" or "ring.py line 12", with the source line on request. """
    if where is None:
        return "in backward"
    filename, line, _ = where
    text = f"cell line {line}" if _CELL.search(filename) else f"{os.path.basename(filename)} line {line}"
    source = linecache.getline(filename, line).strip() if with_source else ""
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
