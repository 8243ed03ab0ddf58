"""At F4 rank 0 has 5 micro-batches in flight.

p − r forwards ahead: p − r + 1 are in flight.
"""

def one_f_one_b_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch): some forwards ahead, then one forward and one backward in turn."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
            order.append(("BW", i))
        orders.append(order)
    return orders
