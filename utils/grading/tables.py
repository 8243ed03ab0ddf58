"""Read the tables that an instructor gives: the roster, the overrides."""

from __future__ import annotations

import csv
from pathlib import Path

from utils.grading.errors import GradingError


def read_rows(path: str | Path, wanted: str) -> list[list[str]]:
    """Return the rows of a CSV file in UTF-8.

    Arguments:
        path: the file.
        wanted: what it should hold, for the message.

    Raises ``GradingError`` if it cannot be read.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return list(csv.reader(file))
    except OSError as error:
        problem = error.strerror
    except UnicodeDecodeError:
        problem = "not UTF-8 text; a spreadsheet calls this format 'CSV UTF-8'"
    except csv.Error as error:
        problem = f"not a CSV file ({error})"
    raise GradingError(f"{path}: {problem}. Give a CSV file with {wanted}.")
