"""What every benchmark needs: ways measured in turns, medians with quartiles, ratios of pairs, tables in Markdown."""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

SPREAD = "Medians; in brackets the quartiles."


@dataclass(frozen=True)
class Table:
    """Rows of texts or numbers under `columns`, with a title above and sentences that say how to read them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence]
    note: str = ""

    def markdown(self) -> str:
        """The table as Markdown; the first column stands left, the others right."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
        return "\n\n".join(part for part in (f"### {self.title}", self.note, table) if part)


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds that one call takes by the clock."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def wall_and_cpu(function: Callable[[], object], times: int) -> tuple[list[float], list[float]]:
    """Seconds by the clock, and of this process's processor time, of each of `times` calls."""
    wall, cpu = [], []
    for _ in range(times):
        begin = time.process_time()
        wall.append(seconds_of(function))
        cpu.append(time.process_time() - begin)
    return wall, cpu


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int,
             before: Callable[[str], object] = lambda name: None) -> dict[str, list[float]]:
    """Measure every way once per round: `{way: its seconds, round by round}`.

    A machine that is busy for a while is then busy for all of them. The order turns round from one round to the next,
    so that none always comes after the same other one. `before` gets the way's name ahead of each measurement.
    """
    taken = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            before(name)
            taken[name].append(seconds_of(ways[name]))
    return taken


# ---- numbers as text ----------------------------------------------------------------------------------------------

def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile; of a single value, that value three times."""
    values = list(values)
    if len(values) == 1:
        return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def spread(values: Iterable[float], unit: str = "", factor: float = 1) -> str:
    """Median and quartiles of `factor` times the values, with three digits: `12.3 ms (11.9 – 14.0)`."""
    low, median, high = (digits(factor * value) for value in quartiles(values))
    return f"{median} {unit} ({low} – {high})".replace("  ", " ")


def spread_of_seconds(values: Sequence[float]) -> str:
    """Median and quartiles in the unit that fits: s, ms or µs."""
    median = statistics.median(values)
    unit, factor = ("s", 1) if median >= 1 else ("ms", 1e3) if median >= 1e-3 else ("µs", 1e6)
    return spread(values, unit, factor)


def ratios(values: Sequence[float], base: Sequence[float]) -> str:
    """How many times as long as `base`: median and quartiles of the ratios, each of one round's pair."""
    return spread(value / other for value, other in zip(values, base))


def digits(value: float) -> str:
    """A number with three digits that count: 0.0123, 1.23, 12.3, 1,234."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


# ---- one benchmark as a command -----------------------------------------------------------------------------------

def main(tables: Callable[..., Iterable[Table]], description: str) -> None:
    """Run one benchmark from the command line: print each of its tables as soon as it is there."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it works, not for figures")
    for table in tables(quick=parser.parse_args().quick):
        print(table.markdown(), end="\n\n", flush=True)
