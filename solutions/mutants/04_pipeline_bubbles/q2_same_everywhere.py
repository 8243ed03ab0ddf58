"""At F3 rank 1 has 4 micro-batches in flight.

Every rank runs as many forwards ahead as rank 0.
"""

def one_f_one_b_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): some forwards ahead, then one forward and one backward in turn."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - 1, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
            order.append(("BW", i))
        orders.append(order)
    return orders
