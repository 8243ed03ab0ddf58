"""Rank 0 does BW7 0 times

The last micro-batch is forgotten.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(micro_batches - 1)]
    backwards = [("BW", i) for i in range(micro_batches - 1)]
    return [forwards + backwards for _ in range(ranks)]
