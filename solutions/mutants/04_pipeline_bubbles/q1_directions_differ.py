"""all ranks take the micro-batches in one order, forward; and in one order, backward

Every second rank goes back from the last micro-batch to the first: it waits for what its neighbour does last.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("BW", i) for i in range(micro_batches)]
    return [forwards + (backwards[::-1] if rank % 2 else backwards) for rank in range(ranks)]
