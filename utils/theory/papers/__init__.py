"""The published tables, recomputed: ``python -m utils.theory.papers`` prints the scoreboard.

A module per paper. Each has functions that return a Table: the printed cells beside what `utils.theory`
computes, each with its verdict. The printed numbers are in ``data/*.csv``, whose first line is the source.
"""

from .scoreboard import TABLES, all_tables, scoreboard
from .tables import Cell, Table, read_table

__all__ = ["TABLES", "Cell", "Table", "all_tables", "read_table", "scoreboard"]
