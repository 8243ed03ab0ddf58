"""What each communication call moves, by the definition of the collective and not by any implementation of it.

`S` is the size of the full tensor: all_reduce's tensor, all_gather's output, reduce_scatter's and all_to_all's
input, the root's whole tensor elsewhere. Per rank, in a group of n ranks:

================  ===============================  ==========================================================
call              sent / received                  why
================  ===============================  ==========================================================
all_reduce        2 (n-1)/n S / the same           the least that a bandwidth-optimal algorithm can do
reduce_scatter    (n-1)/n S / the same             every rank hands out all but its own part
all_gather        (n-1)/n S / the same             every rank receives all but its own part
all_to_all        all parts but the own            uneven parts are counted as they are
broadcast         root (n-1) S / others receive S  counted flat; trees share the root's work among the ranks
reduce            others send S / root (n-1) S     the same, the other way round
gather            others S/n / root (n-1)/n S      S is what the root holds in the end
scatter           root (n-1)/n S / others S/n      S is what the root held before
send, recv        S / S
barrier           0 / 0
================  ===============================  ==========================================================
"""


def bytes_by_definition(op: str, n_bytes: float, group_size: int, is_root: bool = False,
                        parts: tuple[float, float] | None = None) -> tuple[float, float]:
    """Return (bytes sent, bytes received) by one rank for one call.

    `n_bytes` is S above; `parts` gives all_to_all's (sent, received) bytes without the rank's own part when the
    parts are uneven. Raises KeyError for a call that the table does not hold.

    >>> bytes_by_definition("all_reduce", 4000, group_size=4)
    (6000.0, 6000.0)
    """
    n, others = group_size, group_size - 1
    share = n_bytes / n * others
    if op == "all_to_all" and parts is not None:
        return parts
    if op in ("broadcast", "reduce", "gather", "scatter"):
        flat = n_bytes if op in ("broadcast", "reduce") else n_bytes / n
        away_from_root = op in ("broadcast", "scatter")
        root_side, other_side = (flat * others, 0.0), (0.0, flat if n > 1 else 0.0)
        if not away_from_root:
            root_side, other_side = root_side[::-1], other_side[::-1]
        return root_side if is_root else other_side
    return {
        "all_reduce": (2 * share, 2 * share),
        "reduce_scatter": (share, share),
        "all_gather": (share, share),
        "all_to_all": (share, share),
        "send": (float(n_bytes), 0.0),
        "recv": (0.0, float(n_bytes)),
        "barrier": (0.0, 0.0),
    }[op]
