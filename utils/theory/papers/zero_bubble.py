"""Zero Bubble Pipeline Parallelism, arXiv 2401.10241, tables 2, 4, 5, 8; DualPipe's table with it."""

from ..pipeline import (
    Costs,
    bubble_time,
    dualpipe,
    dualpipe_v,
    interleaved_one_f_one_b,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from .tables import Table, exact, not_tested, read_table, within

PAPER = "Zero Bubble"
CHUNKS = {"1.5B": 3, "6.2B": 4, "14.6B": 3, "28.3B": 2}
"""Model chunks per rank that give the published interleaved column: 24, 32, 48 and 64 layers over p ranks."""


def published_wait(pipeline, communication):
    """The communication that the authors' program charges to interleaved 1F1B, as a function for `Costs`.

    A message from the last rank back to the first (a chunk's end to the next chunk's start) is waited for
    by the first micro-batch of each group of p only; the others are taken to be there. Read from
    efficiency.py in sail-sg/zero-bubble-pipeline-parallelism (commit f68d3879). When every micro-batch
    waits, the schedule takes p · T_comm longer.
    """

    def seconds(from_stage, to_stage, micro_batch):
        wraps = from_stage // pipeline != to_stage // pipeline
        return float("-inf") if wraps and micro_batch % pipeline else communication

    return seconds


def simulated_bubble_rates(p, m, v, forward, backward_input, backward_weight, communication):
    """Bubble rates of the four handcrafted schedules, by simulation; a dict by the table's column names."""
    costs = Costs(forward, backward_input, backward_weight, communication=communication)
    as_published = Costs(
        forward, backward_input, backward_weight, communication=published_wait(p, communication)
    )
    return {
        "1F1B": simulate(one_f_one_b(p, m), costs).bubble_rate,
        "1F1B-I": simulate(interleaved_one_f_one_b(p, m, v), as_published).bubble_rate,
        "ZB-H1": simulate(zb_h1(p, m), costs).bubble_rate,
        "ZB-H2": simulate(zb_h2(p, m), costs).bubble_rate,
    }


def table_5():
    """Bubble rates of four models, three numbers of micro-batches each."""
    cells = []
    for row in read_table("zero_bubble_table_5"):
        name = f"{row['model']} m={row['m']}"
        rates = simulated_bubble_rates(*_sizes(row, CHUNKS[row["model"]]), *_times(row))
        cells.extend(exact(f"{name} {column}", row[column], rate) for column, rate in rates.items())
        cells.append(exact(f"{name} ZB-1p", row["ZB-1p"], rates["ZB-H1"]))
        cells.append(not_tested(f"{name} ZB-2p", row["ZB-2p"], "found by the authors' search, not by a rule"))
    rule = "simulated from table 9, to four decimals; 1F1B-I with the authors' shortcut (see published_wait)"
    return Table(PAPER, "table 5", rule, tuple(cells))


def table_8():
    """Bubble rates of three models on more ranks, ZB-V among them."""
    cells = []
    for row in read_table("zero_bubble_table_8"):
        name = f"{row['model']} m={row['m']}"
        sizes, times = _sizes(row, int(row["v"])), _times(row)
        rates = simulated_bubble_rates(*sizes, *times)
        cells.extend(exact(f"{name} {column}", row[column], rate) for column, rate in rates.items())
        forward, backward_input, backward_weight, communication = times
        costs = Costs(forward, backward_input, backward_weight, communication=communication)
        cells.append(
            within(f"{name} ZB-V", row["ZB-V"], simulate(zb_v(*sizes[:2]), costs).bubble_rate, absolute=0.002)
        )
    rule = (
        "simulated from the times in the authors' repository, to four decimals; ZB-V: the rule for equal "
        "times where the authors searched, ±0.002"
    )
    return Table(PAPER, "table 8", rule, tuple(cells))


def table_4():
    """Throughput relative to 1F1B: the measured gain against the gain that the bubble rates give."""
    bubbles = {(row["model"], row["m"]): row for row in read_table("zero_bubble_table_5")}
    cells = []
    for row in read_table("zero_bubble_table_4"):
        rates = bubbles[row["model"], row["m"]]
        busy = {column: 1 - float(rates[column]) for column in ("1F1B", "1F1B-I", "ZB-1p", "ZB-2p")}
        name = f"{row['model']} m={row['m']}"
        cells.append(not_tested(f"{name} 1F1B", row["1F1B"], "the base of the ratios"))
        for column, band in (("1F1B-I", 0.09), ("ZB-1p", 0.03), ("ZB-2p", 0.06)):
            computed = float(row["1F1B"]) * busy[column] / busy["1F1B"]
            cells.append(within(f"{name} {column}", row[column], computed, relative=band))
    rule = (
        "samples/s of 1F1B times the ratio of (1 − bubble rate): ZB-1p ±3 %, ZB-2p ±6 %, 1F1B-I ±9 % (its v "
        "times as many messages cost more than their latency)"
    )
    return Table(PAPER, "table 4", rule, tuple(cells))


def table_2():
    """The table's formulas for bubble and peak activations against simulation, p = 8."""
    p, m = 8, 32
    costs = Costs(3.0, 2.5, 1.5)
    cells = []
    for name, generator, peak in (("1f1b", one_f_one_b, p), ("zb-h1", zb_h1, p), ("zb-h2", zb_h2, 2 * p - 1)):
        result = simulate(generator(p, m), costs)
        cells.append(exact(f"{name} bubble", f"{bubble_time(name, p, m, costs):.1f}", result.bubble_time))
        cells.append(exact(f"{name} peak in M_B", str(peak), result.peak_in_flight.max()))
    rule = "formula against simulation, p = 8, m = 32, T_F, T_B, T_W = 3, 2.5, 1.5"
    return Table(PAPER, "table 2, formulas", rule, tuple(cells))


def repository_table():
    """The authors' README: bubble rate, activations and messages against 1F1B when T_F = T_B = T_W."""
    p, m = 8, 64
    base = simulate(one_f_one_b(p, m))
    printed = {"1F1B": (1, 1, 1), "ZB-H1": ("0.33", 1, 1), "ZB-H2": (0, 2, 1), "ZB-V": (0, 1, 2)}
    cells = []
    for name, generator in (("1F1B", one_f_one_b), ("ZB-H1", zb_h1), ("ZB-H2", zb_h2), ("ZB-V", zb_v)):
        result = simulate(generator(p, m))
        bubble, memory, messages = map(str, printed[name])
        cells.append(exact(f"{name} bubble", bubble, result.bubble_time / base.bubble_time))
        cells.append(exact(f"{name} memory", memory, result.peak_in_flight.max() / p))
        ratio = result.messages_sent.sum() / base.messages_sent.sum()
        cells.append(exact(f"{name} messages", messages, ratio))
    for name in ("V-Half", "V-Min"):
        cells.extend(not_tested(f"{name} {what}", "", "no generator here") for what in ("bubble", "memory"))
    rule = "simulated, p = 8 and m = 64, rounded half up (ZB-H2 holds 2 − 1/p)"
    return Table(PAPER, "repository, equal times", rule, tuple(cells))


def dual_pipe():
    """deepseek-ai/DualPipe: bubbles and activations by formula, against simulation with equal times."""
    p, m = 8, 32
    cells = []
    for name, generator, ranks, peak in (
        ("1f1b", one_f_one_b, p, p),
        ("zb-h1", zb_h1, p, p),
        ("dualpipe", dualpipe, p, p + 1),
        ("dualpipe-v", dualpipe_v, p // 2, p + 1),
    ):
        result = simulate(generator(ranks, m))
        stages_per_rank = p // ranks
        bubble = bubble_time(name, ranks, m)
        cells.append(exact(f"{name} bubble", f"{bubble:g}", result.bubble_time))
        cells.append(exact(f"{name} activations", str(peak), stages_per_rank * result.peak_in_flight.max()))
    return Table(
        "DualPipe",
        "README table",
        "formulas with PP = 8 against simulation, T_F = T_B = T_W = 1 and F&B = F + B",
        tuple(cells),
    )


def _sizes(row, chunks):
    return int(row["p"]), int(row["m"]), chunks


def _times(row):
    return tuple(float(row[column]) for column in ("TF", "TB", "TW", "Tcomm"))


TABLES = (table_5, table_8, table_4, table_2, repository_table, dual_pipe)
