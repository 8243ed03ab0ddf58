"""BW0 on rank 0 starts later than it could.

A rank that is alone waits for a message from nobody.
"""

def simulate(orders, seconds, transfer):
    """For each rank (start, end) of each of its actions; None if some ranks would wait for ever."""
    ranks, ended = len(orders), {}
    times, free = [[] for _ in orders], [0.0] * len(orders)

    def arrival(rank, kind, i):
        if kind == "BW" and (rank, "F", i) not in ended:
            return None
        neighbour = rank - 1 if kind == "F" else rank + 1
        if not 0 <= neighbour < ranks:
            return transfer if kind == 'BW' else 0.0
        return ended[neighbour, kind, i] + transfer if (neighbour, kind, i) in ended else None

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while len(times[rank]) < len(order):
                kind, i = order[len(times[rank])]
                arrived = arrival(rank, kind, i)
                if arrived is None:
                    break
                start = max(free[rank], arrived)
                free[rank] = ended[rank, kind, i] = start + seconds[kind]
                times[rank].append((start, free[rank]))
                moved = True
    finished = all(len(row) == len(order) for row, order in zip(times, orders))
    return times if finished else None


def bubble(times):
    """Idle time as a share of the total time, on average over the ranks."""
    total = max(end for row in times for _, end in row)
    busy = sum(end - start for row in times for start, end in row) / len(times)
    return (total - busy) / total
