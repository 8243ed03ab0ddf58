"""The bubble of a pipeline on real ranks whose stages sleep, against the formula.

    python -m benchmarks.pipeline [--quick]
"""

import statistics
from collections.abc import Iterator

from benchmarks.measure import SPREAD, Table, main, spread
from utils.theory.pipeline import bubble_time, build, lower_bound_time

P, CHUNKS, NAMES = 4, 2, ("gpipe", "1f1b", "interleaved 1f1b", "zb-h1")


def tables(quick: bool = False, milliseconds: float = 40) -> Iterator[Table]:
    """A row for each schedule and number of micro-batches."""
    from utils import launch
    from utils.parallel.pipeline_record import recorded, sleep_through

    unit, runs, rows = (5 if quick else milliseconds) / 1e3, 1 if quick else 3, []
    for name in NAMES:
        for m in (4,) if quick else (4, 16):
            schedule = build(name, P, m)
            idle = bubble_time(name, P, m, chunks=CHUNKS)
            formula = idle / (idle + lower_bound_time(schedule))
            measured = [recorded(launch(sleep_through, schedule, unit, world_size=P), schedule, unit).bubble_rate
                        for _ in range(runs)]
            points = 100 * (statistics.median(measured) - formula)
            rows.append((f"{name}, m = {m}", f"{100 * formula:.1f} %", spread(measured, "%", 100), f"{points:+.1f}", runs))
    note = (f"p = {P} ranks, T_F = T_B = T_W = one unit of {1e3 * unit:.0f} ms. Formula and measurement are shares of the step's "
            f"time; their difference is in percentage points. A busy machine lets ranks oversleep. {SPREAD}")
    yield Table("Pipeline: the bubble of real ranks that sleep", ("schedule", "formula", "measured", "points", "n"), rows, note)


if __name__ == "__main__":
    main(tables, __doc__)
