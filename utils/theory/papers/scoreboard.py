"""All tables, and the scoreboard: cells, exact, in band, errata, not tested, off."""

from ..arguments import one_of
from . import gpipe, korthikanti, llama3, megatron, memory_tables, narayanan, network, zero, zero_bubble
from .tables import VERDICTS

MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (zero, megatron, gpipe, narayanan, korthikanti, zero_bubble, llama3, memory_tables, network)
}

TABLES = tuple(function for module in MODULES.values() for function in module.TABLES)
"""Functions without arguments, each of which returns a Table."""


def all_tables(module=None):
    """Every Table, computed now; or only those of one of MODULES, by its name."""
    functions = TABLES if module is None else MODULES[one_of("module", module, tuple(MODULES))].TABLES
    return [function() for function in functions]


def scoreboard(tables=None):
    """The scoreboard as text, one line per table and a sum."""
    tables = all_tables() if tables is None else tables
    heads = ("paper", "table", "cells", *VERDICTS)
    lines = [
        (table.paper, table.title, len(table.cells), *(table.count(verdict) for verdict in VERDICTS))
        for table in tables
    ]
    lines.append(("all", "", *(sum(line[column] for line in lines) for column in range(2, len(heads)))))
    widths = [max(len(str(line[column])) for line in (heads, *lines)) for column in range(len(heads))]
    return "\n".join(_line(line, widths) for line in (heads, *lines))


def notes(tables=None):
    """Each table's rule, and every reason for an erratum, an untested cell or a fault, said once."""
    paragraphs = []
    for table in all_tables() if tables is None else tables:
        lines = [f"{table.paper}, {table.title}: {table.rule}"]
        if table.count("band"):
            errors = [abs(error) for error in table.errors()]
            lines.append(
                f"  band: mean {sum(errors) / len(errors):.1%}, worst {max(errors):.1%} from the printed"
            )
        reasons = {}
        for cell in table.cells:
            if cell.verdict in ("erratum", "not tested", "off"):
                reasons.setdefault((cell.verdict, cell.note), []).append(cell)
        for (verdict, note), cells in reasons.items():
            names = ", ".join(f"{cell.name} ({cell.printed})" for cell in cells[:3])
            more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
            lines.append(f"  {verdict}: {names}{more}: {note}")
        paragraphs.append("\n".join(lines))
    return "\n".join(paragraphs)


def _line(line, widths):
    texts = (
        str(value).ljust(width) if index < 2 else str(value).rjust(width)
        for index, (value, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(texts).rstrip()
