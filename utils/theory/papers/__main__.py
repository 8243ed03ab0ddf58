"""Print the scoreboard; with --notes also why cells are errata, in a band, or not tested."""

import argparse

from .scoreboard import all_tables, notes, scoreboard

parser = argparse.ArgumentParser(prog="python -m utils.theory.papers", description=__doc__)
parser.add_argument("--notes", action="store_true", help="also print each table's rule and the reasons")
arguments = parser.parse_args()

tables = all_tables()
print(scoreboard(tables))
if arguments.notes:
    print()
    print(notes(tables))
raise SystemExit(any(table.count("off") for table in tables))
