"""Korthikanti et al. 2022, Reducing Activation Recomputation, arXiv 2205.05198."""

from dataclasses import replace

import numpy as np

from ..activations import attention_core_share, first_stage_activation_bytes, saved_output_bytes
from ..grid import Layout
from ..hardware import selene
from ..models import flops_utilization, hardware_flops, model_flops
from ..presets import MODELS
from ..throughput import RATES, step_time
from ..units import GiB
from .tables import Table, exact, half_unit, interval, read_table, within

PAPER = "Korthikanti 2022"
PEAK = 312e12
PRESET = {"22B": "korthikanti-22b", "175B": "gpt3-175b", "530B": "mt-nlg-530b", "1T": "narayanan-1008b"}
TECHNIQUES = {
    "SP": (True, "none"),
    "selective": (False, "selective"),
    "SP + selective": (True, "selective"),
    "full": (False, "full"),
}
FIGURE_7 = {
    "SP": ("66.8", "62.0", "58.3", "58.3"),
    "selective": ("49.4", "56.5", "61.9", "61.9"),
    "SP + selective": ("16.1", "18.5", "20.2", "20.2"),
    "full": ("7.6", "8.7", "9.5", "9.5"),
}


def runs():
    """(name, model, row) of table 3."""
    return [(row["model"], MODELS[PRESET[row["model"]]], row) for row in read_table("korthikanti_table_3")]


def activation_bytes(name, sequence_parallel, recomputation):
    """Activations of the first stage for a row of table 3."""
    _, model, row = next(run for run in runs() if run[0] == name)
    return first_stage_activation_bytes(
        model,
        int(row["microbatch"]),
        int(row["TP"]),
        int(row["PP"]),
        int(row["interleave"]),
        sequence_parallel,
        recomputation,
    )


def text():
    """Section 5 and appendix B: shares of the attention core, saved memory, added operations."""
    cells = []
    for name, printed in (("175B", ("80", "70", "2.7")), ("530B", ("64", "65", "1.6"))):
        model = MODELS[PRESET[name]]
        share = attention_core_share(model)
        cells.append(exact(f"{name} 5as/h", printed[0], share))
        cells.append(exact(f"{name} saved by selective, %", printed[1], 100 * share / (34 + share)))
        added = hardware_flops(model, 1, "selective") / model_flops(model, 1) - 1
        cells.append(exact(f"{name} added operations, %", printed[2], 100 * added))
    cells.append(
        exact("530B output deallocation", "2.73", saved_output_bytes(MODELS[PRESET["530B"]], 1, 35) / GiB)
    )
    return Table(
        PAPER, "sections 5 and B", "rounded half up; the printed GB of appendix B are GiB", tuple(cells)
    )


def table_4():
    """Sums and overheads from the printed milliseconds of one layer."""
    rows = {row["experiment"]: row for row in read_table("korthikanti_table_4")}
    base = float(rows["baseline"]["comb_ms"])
    cells = []
    for name, row in rows.items():
        sums = (float(row["fwd_ms"]) + float(row["bwd_ms"]) + side for side in (-0.1, 0.1))
        cells.append(interval(f"{name} combined", row["comb_ms"], *sums))
        if row["overhead_pct"]:
            cells.append(
                exact(f"{name} overhead, %", row["overhead_pct"], 100 * (float(row["comb_ms"]) / base - 1))
            )
    return Table(PAPER, "table 4", "overhead from the printed sums, rounded half up", tuple(cells))


def table_5_layouts():
    """(name, technique, model, cluster, layout, batch, printed seconds) for the eight times of table 5."""
    times = {row["model"]: row for row in read_table("korthikanti_table_5")}
    for name, model, row in runs():
        chunks = int(row["interleave"])
        layout = Layout(
            tensor=int(row["TP"]),
            pipeline=int(row["PP"]),
            micro_batch=int(row["microbatch"]),
            schedule="interleaved 1f1b" if chunks > 1 else "1f1b",
            chunks=chunks,
        )
        present = replace(layout, recomputation="selective", sequence_parallel=True)
        for technique, chosen in (("full", layout), ("present", present)):
            yield (
                name,
                technique,
                model,
                selene(int(row["GPUs"])),
                chosen,
                int(row["batch"]),
                times[name][f"iter_{technique}_s"],
            )


def refit():
    """Rates with the matmul efficiency refitted on the eight times of table 5, a year of software later."""
    layouts = list(table_5_layouts())

    def mean_squared_error(efficiency):
        rates = replace(RATES, matmul_efficiency=efficiency)
        errors = [step_time(*run[2:6], rates).seconds / float(run[6]) - 1 for run in layouts]
        return np.mean(np.square(errors))

    best = min(np.arange(0.60, 0.90, 0.005).tolist(), key=mean_squared_error)
    return replace(RATES, matmul_efficiency=best)


def table_5():
    """Utilization from the printed times; the times by the throughput model."""
    cells = []
    times = {row["model"]: row for row in read_table("korthikanti_table_5")}
    for name, model, row in runs():
        printed, gpus, batch = times[name], int(row["GPUs"]), int(row["batch"])
        present, half = float(printed["iter_present_s"]), half_unit(printed["iter_present_s"])
        full = float(printed["iter_full_s"])
        for column, flops in (
            ("MFU_pct", model_flops(model, batch)),
            ("HFU_pct", hardware_flops(model, batch, "selective")),
        ):
            ends = (100 * flops_utilization(flops, present + side, gpus, PEAK) for side in (-half, half))
            cells.append(interval(f"{name} {column}", printed[column], *ends))
        gains = (100 * ((full + side) / (present - side) - 1) for side in (-half, half))
        cells.append(interval(f"{name} throughput gain, %", printed["thr_increase_pct"], *gains))
    rates = refit()
    for name, technique, *run, printed_seconds in table_5_layouts():
        seconds = step_time(*run, rates).seconds
        cells.append(within(f"{name} {technique} seconds", printed_seconds, seconds, relative=0.06))
    rule = "utilization by interval from the seconds; seconds with one constant refitted on these 8, ±6 %"
    return Table(PAPER, "table 5", rule, tuple(cells))


def data_parallel_530b():
    """Section 6.3: 530B on 2240 GPUs, 39.15 s per iteration."""
    flops = model_flops(MODELS[PRESET["530B"]], 8 * 280)
    ends = (100 * flops_utilization(flops, 39.15 + side, 2240, PEAK) for side in (-0.005, 0.005))
    return Table(PAPER, "530B, 8-way data", "interval from the seconds", (interval("MFU, %", "54.2", *ends),))


def figure_7():
    """Activations against tensor parallelism alone, percent."""
    cells = []
    for technique, printed in FIGURE_7.items():
        for (name, _, _), text_ in zip(runs(), printed, strict=True):
            share = activation_bytes(name, *TECHNIQUES[technique]) / activation_bytes(name, False, "none")
            cells.append(exact(f"{name} {technique}, %", text_, 100 * share))
    rule = "rounded half up (bars of the figure by the paper's formulas)"
    return Table(PAPER, "figure 7", rule, tuple(cells))


def parameter_memory():
    """Figure 1's parameters and optimizer, GiB, as Calculon transcribed it: 18 bytes for 12Lh²/(tp)."""
    cells = []
    for (name, model, row), printed in zip(
        runs(), ("45.5625", "45.5625", "31.640625", "32.958984"), strict=True
    ):
        split = int(row["TP"]) * int(row["PP"])
        cells.append(exact(f"{name} GiB", printed, 18 * 12 * model.layers * model.hidden**2 / split / GiB))
    return Table(PAPER, "figure 1, model state", "18 bytes · 12Lh²/(tp), to the printed digits", tuple(cells))


TABLES = (text, table_4, table_5, data_parallel_530b, figure_7, parameter_memory)
