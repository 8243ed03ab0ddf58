"""Pipeline parallelism: schedules as data, a simulator, and the closed forms of the papers.

>>> simulate(one_f_one_b(4, 8)).bubble_over_ideal          # (p − 1)/m
0.375
"""

from .actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    check_complete,
)
from .arguments import divides, non_negative, one_of, whole_number
from .generators import (
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from .simulation import (
    COST_NAMES,
    UNIT_COSTS,
    Costs,
    Simulation,
    TimedAction,
    cost_of_stages,
    lower_bound_time,
    simulate,
)

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "COST_NAMES",
    "FORWARD",
    "SCHEDULES",
    "UNIT_COSTS",
    "Action",
    "Costs",
    "Schedule",
    "Simulation",
    "TimedAction",
    "bubble_fraction",
    "bubble_over_ideal",
    "bubble_time",
    "build",
    "check_complete",
    "cost_of_stages",
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "in_flight_micro_batches",
    "interleaved_one_f_one_b",
    "looped_bfs",
    "lower_bound_time",
    "naive",
    "one_f_one_b",
    "pipeline_speedup",
    "simulate",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

SCHEDULES = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved 1f1b": interleaved_one_f_one_b,
    "looped bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
}
"""Generators by name."""

LOOPED = ("interleaved 1f1b", "looped bfs")


def build(name, pipeline, micro_batches, chunks=None):
    """The schedule called `name` for p ranks and m micro-batches.

    chunks: model chunks per rank, v; only for "interleaved 1f1b" and "looped bfs" (default 2).
    """
    generator = SCHEDULES[one_of("name", name, tuple(SCHEDULES))]
    if chunks is not None:
        whole_number("chunks", chunks)
    if name in LOOPED:
        return generator(pipeline, micro_batches, 2 if chunks is None else chunks)
    return generator(pipeline, micro_batches)


# Closed forms


def bubble_time(name, pipeline, micro_batches, costs=UNIT_COSTS, chunks=1):
    """Idle time of a rank by the papers' formulas, communication left out; T_F, T_B, T_W from `costs`.

    naive              m(p − 1)(T_F + T_B + T_W)
    gpipe, 1f1b        (p − 1)(T_F + T_B + T_W)
    interleaved, bfs   (p − 1)(T_F + T_B + T_W)/v
    zb-h1              (p − 1)(T_F + T_B − T_W)            Zero Bubble, table 2
    zb-h2              (p − 1)(T_F + T_B − 2T_W)           never below 0
    zb-v               0                                   when T_F = T_B = T_W
    dualpipe(-v)       (p/2 − 1)(F&B + B − 3W) B = T_B + T_W; for dualpipe-v p ranks
                       are 2p stages, and a chunk is half a rank: (p − 1)(F&B + B − 3W)/2
    """
    p, m = whole_number("pipeline", pipeline), whole_number("micro_batches", micro_batches)
    v = whole_number("chunks", chunks)
    one_of("name", name, tuple(SCHEDULES))
    f, b, w = (non_negative(each, getattr(costs, each)) for each in COST_NAMES)
    full = b + w
    pair = f + full if costs.forward_and_backward is None else costs.forward_and_backward
    return {
        "naive": m * (p - 1) * (f + full),
        "gpipe": (p - 1) * (f + full),
        "1f1b": (p - 1) * (f + full),
        "interleaved 1f1b": (p - 1) * (f + full) / v,
        "looped bfs": (p - 1) * (f + full) / v,
        "zb-h1": (p - 1) * (f + b - w),
        "zb-h2": max(0, (p - 1) * (f + b - 2 * w)),
        "zb-v": 0,
        "dualpipe": (p / 2 - 1) * (pair + full - 3 * w),
        "dualpipe-v": (p - 1) * (pair + full - 3 * w) / 2,
    }[name]


def bubble_over_ideal(pipeline, micro_batches, chunks=1):
    """Idle time against the work alone: (p − 1)/(vm), Narayanan et al. 2021; in Llama 3, (PP − 1)/(V·M)."""
    p, m = whole_number("pipeline", pipeline), whole_number("micro_batches", micro_batches)
    return (p - 1) / (whole_number("chunks", chunks) * m)


def bubble_fraction(pipeline, micro_batches, chunks=1):
    """Idle time against all of the time: (K − 1)/(M + K − 1) for one chunk, GPipe section 2.3.

    >>> round(bubble_fraction(4, 8), 3), bubble_over_ideal(4, 8)
    (0.273, 0.375)
    """
    over_ideal = bubble_over_ideal(pipeline, micro_batches, chunks)
    return over_ideal / (1 + over_ideal)


def pipeline_speedup(pipeline, micro_batches):
    """Times as fast as one device that holds all stages: KM/(M + K − 1) (equal stages, no communication)."""
    return pipeline * (1 - bubble_fraction(pipeline, micro_batches))


def in_flight_micro_batches(name, pipeline, micro_batches, rank=0, chunks=1):
    """Micro-batches whose activations rank `rank` holds at its peak, in units of the rank's layers.

    naive 1, gpipe and bfs m; 1f1b and zb-h1 min(m, p − r); zb-h2 min(m, 2(p − r) − 1); zb-v and dualpipe-v
    as simulated for the first rank, p and p + 1/2; dualpipe p + 1. Interleaved 1F1B: p + (p − 1)/v on the
    first rank (Korthikanti et al. 2022), 2/v fewer on each next one.
    """
    p, m = whole_number("pipeline", pipeline), whole_number("micro_batches", micro_batches)
    r = whole_number("rank", rank, minimum=0, maximum=p - 1)
    v = whole_number("chunks", chunks)
    one_of("name", name, tuple(SCHEDULES))
    if name == "interleaved 1f1b":
        divides("pipeline", p, "micro_batches", m)
        return min(m, (2 * (p - 1 - r) + (v - 1) * p + 1) / v)
    return {
        "naive": 1,
        "gpipe": m,
        "looped bfs": m,
        "1f1b": min(m, p - r),
        "zb-h1": min(m, p - r),
        "zb-h2": min(m, 2 * (p - r) - 1),
        "zb-v": min(m, p),
        "dualpipe": p + 1,
        "dualpipe-v": p + 0.5,
    }[name]
