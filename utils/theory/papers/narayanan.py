"""Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473."""

from dataclasses import dataclass, replace

import numpy as np

from ..grid import Layout
from ..hardware import Cluster, selene
from ..models import Transformer, hardware_flops, training_days, training_days_estimate
from ..presets import MODELS
from ..throughput import RATES, step_time
from .tables import Table, exact, interval, read_table, within

PAPER = "Narayanan 2021"
PEAK_TFLOPS = 312
TOKENS = 300e9


@dataclass(frozen=True)
class Run:
    """A measured run: what ran where, and the printed TFLOP/s per GPU."""

    name: str
    model: Transformer
    cluster: Cluster
    layout: Layout
    batch: int
    tflops: float

    def predict(self, rates=RATES):
        """TFLOP/s per GPU by the throughput model."""
        return self.step(rates).flops_per_second_per_gpu / 1e12

    def step(self, rates=RATES):
        """The StepTime by the throughput model."""
        return step_time(self.model, self.cluster, self.layout, self.batch, rates)

    @property
    def seconds(self):
        """Seconds per step that the printed rate stands for."""
        flops = hardware_flops(self.model, self.batch, self.layout.recomputation)
        return flops / self.cluster.gpus / self.tflops / 1e12


def table_1_runs():
    """The ten runs of table 1; the rate from the aggregate PFLOP/s, which is printed finer."""
    runs = []
    for row in read_table("narayanan_table_1"):
        chunks = int(row["v"])
        layout = Layout(
            tensor=int(row["TP"]),
            pipeline=int(row["PP"]),
            data=int(row["d"]),
            micro_batch=int(row["microbatch"]),
            schedule="interleaved 1f1b" if chunks > 1 else "1f1b",
            chunks=chunks,
            overlap_gradients=row["DDP"] == "torch",
        )
        gpus = int(row["GPUs"])
        name = row["params_B"].removesuffix(".0")
        rate = float(row["agg_PF"]) * 1e3 / gpus
        runs.append(Run(name, MODELS[f"narayanan-{name}b"], selene(gpus), layout, int(row["batch"]), rate))
    return runs


def table_1():
    """Parameters, micro-batches, shares, aggregates, and the throughput model."""
    cells = []
    for row, run in zip(read_table("narayanan_table_1"), table_1_runs(), strict=True):
        name, rate, gpus = run.name, float(row["TFLOPs_per_GPU"]), run.cluster.gpus
        cells.append(exact(f"{name}B parameters", row["params_B"], run.model.parameters / 1e9))
        shares = (100 * (rate + side) / PEAK_TFLOPS for side in (-0.5, 0.5))
        cells.append(interval(f"{name}B % of peak", row["pct_peak"], *shares))
        sums = (gpus * (rate + side) / 1e3 for side in (-0.5, 0.5))
        cells.append(interval(f"{name}B aggregate PFLOP/s", row["agg_PF"], *sums))
        cells.append(exact(f"{name}B GPUs", row["GPUs"], run.layout.world_size))
        cells.append(within(f"{name}B TFLOP/s", f"{run.tflops:.1f}", run.predict(), relative=0.06))
    rule = (
        "parameters rounded; shares and sums by interval from TFLOP/s ± 0.5; throughput with 2 fitted "
        "constants ±6 %"
    )
    return Table(PAPER, "table 1", rule, tuple(cells))


def fit(runs, matmul=None, attention=None):
    """The two efficiencies that minimise the mean relative error of the rate over `runs`; returns Rates.

    matmul, attention: values to try; a single one freezes it. The step time is linear in the inverse of both.
    """
    matmul = np.arange(0.50, 0.90, 0.002) if matmul is None else np.atleast_1d(matmul)
    attention = np.arange(0.10, 0.90, 0.005) if attention is None else np.atleast_1d(attention)
    errors = _errors(runs, matmul, attention)
    best = np.unravel_index(np.abs(errors).mean(axis=0).argmin(), errors.shape[1:])
    return replace(
        RATES, matmul_efficiency=float(matmul[best[0]]), attention_efficiency=float(attention[best[1]])
    )


def fit_table_1():
    """Rates fitted on all ten rows of table 1."""
    return fit(table_1_runs())


def leave_one_out_errors():
    """For each row of table 1 the relative error of its rate when the other nine set both constants."""
    runs = table_1_runs()
    return np.array(
        [run.predict(fit([other for other in runs if other is not run])) / run.tflops - 1 for run in runs]
    )


def log_linear_leave_one_out_errors():
    """The same for a baseline that knows nothing: a straight line of the rate in log h."""
    runs = table_1_runs()
    x = np.log([run.model.hidden for run in runs])
    y = np.array([run.tflops for run in runs])
    errors = []
    for i in range(len(runs)):
        slope, intercept = np.polyfit(np.delete(x, i), np.delete(y, i), 1)
        errors.append((slope * x[i] + intercept) / y[i] - 1)
    return np.array(errors)


def _errors(runs, matmul, attention):
    """Relative error of the rate, by run, matmul efficiency and attention efficiency."""

    def seconds(matmul_efficiency, attention_efficiency):
        rates = replace(RATES, matmul_efficiency=matmul_efficiency, attention_efficiency=attention_efficiency)
        return np.array([run.step(rates).seconds for run in runs])[:, None, None]

    whole = seconds(1, 1)
    of_matmul, of_attention = seconds(0.5, 1) - whole, seconds(1, 0.5) - whole
    rest = whole - of_matmul - of_attention
    times = rest + of_matmul / matmul[:, None] + of_attention / attention
    measured = np.array([run.seconds for run in runs])
    return measured[:, None, None] / times - 1


def table_2_runs(scheme):
    """The six runs of table 2 under `scheme`, "PTD" or "ZeRO-3".

    PTD: t = 8, p = 12 or 35, interleaved with v = 1 for 175B (the paper does not say) and v = 3 for 530B.
    """
    runs = []
    for row in read_table("narayanan_table_2"):
        if row["scheme"] != scheme:
            continue
        gpus, b = int(row["GPUs"]), int(row["microbatch"])
        big = row["params_B"] == "529.6"
        if scheme == "PTD":
            pipeline, chunks = (35, 3) if big else (12, 1)
            layout = Layout(
                tensor=8,
                pipeline=pipeline,
                data=gpus // (8 * pipeline),
                micro_batch=b,
                schedule="interleaved 1f1b" if chunks > 1 else "1f1b",
                chunks=chunks,
            )
        else:
            layout = Layout(data=gpus, micro_batch=b, zero_stage=3)
        model = MODELS["narayanan-529.6b" if big else "gpt3-175b"]
        name = f"{scheme} {row['params_B']}B {gpus} GPUs"
        runs.append(Run(name, model, selene(gpus), layout, int(row["batch"]), float(row["TFLOPs"])))
    return runs


ZERO_3_RATES = replace(RATES, gather_share=19 / 200, exposed_gather_share=0.40)
"""Two constants fitted on the six ZeRO-3 rows: 19 of a node's 200 GB/s, and 40 % not hidden."""


def table_2():
    """Days for 300B tokens, and the throughput of both schemes."""
    cells = []
    for scheme, rates, band in (("PTD", RATES, 0.08), ("ZeRO-3", ZERO_3_RATES, 0.12)):
        rows = [row for row in read_table("narayanan_table_2") if row["scheme"] == scheme]
        for row, run in zip(rows, table_2_runs(scheme), strict=True):
            days = (
                training_days(run.model, TOKENS, run.batch, run.cluster.gpus, (run.tflops + side) * 1e12)
                for side in (-0.5, 0.5)
            )
            cells.append(interval(f"{run.name} days", row["days_300B_tokens"], *days))
            cells.append(within(f"{run.name} TFLOP/s", row["TFLOPs"], run.predict(rates), relative=band))
    rule = (
        "days by exact operations (eq. 3), interval from TFLOP/s ± 0.5; PTD with nothing refitted ±8 %; "
        "ZeRO-3 with 2 constants fitted on its own 6 rows ±12 %"
    )
    return Table(PAPER, "table 2", rule, tuple(cells))


def text():
    """Section 5: days of training by eq. (4), and PTD against ZeRO-3."""
    ratio = {
        (big, gpus): ptd.tflops / zero.tflops
        for ptd, zero, big, gpus in zip(
            table_2_runs("PTD"), table_2_runs("ZeRO-3"), (0, 0, 0, 1, 1, 1), (1, 2, 4) * 2, strict=True
        )
    }
    cells = (
        exact("GPT-3, days on 1024 GPUs", "34", training_days_estimate(175e9, 300e9, 1024, 140e12)),
        exact("1T, days on 3072 GPUs", "84", training_days_estimate(1.008e12, 450e9, 3072, 163e12)),
        exact("PTD over ZeRO-3, 175B, %", "6", 100 * (ratio[0, 1] - 1)),
        exact("PTD over ZeRO-3, 530B, %", "24", 100 * (ratio[1, 1] - 1)),
        interval(
            "PTD over ZeRO-3, twice the GPUs, %", "70", 100 * (ratio[0, 2] - 1), 100 * (ratio[1, 2] - 1)
        ),
        exact("162.2B of figure 13", "162.2", MODELS["narayanan-162.2b"].parameters / 1e9),
        exact("175B of section 5", "174.6", MODELS["gpt3-175b"].parameters / 1e9),
    )
    return Table(PAPER, "text", "eq. (4) and ratios of printed rates, rounded half up", cells)


def vtrain():
    """vTrain's step times for three rows of table 1, from profiles of single kernels (MICRO 2024)."""
    runs = {run.name: run for run in table_1_runs()}
    cells = tuple(
        within(f"{name}B seconds", printed, runs[name].step().seconds, relative=0.08)
        for name, printed in (("3.6", "3.94"), ("18.4", "9.60"), ("39.1", "14.76"))
    )
    return Table("vTrain", "step times of 3 rows", "by the same throughput model ±8 %", cells)


TABLES = (table_1, table_2, text, vtrain)
