"""A published table as cells with verdicts, and the rules by which a computed number equals a printed one."""

import csv
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from importlib import resources

VERDICTS = ("exact", "band", "erratum", "not tested", "off")
"""exact       the computed number, rounded as stated, is the printed one
band        the computed number is within the stated band of a measured one
erratum     the printed value contradicts the paper's own formula or other cells; the note says how
not tested  nothing to compute it from; the note says why
off         none of these: a fault
"""


@dataclass(frozen=True)
class Cell:
    """One printed value (as text), what was computed for it, and the verdict."""

    name: str
    printed: str
    computed: float | None
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a paper. rule: what "exact" and "band" mean here."""

    paper: str
    title: str
    rule: str
    cells: tuple

    def count(self, verdict):
        """Cells with this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    def errors(self):
        """Relative error of every cell with a band, computed over printed less 1."""
        return [cell.computed / float(cell.printed) - 1 for cell in self.cells if cell.verdict == "band"]


def read_table(name):
    """Rows of ``data/<name>.csv`` as dicts of text; its first line, the source, is left out."""
    text = (resources.files(__package__) / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()[1:]))


def source_of(name):
    """The source that ``data/<name>.csv`` states in its first line."""
    text = (resources.files(__package__) / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# ")


def rounded(value, like):
    """`value` rounded half up to the decimals of the printed text `like`."""
    return _quantize(value, like, ROUND_HALF_UP)


def truncated(value, like):
    """`value` cut off after the decimals of the printed text `like`."""
    return _quantize(value, like, ROUND_DOWN)


def exact(name, printed, computed, allow_truncation=False):
    """A Cell that is exact when `computed` rounds half up (or, if allowed, truncates) to `printed`."""
    if rounded(computed, printed) == Decimal(printed):
        return Cell(name, printed, computed, "exact")
    if allow_truncation and truncated(computed, printed) == Decimal(printed):
        return Cell(name, printed, computed, "exact", "truncated, not rounded")
    return Cell(name, printed, computed, "off")


def interval(name, printed, low, high):
    """A Cell that is exact when some value from `low` to `high` could have been printed as `printed`.

    For numbers that the paper derives from other printed, hence rounded, numbers.
    """
    half = half_unit(printed)
    low, high = sorted((low, high))
    reaches = float(printed) - half <= high and low <= float(printed) + half
    return Cell(name, printed, (low + high) / 2, "exact" if reaches else "off")


def within(name, printed, computed, relative=None, absolute=None):
    """A Cell that is in the band when `computed` is no further from `printed` than stated."""
    distance = abs(computed - float(printed))
    allowed = absolute if relative is None else relative * abs(float(printed))
    return Cell(name, printed, computed, "band" if distance <= allowed else "off")


def erratum(name, printed, computed, note):
    """A Cell whose printed value is shown to be inconsistent; "off" if it agrees after all."""
    agrees = rounded(computed, printed) == Decimal(printed)
    return Cell(name, printed, computed, "off" if agrees else "erratum", note)


def not_tested(name, printed, note):
    """A Cell that nothing here can compute."""
    return Cell(name, printed, None, "not tested", note)


def half_unit(printed):
    """Half a unit of the last printed decimal: how much rounding may have hidden."""
    return 0.5 * 10.0 ** Decimal(printed).as_tuple().exponent


def _quantize(value, like, how):
    # Twelve digits first, so that 31.25 stays 31.25 and is not 31.249999999999996.
    digits = Decimal(f"{value:.12g}")
    return digits.quantize(Decimal(1).scaleb(Decimal(like).as_tuple().exponent), rounding=how)
