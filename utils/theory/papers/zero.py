"""ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, arXiv 1910.02054."""

from ..memory import largest_model, training_state_bytes
from ..traffic import zero_elements_per_step
from ..units import GB
from .tables import Table, exact, not_tested, read_table, rounded, within

PAPER = "ZeRO"
STAGE_OF = {"baseline": 0, "Pos": 1, "Pos+g": 2, "Pos+g+p": 3}
PARAMETERS = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
BILLION = 10**9
V100_BYTES = 32 * GB


def table_1():
    """GB per device, 3 models, 3 stages, 6 degrees of data parallelism."""
    cells = []
    for row in read_table("zero_table_1"):
        for column, printed in row.items():
            if column == "DP":
                continue
            model, stage = column.split("_")
            n_bytes = training_state_bytes(
                PARAMETERS[model], stage=STAGE_OF[stage], world_size=int(row["DP"])
            )
            cells.append(exact(f"{column} N={row['DP']}", printed, n_bytes / GB, allow_truncation=True))
    return Table(
        PAPER, "table 1", "rounded half up to the printed decimals; eight cells are truncated", tuple(cells)
    )


def figure_1():
    """7.5B parameters on 64 ranks, baseline and three stages."""
    printed = ("120", "31.4", "16.6", "1.9")
    cells = tuple(
        exact(f"stage {stage}", text, training_state_bytes(7.5e9, stage=stage, world_size=64) / GB)
        for stage, text in enumerate(printed)
    )
    return Table(PAPER, "figure 1", "rounded half up", cells)


def table_2():
    """Largest model on 64 ranks of data parallelism and 1 to 16 of model parallelism."""
    cells = []
    for row in read_table("zero_table_2"):
        for column, printed in row.items():
            kind, _, stage = column.partition("_")
            if kind == "theo":
                cells.append(_theoretical(row["MP"], stage, printed))
            elif column == "meas_baseline":
                cells.append(
                    not_tested(f"{column} MP={row['MP']}", printed, "measured; activations are not given")
                )
            elif column == "meas_Pos":
                share = largest_model(V100_BYTES, stage=1, world_size=64, tensor=int(row["MP"])) / BILLION
                measured = printed.removesuffix("B")
                cells.append(within(f"{column} MP={row['MP']}", measured, 0.82 * share, relative=0.02))
    rule = (
        "theoretical: MP times the rounded value of the first row; T = 1024 B. "
        "Measured stage 1 is 0.82 of theoretical, one constant, ±2 %"
    )
    return Table(PAPER, "table 2", rule, tuple(cells))


def volumes():
    """Section 7: elements sent per parameter and step, in the large-N form."""
    cells = tuple(
        exact(f"stage {stage}", text, zero_elements_per_step(1, stage))
        for stage, text in ((0, "2"), (2, "2"), (3, "3"))
    )
    return Table(PAPER, "section 7, volumes in Ψ", "exact", cells)


def _theoretical(tensor, stage, printed):
    base = largest_model(V100_BYTES, stage=STAGE_OF[stage], world_size=64) / BILLION
    unit = 1024 if printed.endswith("T") else 1
    computed = int(tensor) * float(rounded(base, "0.0")) / unit
    return exact(f"{stage} MP={tensor}", printed.rstrip("BT"), computed)


TABLES = (table_1, figure_1, table_2, volumes)
