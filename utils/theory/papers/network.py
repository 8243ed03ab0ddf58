"""Ring Attention's table 2, nccl-tests' factors, vTrain's all-reduce trace."""

from ..collectives import all_reduce_seconds, busbw, busbw_factor
from ..hardware import Link
from ..traffic import ring_attention_min_block
from ..units import GB, MiB
from .tables import Table, erratum, exact, read_table, within


def ring_attention():
    """Smallest block c = F/B and sequence 6c, in thousands of tokens."""
    cells = []
    for row in read_table("ring_attention_table_2"):
        block = ring_attention_min_block(float(row["TF"]) * 1e12, float(row["BW_GBps"]) * GB) / 1e3
        for column, computed in (("min_block_k", block), ("min_seq_k", 6 * block)):
            name = f"{row['host']} {column}"
            if row["host"] == "A100 IB":
                note = "312 TFLOP/s over 12.5 GB/s is 24.96 thousand, and six times that 149.76"
                cells.append(erratum(name, row[column], computed, note))
            else:
                cells.append(exact(name, row[column], computed))
    return Table("Ring Attention", "table 2", "c = F/B and 6c, rounded half up", tuple(cells))


def nccl_factors():
    """doc/PERFORMANCE.md: bus bandwidth over algorithm bandwidth, at n = 8."""
    printed = {
        "all_reduce": "1.75",
        "reduce_scatter": "0.875",
        "all_gather": "0.875",
        "all_to_all": "0.875",
        "broadcast": "1",
        "reduce": "1",
    }
    cells = tuple(exact(name, text, busbw_factor(name, 8)) for name, text in printed.items())
    return Table("nccl-tests", "busbw factors at n = 8", "exact", cells)


def vtrain():
    """All-reduces over 8 A100s by the α–β model with 90 µs in all and a bus bandwidth of 229 GB/s."""
    link = Link(90e-6 / 14, 229 * GB)
    cells = []
    for row in read_table("vtrain_all_reduce"):
        n_bytes = float(row["MiB"]) * MiB
        rate = busbw("all_reduce", n_bytes, all_reduce_seconds("ring", n_bytes, 8, link), 8) / GB
        band = 0.16 if float(row["MiB"]) >= 16 else 0.35
        cells.append(within(f"{row['MiB']} MiB", row["busbw_GBps"], rate, relative=band))
    rule = "two constants of the link; from 16 MiB ±16 %, below ±35 % (NCCL changes protocol there)"
    return Table("vTrain", "all-reduce trace, 8 A100s", rule, tuple(cells))


TABLES = (ring_attention, nccl_factors, vtrain)
