"""The files that a rank shares with the notebook, so that nothing is lost however the rank ends."""
from typing import NamedTuple


class Files(NamedTuple):
    """File descriptors; see `utils.ranks.scratch` for what they are."""
    job: int      # what to run: one for all ranks
    store: int    # torch's FileStore, through which the ranks find each other: one for all ranks
    output: int   # what the rank prints (its descriptors 1 and 2)
    record: int   # its communication calls and spans, as they happen
    outcome: int  # its result, or its error
    stack: int    # where its Python code stands, on request or after a crash
