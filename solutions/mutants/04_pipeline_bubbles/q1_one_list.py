"""An order has one list of actions for each rank.

One list for all ranks.
"""

def gpipe_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): all forwards, then all backwards."""
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("BW", i) for i in range(micro_batches)]
    return forwards + backwards
