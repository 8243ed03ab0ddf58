"""Print the scoreboard of the published tables; the exit status is 1 when any cell is off."""

import argparse

from .scoreboard import MODULES, all_tables, notes, scoreboard


def main():
    """Read the arguments, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.theory.papers", description=__doc__)
    parser.add_argument("module", nargs="?", choices=tuple(MODULES), help="only the tables of this module")
    parser.add_argument("--notes", action="store_true", help="also print each table's rule and the reasons")
    arguments = parser.parse_args()
    tables = all_tables(arguments.module)
    print(scoreboard(tables))
    if arguments.notes:
        print()
        print(notes(tables))
    return int(any(table.count("off") for table in tables))


if __name__ == "__main__":
    raise SystemExit(main())
