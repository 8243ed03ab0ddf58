"""How long a widget takes to redraw after a control moved.

    python -m benchmarks.widgets [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.measure import SPREAD, Table, main, spread_of_seconds, wall_and_cpu
from utils.widgets.frame import Frame

NOTE = f"""\
A redraw is everything that the kernel does after a control moved: theory, matplotlib, PNG, and handing the picture to the
front end. The planner remembers plans: a *new* one is computed, an *old* one only drawn. {SPREAD}"""


@dataclass(frozen=True)
class Move:
    """A control of a widget and the values that it takes one after the other."""

    title: str
    frame: Frame
    control: str
    values: Sequence
    before: Callable[[], None] = lambda: None  # called before each move
    again: bool = False                        # every value has been shown before


def moves() -> list[Move]:
    """Of every widget at least one control."""
    from utils.widgets.all_reduce import compare_algorithms, ring_steps
    from utils.widgets.all_reduce_algorithms import SIZES, WORLD_SIZES
    from utils.widgets.layout import find_plan, plan_layouts
    from utils.widgets.pipeline import explore_schedules
    from utils.widgets.tensor import cut_matrices, layer_time
    from utils.widgets.tensor_time import HIDDENS, TENSORS
    from utils.widgets.zero import SIZES as MODEL_SIZES
    from utils.widgets.zero import plan_memory

    gpus = (512, 1024, 1536, 2048, 3072)
    quarters, moments = [0.25 * each for each in range(17)], [each / 40 for each in range(40)]
    return [
        Move("ring_steps, N = 2", ring_steps(2), "step", range(3)),
        Move("ring_steps, N = 4", ring_steps(4), "step", range(7)),
        Move("ring_steps, N = 8", ring_steps(8), "step", range(15)),
        Move("compare_algorithms, message", compare_algorithms(), "n_bytes", SIZES),
        Move("compare_algorithms, N", compare_algorithms(), "world_size", WORLD_SIZES),
        Move("plan_memory, Ψ", plan_memory(), "parameters", MODEL_SIZES),
        Move("plan_memory, stage", plan_memory(), "stage", range(4)),
        Move("cut_matrices, cut of A", cut_matrices(), "cut_a", ("rows", "columns")),
        Move("cut_matrices, wider, t", cut_matrices(example="wider", activation="gelu"), "tensor", (1, 2, 4)),
        Move("layer_time, h", layer_time(), "hidden", HIDDENS),
        Move("layer_time, t", layer_time(), "tensor", TENSORS),
        Move("explore_schedules, t", explore_schedules(), "moment", moments),
        Move("explore_schedules, m", explore_schedules(), "micro_batches", range(1, 33)),
        Move("explore_schedules, T_F", explore_schedules("zb-h1", "zb-h2"), "forward", quarters),
        Move("... p = 8, m = 32, v = 4, t", explore_schedules("interleaved 1f1b", "zb-v", 8, 32, 4), "moment", moments),
        Move("plan_layouts, GPUs, new plans", plan_layouts(), "gpus", gpus, find_plan.cache_clear),
        Move("plan_layouts, GPUs, old plans", plan_layouts(), "gpus", gpus, again=True),
        Move("... all methods, GPUs, new plans", plan_layouts(methods="all"), "gpus", gpus, find_plan.cache_clear),
    ]


def tables(quick: bool = False) -> Iterator[Table]:
    """A row for each control that is moved."""
    rows = []
    for move in moves():
        redraws = 3 if quick else 30
        wall, cpu = redraw_seconds(move, redraws)
        rows.append((move.title, spread_of_seconds(wall), spread_of_seconds(cpu),
                     f"{len(move.frame.picture.value) / 1000:.0f} KB", len(wall)))
    yield Table("Widgets: a control moves", ("widget, control", "time", "processor time", "picture", "n"), rows, NOTE)


def redraw_seconds(move: Move, redraws: int) -> tuple[list[float], list[float]]:
    """Seconds by the clock and of processor time of up to `redraws` redraws."""
    control, wall, cpu = getattr(move.frame.controls, move.control), [], []
    for value in move.values if move.again else ():
        control.value = value
    for value in islice(cycle(move.values), redraws):
        if control.value == value:
            continue
        move.before()
        (seconds,), (of_processor,) = wall_and_cpu(lambda value=value: setattr(control, "value", value), times=1)
        wall.append(seconds)
        cpu.append(of_processor)
    return wall, cpu


if __name__ == "__main__":
    main(tables, __doc__)
