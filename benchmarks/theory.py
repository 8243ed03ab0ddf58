"""How long the theory takes: simulate, redraw, plan, the scoreboard.

    python benchmarks/theory.py [--repeat 5]

Prints the median of several runs: processor time, which a busy machine hardly changes, and wall time. When
llm-analysis (a public calculator of training steps that installs from the package index and needs no GPU) is
there, its time for one layout stands beside ours.
"""

import argparse
import io
import logging
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from utils.theory.hardware import selene  # noqa: E402
from utils.theory.layout import Layout, plan, rank_bytes  # noqa: E402
from utils.theory.papers.scoreboard import all_tables  # noqa: E402
from utils.theory.pipeline import build, simulate  # noqa: E402
from utils.theory.presets import MODELS  # noqa: E402
from utils.theory.throughput import step_time  # noqa: E402

COLOURS = {"F": "#0072B2", "B": "#E69F00", "W": "#009E73", "BW": "#E69F00"}


def seconds_of(function, repeat):
    """Median (processor time, wall time) of `repeat` calls."""
    times = []
    for _ in range(repeat):
        processor, wall = time.process_time(), time.perf_counter()
        function()
        times.append((time.process_time() - processor, time.perf_counter() - wall))
    return tuple(map(statistics.median, zip(*times)))


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


def main():
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    small, large = build("1f1b", 8, 64), build("1f1b", 64, 512)
    zero_bubble = build("zb-v", 64, 512)
    found = plan_one_trillion()
    layouts = len(found.ranked) + len(found.rejected)
    for name, function in (
        ("simulate 1F1B, p = 8, m = 64", lambda: simulate(small)),
        ("simulate 1F1B, p = 64, m = 512", lambda: simulate(large)),
        ("simulate ZB-V, p = 64, m = 512", lambda: simulate(zero_bubble)),
        ("build, simulate and draw p = 8, m = 64", redraw),
        (f"plan 1T on 3,072 GPUs, {layouts} layouts", plan_one_trillion),
        ("all published tables", all_tables),
    ):
        processor, wall = seconds_of(function, repeat)
        print(f"{name:45} processor {1e3 * processor:9.1f} ms   wall {1e3 * wall:9.1f} ms")
    other = one_layout_by_llm_analysis()
    if other is None:
        print("llm-analysis is not installed: nothing to compare with")
        return
    ours, theirs = (seconds_of(function, 100 * repeat)[0] for function in (one_layout, other))
    print(f"{'one layout, seconds and bytes':45} processor {1e3 * ours:9.3f} ms")
    print(f"{'the same by llm-analysis':45} processor {1e3 * theirs:9.3f} ms   ratio {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
