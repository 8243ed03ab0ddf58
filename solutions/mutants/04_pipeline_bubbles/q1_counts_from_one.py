"""Rank 0 has the action ('F', 8), which does not exist here.

Micro-batches count from 0.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(1, micro_batches + 1)]
    backwards = [("BW", i) for i in range(1, micro_batches + 1)]
    return [forwards + backwards for _ in range(ranks)]
