"""The ranks would wait for each other for ever.

In turn, but the backward first: the last rank begins with a backward.
"""

def one_f_one_b_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): some forwards ahead, then one forward and one backward in turn."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches):
            order.append(("BW", i))
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
        orders.append(order)
    return orders
