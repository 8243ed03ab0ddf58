"""Megatron-LM, arXiv 1909.08053, and the tables that its repository printed later."""

from ..grid import Layout
from ..hardware import CHIPS, selene
from ..models import hardware_flops
from ..presets import MODELS
from ..throughput import step_time
from ..traffic import tensor_elements_per_layer
from .tables import Table, exact, half_unit, interval, not_tested, read_table, within

BASELINE_TFLOPS = 39
RING_BYTES_PER_SECOND = 130e9


def table_1():
    """Parameters of the four models, and the scaling of figure 5."""
    cells = []
    for row in read_table("megatron_2019"):
        name = row["params_B"]
        model = MODELS[f"megatron2019-{name}b"]
        cells.append(exact(f"{name}B parameters", name, model.parameters / 1e9))
        efficiency = 100 * tensor_scaling_efficiency(model, int(row["MP_GPUs"]))
        cells.append(within(f"{name}B MP efficiency", row["eff_MP_pct"], efficiency, absolute=10))
        cells.append(
            not_tested(
                f"{name}B MP+DP efficiency", row["eff_MPDP_pct"], "the DP network of 2019 is not described"
            )
        )
    rule = (
        "parameters rounded half up; efficiency from 39 TFLOP/s on one GPU and a 130 GB/s ring, ±10 points "
        "(read from figure 5)"
    )
    return Table("Megatron-LM 2019", "table 1, figure 5", rule, tuple(cells))


def tensor_scaling_efficiency(model, tensor, batch=8):
    """Computing over computing and sending: 6 all-reduces per layer, with full recomputation."""
    computing = hardware_flops(model, batch, "full") / tensor / (BASELINE_TFLOPS * 1e12)
    elements = model.layers * tensor_elements_per_layer(model, batch, tensor, "full")
    return computing / (computing + 2 * elements / RING_BYTES_PER_SECOND)


def text():
    """15.1 PFLOP/s on 512 GPUs is 76 % of 512 times the baseline; the baseline is 30 % of the peak."""
    peak = CHIPS["V100-DGX-2H"].peak("fp16") / 1e12
    cells = (
        interval("scaling on 512 GPUs, %", "76", *(1e5 * p / 512 / BASELINE_TFLOPS for p in (15.05, 15.15))),
        exact("baseline, % of peak", "30", 100 * BASELINE_TFLOPS / peak),
    )
    return Table(
        "Megatron-LM 2019", "abstract", "interval from the rounded PFLOP/s; figure 5 shows 74", cells
    )


def rows_2020():
    """TFLOP/s from the printed milliseconds, on A100s: a test of the operation count."""
    cells = []
    for row in read_table("megatron_2020"):
        model = MODELS[f"megatron2020-{ {'1B': '1.2', '2B': '2.0', '4B': '4.2', '8B': '8.7'}[row['case']] }b"]
        cells.append(exact(f"{row['case']} parameters", row["params_B"], model.parameters / 1e9))
        for machine, batch, gpus in (
            ("DGX2_b8", 8, int(row["MP"])),
            ("DGXA100_b16", 16, int(row["MP"])),
            ("A100_B2048", 2048, int(row["A100_GPUs_B2048"])),
        ):
            column = {"DGX2_b8": "DGX2_TF", "DGXA100_b16": "DGXA100_TF", "A100_B2048": "A100_B2048_TF"}[
                machine
            ]
            tera = hardware_flops(model, batch, "full") / gpus / 1e12
            milliseconds = float(row[f"{machine}_ms"])
            half = half_unit(row[f"{machine}_ms"])
            low, high = tera / (milliseconds + half) * 1e3, tera / (milliseconds - half) * 1e3
            if "A100" in machine:
                layout = Layout(tensor=int(row["MP"]), data=gpus // int(row["MP"]), micro_batch=16)
                predicted = 1e3 * step_time(model, selene(gpus), layout, batch).seconds
                name = f"{row['case']} {machine} ms"
                cells.append(within(name, row[f"{machine}_ms"], predicted, relative=0.10))
            cells.append(interval(f"{row['case']} {machine}", row[column], low, high))
    rule = "TFLOP/s by interval from the milliseconds; milliseconds with nothing refitted ±10 %"
    return Table("Megatron-LM 2020", "README table", rule, tuple(cells))


def rows_h100():
    """GPUs, aggregate PFLOP/s and share of the peak of the H100 runs."""
    peak = CHIPS["H100-80GB"].peak("bf16") / 1e12
    cells = []
    for row in read_table("megatron_h100"):
        name, rate = row["model"], float(row["TF_per_GPU"])
        half = half_unit(row["TF_per_GPU"])
        gpus = int(row["TP"]) * int(row["PP"]) * int(row["DP"])
        cells.append(exact(f"{name} GPUs", row["GPUs"], gpus))
        cells.append(
            interval(f"{name} MFU", row["MFU_pct"], *(100 * r / peak for r in (rate - half, rate + half)))
        )
        cells.append(
            interval(
                f"{name} aggregate", row["agg_PF"], *(gpus * r / 1e3 for r in (rate - half, rate + half))
            )
        )
        cells.append(not_tested(f"{name} parameters", name, "vocabulary and tying are not printed"))
    return Table("Megatron-LM 2024", "H100 table", "intervals from the rounded TFLOP/s", tuple(cells))


TABLES = (table_1, text, rows_2020, rows_h100)
