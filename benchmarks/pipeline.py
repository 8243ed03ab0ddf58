"""The bubble of a pipeline on real ranks whose stages sleep, against the formula.

    python benchmarks/pipeline.py [milliseconds of one unit]

Four ranks, T_F = T_B = T_W = one unit, 60 ms by default. Formula and measurement are shares of the step's time; the last
column is their difference in percentage points. A busy machine lets ranks oversleep, so look at the load as well.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from utils import launch
from utils.parallel.pipeline_record import recorded, sleep_through
from utils.theory.pipeline import bubble_time, build, lower_bound_time

P, CHUNKS, NAMES = 4, 2, ("gpipe", "1f1b", "interleaved 1f1b", "zb-h1")


def main(milliseconds=60):
    unit = milliseconds / 1e3
    print(f"p = {P}, one unit = {milliseconds} ms, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'schedule':18} {'m':>3} {'formula':>8} {'measured':>9} {'points':>7}")
    for name in NAMES:
        for m in (4, 8, 16):
            schedule = build(name, P, m)
            idle = bubble_time(name, P, m, chunks=CHUNKS)
            formula = idle / (idle + lower_bound_time(schedule))
            measured = recorded(launch(sleep_through, schedule, unit, world_size=P), schedule, unit).bubble_rate
            print(f"{name:18} {m:3} {100 * formula:7.1f}% {100 * measured:8.1f}% {100 * (measured - formula):+7.1f}", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
