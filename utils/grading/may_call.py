"""What a question may be allowed to call.  Both sides of the verify stage use this module; it needs nothing else."""

from __future__ import annotations

SEND = "send"
NEW_GROUP = "new_group"
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
EVERYTHING = (SEND, NEW_GROUP, *COLLECTIVES)
_IN_WORDS = {
    SEND: "send and recv (also isend, irecv, batch_isend_irecv)",
    NEW_GROUP: "new_group (also DeviceMesh)",
}


def missing(op: str, allowed: tuple[str, ...]) -> str | None:
    """Return the word that ``allowed`` lacks for a call of ``op``, or ``None``.

    >>> missing("recv", ("send",)), missing("all_reduce", ("send",))
    (None, 'all_reduce')
    """
    word = SEND if op in ("send", "recv") else op
    return None if word in allowed else word


def absent(op: str, allowed: tuple[str, ...]) -> str:
    """Return the sentence for a call that a question does not allow.

    >>> absent("all_reduce", ("send", "broadcast"))
    "'all_reduce' is not part of this exercise. It may call: send and recv (also isend, irecv, batch_isend_irecv), broadcast."
    """
    may = ", ".join(_IN_WORDS.get(word, word) for word in allowed)
    return f"'{op}' is not part of this exercise. It may call: {may or 'nothing that communicates'}."
