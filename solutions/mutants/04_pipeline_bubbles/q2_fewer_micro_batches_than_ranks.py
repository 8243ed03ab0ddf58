"""has the action ('F', 2), which does not exist here.

More forwards ahead than there are micro-batches.
"""

def one_f_one_b_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): some forwards ahead, then one forward and one backward in turn."""
    orders = []
    for rank in range(ranks):
        ahead = ranks - 1 - rank
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
            order.append(("BW", i))
        orders.append(order)
    return orders
