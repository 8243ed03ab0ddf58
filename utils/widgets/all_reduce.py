"""Lesson 01's widgets: walk through a ring all-reduce, and compare the ways to all-reduce.

    ring_steps()            a widget; draw_ring_step(4, 1000, step=3) is its picture alone
    compare_algorithms()    a widget; draw_algorithms(4, 1_000_000, "NVLink 3", "ring") is its picture alone
"""

from utils.widgets.all_reduce_algorithms import (
    LINKS,
    algorithms_sentence,
    compare_algorithms,
    draw_algorithms,
    tree_wins_below_bytes,
)
from utils.widgets.all_reduce_ring import (
    draw_ring_step,
    ring_contents,
    ring_sent_so_far,
    ring_step_sentence,
    ring_steps,
)
from utils.widgets.all_reduce_run import AllReduceRun, measure_all_reduce

__all__ = [
    "LINKS",
    "AllReduceRun",
    "algorithms_sentence",
    "compare_algorithms",
    "draw_algorithms",
    "draw_ring_step",
    "measure_all_reduce",
    "ring_contents",
    "ring_sent_so_far",
    "ring_step_sentence",
    "ring_steps",
    "tree_wins_below_bytes",
]
