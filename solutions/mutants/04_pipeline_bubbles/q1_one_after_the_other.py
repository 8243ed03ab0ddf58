"""Rank 0 does BW0 before its last forward.

Each micro-batch goes forward and back before the next one starts: one rank works, the others wait.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    return [[(kind, i) for i in range(micro_batches) for kind in ("F", "BW")] for _ in range(ranks)]
