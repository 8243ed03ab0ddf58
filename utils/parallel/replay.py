"""What a recorded run's communication would take on a cluster, if computing took no time.

`replay` walks through every rank's calls in their order, by the α–β model of `Cluster.seconds`. A collective begins
when the last rank of its group comes; a message is received so long after both ends have come. So ranks wait for
each other as they do in the run itself, and a pipeline's bubble is part of the answer.
"""

import torch

from utils.ranks.record import Call
from utils.ranks.run import Run


def replay(run: Run, cluster) -> float:
    """Seconds on the slowest rank, from the ranks' last barrier (or from the beginning) to their last call.

    run      a recorded Run that ended well, with or without an emulated cluster: only order and sizes of its calls count
    cluster  a `utils.theory.hardware.Cluster`

    Sends do not block, as those of `utils.parallel.pipeline`. Raises ValueError when the calls do not fit together.
    """
    waiting = {record.rank: _after_last_barrier(record.calls) for record in run.records}
    clocks = dict.fromkeys(waiting, 0.0)
    on_the_way: dict[tuple, list[float]] = {}  # (from, to, tag) -> when each message was sent
    while any(waiting.values()):
        moved = [rank for rank in waiting if _advance(rank, waiting, clocks, on_the_way, cluster)]
        if not moved:
            raise ValueError("The calls of this run do not fit together: every rank waits for another one. "
                             "Replay a run that ended well.")
    return max(clocks.values())


def _advance(rank, waiting, clocks, on_the_way, cluster):
    """Do what `rank` can do next; False when it must wait for others."""
    if not waiting[rank]:
        return False
    call = waiting[rank][0]
    if call.op == "send":
        on_the_way.setdefault((rank, call.peer, call.tag), []).append(clocks[rank])
        waiting[rank].pop(0)
        return True
    if call.op == "recv":
        sent = on_the_way.get((call.peer, rank, call.tag))
        if not sent:
            return False
        clocks[rank] = max(clocks[rank], sent.pop(0)) + _seconds(call, cluster, (call.peer, rank))
        waiting[rank].pop(0)
        return True
    others = [waiting[other][0] if waiting[other] else None for other in call.ranks]
    if any(other is None or (other.op, other.ranks) != (call.op, call.ranks) for other in others):
        return False
    end = max(clocks[other] for other in call.ranks) + _seconds(call, cluster, call.ranks)
    for other in call.ranks:
        clocks[other] = end
        waiting[other].pop(0)
    return True


def _seconds(call: Call, cluster, ranks):
    n_bytes = call.elements * getattr(torch, call.dtype).itemsize if call.elements else 0
    return cluster.seconds(call.op, tuple(ranks), n_bytes)


def _after_last_barrier(calls):
    last = max((i for i, call in enumerate(calls) if call.op == "barrier"), default=-1)
    return list(calls[last + 1 :])
