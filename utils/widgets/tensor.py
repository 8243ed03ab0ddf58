"""Lesson 03's widgets: cut a pair of matrices by hand, and see what a cut layer costs over a link.

    cut_matrices()          a widget; draw_cut("columns", "rows", tensor=2) is its picture alone
    layer_time()            a widget; draw_layer_time(link="NVLink 3") is its picture alone
"""

from utils.widgets.tensor_cut import EXAMPLES, cut_matrices, cut_sentence, draw_cut
from utils.widgets.tensor_run import CutRun, measure_cut
from utils.widgets.tensor_time import (
    LINK_NAMES,
    draw_layer_time,
    layer_time,
    layer_time_sentence,
    weak_scaling,
)

__all__ = [
    "EXAMPLES",
    "LINK_NAMES",
    "CutRun",
    "cut_matrices",
    "cut_sentence",
    "draw_cut",
    "draw_layer_time",
    "layer_time",
    "layer_time_sentence",
    "measure_cut",
    "weak_scaling",
]
