"""How long a widget takes to redraw after a control moved: median and spread per widget, in milliseconds.

The last column but one is the median of the processor's time, which stays the same on a busy machine.

    python benchmarks/widgets.py [redraws]

A redraw is everything that the kernel does: theory, matplotlib, PNG, and handing the picture to the front end.
"""
import statistics
import sys
import time
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from utils.widgets.all_reduce import compare_algorithms, ring_steps
from utils.widgets.all_reduce_algorithms import SIZES, WORLD_SIZES
from utils.widgets.pipeline import explore_schedules
from utils.widgets.tensor import cut_matrices, layer_time
from utils.widgets.tensor_time import HIDDENS, TENSORS
from utils.widgets.zero import SIZES as MODEL_SIZES
from utils.widgets.zero import plan_memory

WIDGETS = [
    ("ring_steps, N = 2", ring_steps(2), "step", range(3)),
    ("ring_steps, N = 4", ring_steps(4), "step", range(7)),
    ("ring_steps, N = 8", ring_steps(8), "step", range(15)),
    ("compare_algorithms, message", compare_algorithms(), "n_bytes", SIZES),
    ("compare_algorithms, N", compare_algorithms(), "world_size", WORLD_SIZES),
    ("plan_memory, Ψ", plan_memory(), "parameters", MODEL_SIZES),
    ("plan_memory, stage", plan_memory(), "stage", range(4)),
    ("cut_matrices, cut of A", cut_matrices(), "cut_a", ("rows", "columns")),
    ("cut_matrices, wider, t", cut_matrices(example="wider", activation="gelu"), "tensor", (1, 2, 4)),
    ("layer_time, h", layer_time(), "hidden", HIDDENS),
    ("layer_time, t", layer_time(), "tensor", TENSORS),
    ("explore_schedules, t", explore_schedules(), "time", range(34)),
    ("explore_schedules, m", explore_schedules(), "micro_batches", range(1, 33)),
    ("explore_schedules, T_F", explore_schedules("zb-h1", "zb-h2"), "forward", [0.25 * each for each in range(17)]),
    ("... p = 8, m = 32, v = 4, t", explore_schedules("interleaved 1f1b", "zb-v", 8, 32, 4), "time", range(102)),
]


def redraw_milliseconds(frame, name, values, redraws):
    """Milliseconds of `redraws` redraws while the control `name` takes one value after the other: by the clock, of CPU."""
    times = []
    for value in islice(cycle(values), redraws):
        control = getattr(frame.controls, name)
        if control.value == value:
            continue
        begin = time.perf_counter(), time.process_time()
        control.value = value
        times.append((1e3 * (time.perf_counter() - begin[0]), 1e3 * (time.process_time() - begin[1])))
    return zip(*times)


def main(redraws=60):
    print(f"{'widget':30} {'median':>8} {'10 %':>8} {'90 %':>8} {'CPU':>8} {'PNG':>8}")
    for title, frame, name, values in WIDGETS:
        times, cpu_times = redraw_milliseconds(frame, name, values, redraws)
        tenths = statistics.quantiles(times, n=10)
        print(f"{title:30} {statistics.median(times):5.0f} ms {tenths[0]:5.0f} ms {tenths[-1]:5.0f} ms "
              f"{statistics.median(cpu_times):5.0f} ms "
              f"{len(frame.picture.value) / 1000:5.0f} KB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
