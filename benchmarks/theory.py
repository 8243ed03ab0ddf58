"""How long the theory takes: simulate, redraw, plan, the scoreboard.

    python -m benchmarks.theory [--quick]

When llm-analysis (a public calculator of training steps that installs from the package index and needs no GPU) is
there, its time for one layout stands beside ours.
"""

import io
import logging
from collections.abc import Iterator

from benchmarks.measure import SPREAD, Table, in_turns, main, ratios, spread_of_seconds, wall_and_cpu
from utils.theory.hardware import selene
from utils.theory.layout import Layout, plan, rank_bytes
from utils.theory.papers.scoreboard import all_tables
from utils.theory.pipeline import build, simulate
from utils.theory.presets import MODELS
from utils.theory.throughput import step_time

COLOURS = {"F": "#0072B2", "B": "#E69F00", "W": "#009E73", "BW": "#E69F00"}


def tables(quick: bool = False) -> Iterator[Table]:
    """A row for each computation; one layout beside llm-analysis."""
    small, large, zero_bubble = build("1f1b", 8, 64), build("1f1b", 64, 512), build("zb-v", 64, 512)
    found = plan_one_trillion()
    computations = {
        "simulate 1F1B, p = 8, m = 64": lambda: simulate(small),
        "simulate 1F1B, p = 64, m = 512": lambda: simulate(large),
        "simulate ZB-V, p = 64, m = 512": lambda: simulate(zero_bubble),
        "build, simulate and draw 1F1B, p = 8, m = 64": redraw,
        f"plan 1T on 3,072 GPUs, {len(found.ranked) + len(found.rejected):,} layouts": plan_one_trillion,
        "all published tables": all_tables,
    }
    times, rows = 1 if quick else 7, []
    for name, function in computations.items():
        wall, cpu = wall_and_cpu(function, times)
        rows.append((name, spread_of_seconds(wall), spread_of_seconds(cpu), times))
    yield Table("Theory: simulate and plan", ("what", "time", "processor time", "n"), rows, SPREAD)
    other, rounds = one_layout_by_llm_analysis(), 3 if quick else 100
    if other is not None:
        taken = in_turns({"the course": one_layout, "llm-analysis": other}, rounds)
        rows = [(name, spread_of_seconds(seconds), ratios(seconds, taken["the course"]), rounds)
                for name, seconds in taken.items()]
        yield Table("Theory: seconds and bytes of one layout", ("by", "time", "times the course", "n"), rows, SPREAD)


def redraw():
    """What a slider of the pipeline picture does: build, simulate, draw p = 8, m = 64 to an image."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    result = simulate(build("1f1b", 8, 64))
    figure = Figure(figsize=(9, 3))
    axes = figure.subplots()
    for rank, row in enumerate(result.timeline):
        bars = [(action.start, action.end - action.start) for action in row]
        axes.broken_barh(bars, (rank - 0.4, 0.8), facecolors=[COLOURS[action.kind] for action in row])
    figure.savefig(io.BytesIO(), format="png", dpi=100)


def plan_one_trillion():
    """Every layout of the 1T model on 3,072 GPUs."""
    return plan(MODELS["narayanan-1008b"], selene(3072), 3072)


def one_layout():
    """Seconds and bytes of GPT-3 175B on 512 GPUs, t = 8, p = 8."""
    layout = Layout(tensor=8, pipeline=8, data=8, recomputation="selective", sequence_parallel=True)
    step_time(MODELS["gpt3-175b"], selene(512), layout, 512)
    rank_bytes(MODELS["gpt3-175b"], layout, 512)


def one_layout_by_llm_analysis():
    """A function that has llm-analysis answer the same; None when it is not installed."""
    try:
        from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis, ParallelismConfig
        from llm_analysis.config import (
            get_dtype_config_by_name,
            get_gpu_config_by_name,
            get_model_config_by_name,
        )
    except ImportError:
        return None
    logging.disable(logging.CRITICAL)
    shape = (
        get_model_config_by_name("megatron-lm-175b"),
        get_gpu_config_by_name("a100-sxm-80gb"),
        get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=8, pp_size=8, dp_size=8),
    )

    def answer():
        LLMAnalysis(*shape).training(
            batch_size_per_gpu=1,
            gradient_accumulation_steps=64,
            seq_len=2048,
            total_num_tokens=300e9,
            activation_recomputation=ActivationRecomputation.SELECTIVE,
        )

    return answer


if __name__ == "__main__":
    main(tables, __doc__)
