"""The Llama 3 Herd of Models, arXiv 2407.21783: layouts and throughput of the 405B model."""

from dataclasses import replace

from ..grid import Layout
from ..hardware import CHIPS, eos
from ..presets import MODELS
from .narayanan import Run
from .tables import Table, exact, interval, not_tested, read_table, within

PEAK_TFLOPS = CHIPS["H100-80GB"].peak("bf16") / 1e12
CHUNKS = 8
"""Model chunks per rank: one layer each. The paper says that it interleaves, not how often."""


def table_4_runs():
    """The three runs of table 4; the rate is printed as MFU, so without recomputation."""
    runs = []
    for row in read_table("llama3_table_4"):
        layout = Layout(
            tensor=int(row["TP"]),
            context=int(row["CP"]),
            pipeline=int(row["PP"]),
            data=int(row["DP"]),
            chunks=CHUNKS,
            schedule="interleaved 1f1b",
            recomputation="none",
            sequence_parallel=True,
            zero_stage=1,
            overlap_gradients=True,
            flash_attention=True,
            order=("tensor", "context", "pipeline", "data"),
        )
        model = replace(MODELS["llama3-405b"], sequence=int(row["seq"]))
        batch = layout.data * int(row["batch_per_DP"])
        name = f"{row['GPUs']} GPUs, {row['seq']} tokens"
        runs.append(Run(name, model, eos(layout.world_size), layout, batch, float(row["TFLOPs"])))
    return runs


def table_4():
    """Degrees, tokens, utilization, and throughput."""
    cells = []
    for row, run in zip(read_table("llama3_table_4"), table_4_runs(), strict=True):
        name = run.name
        gpus = int(row["TP"]) * int(row["CP"]) * int(row["PP"]) * int(row["DP"])
        cells.append(exact(f"{name}: product of degrees", row["GPUs"], gpus))
        tokens = int(row["DP"]) * int(row["batch_per_DP"]) * int(row["seq"]) / 2**20
        cells.append(exact(f"{name}: tokens in 2**20", row["tokens"].removesuffix("M"), tokens))
        shares = (100 * (float(row["TFLOPs"]) + side) / PEAK_TFLOPS for side in (-5, 5))
        cells.append(interval(f"{name}: MFU", row["MFU_pct"], *shares))
        if row["CP"] == "1":
            cells.append(within(f"{name}: TFLOP/s", row["TFLOPs"], run.step().mfu * PEAK_TFLOPS, relative=0.05))
        else:
            note = "most operations are attention, whose rate was fitted without flash attention"
            cells.append(not_tested(f"{name}: TFLOP/s", row["TFLOPs"], note))
    rule = (
        "products exact; MFU by interval from TFLOP/s rounded to 10; throughput ±5 %, nothing refitted and "
        "v = 8, which the paper does not print. Version 1 prints DP = 4 in the last row"
    )
    return Table("Llama 3", "table 4", rule, tuple(cells))


TABLES = (table_4,)
