"""Rank 0 does BW0 0 times

The first rank sends no gradient on, but its own weights need one.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("BW", i) for i in range(micro_batches)]
    return [forwards + (backwards if rank else []) for rank in range(ranks)]
