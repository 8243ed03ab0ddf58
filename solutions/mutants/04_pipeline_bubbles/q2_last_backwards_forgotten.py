"""Rank 0 does BW5 0 times

It ends with the last forward, when some backwards are still to come.
"""

def one_f_one_b_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): some forwards ahead, then one forward and one backward in turn."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches - ahead):
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
            order.append(("BW", i))
        orders.append(order)
    return orders
