"""Every published table: how many cells, and how many of them exact. One test per table."""

import functools
import subprocess
import sys
from importlib import resources

import pytest

from utils.theory.papers import TABLES, Cell, Table, read_table, scoreboard
from utils.theory.papers.scoreboard import notes
from utils.theory.papers.tables import (
    erratum,
    exact,
    half_unit,
    interval,
    rounded,
    source_of,
    truncated,
    within,
)

# (paper, table): (cells, exact, in band, errata, not tested). Nothing is ever "off".
EXPECTED = {
    ("ZeRO", "table 1"): (54, 54, 0, 0, 0),
    ("ZeRO", "figure 1"): (4, 4, 0, 0, 0),
    ("ZeRO", "table 2"): (30, 20, 5, 0, 5),
    ("ZeRO", "section 7, volumes in Ψ"): (3, 3, 0, 0, 0),
    ("Megatron-LM 2019", "table 1, figure 5"): (12, 4, 4, 0, 4),
    ("Megatron-LM 2019", "abstract"): (2, 2, 0, 0, 0),
    ("Megatron-LM 2020", "README table"): (24, 16, 8, 0, 0),
    ("Megatron-LM 2024", "H100 table"): (36, 27, 0, 0, 9),
    ("GPipe", "table 1"): (30, 0, 13, 3, 14),
    ("GPipe", "table 2"): (18, 0, 3, 0, 15),
    ("GPipe", "table 3"): (3, 0, 3, 0, 0),
    ("Narayanan 2021", "table 1"): (50, 40, 10, 0, 0),
    ("Narayanan 2021", "table 2"): (24, 12, 12, 0, 0),
    ("Narayanan 2021", "text"): (7, 7, 0, 0, 0),
    ("Korthikanti 2022", "sections 5 and B"): (7, 7, 0, 0, 0),
    ("Korthikanti 2022", "table 4"): (9, 9, 0, 0, 0),
    ("Korthikanti 2022", "table 5"): (20, 12, 8, 0, 0),
    ("Korthikanti 2022", "530B, 8-way data"): (1, 1, 0, 0, 0),
    ("Korthikanti 2022", "figure 7"): (16, 16, 0, 0, 0),
    ("Korthikanti 2022", "figure 1, model state"): (4, 4, 0, 0, 0),
    ("Zero Bubble", "table 5"): (72, 60, 0, 0, 12),
    ("Zero Bubble", "table 8"): (45, 36, 9, 0, 0),
    ("Zero Bubble", "table 4"): (48, 0, 36, 0, 12),
    ("Zero Bubble", "table 2, formulas"): (6, 6, 0, 0, 0),
    ("Zero Bubble", "repository, equal times"): (16, 12, 0, 0, 4),
    ("DualPipe", "README table"): (8, 8, 0, 0, 0),
    ("Llama 3", "table 4"): (12, 9, 2, 0, 1),
    ("Ultra-Scale Playbook", "training state"): (8, 8, 0, 0, 0),
    ("DeepSpeed", "memory estimators"): (5, 5, 0, 0, 0),
    ("FSDP", "section 3.2.2"): (3, 3, 0, 0, 0),
    ("Ring Attention", "table 2"): (10, 8, 0, 2, 0),
    ("nccl-tests", "busbw factors at n = 8"): (6, 6, 0, 0, 0),
    ("vTrain", "step times of 3 rows"): (3, 0, 3, 0, 0),
    ("vTrain", "all-reduce trace, 8 A100s"): (4, 0, 4, 0, 0),
}


computed = functools.cache(lambda function: function())
"""A Table, computed once for all tests."""


@pytest.mark.parametrize("function", TABLES, ids=lambda f: f"{f.__module__.rsplit('.')[-1]}.{f.__name__}")
def test_table(function):
    table = computed(function)
    off = [cell for cell in table.cells if cell.verdict == "off"]
    assert not off
    counts = tuple(table.count(verdict) for verdict in ("exact", "band", "erratum", "not tested"))
    assert (len(table.cells), *counts) == EXPECTED[table.paper, table.title]
    assert len({cell.name for cell in table.cells}) == len(table.cells)
    assert all(cell.note for cell in table.cells if cell.verdict in ("erratum", "not tested"))


def test_every_table_is_expected_and_once():
    titles = [(table.paper, table.title) for table in map(computed, TABLES)]
    assert sorted(titles) == sorted(EXPECTED)


def test_eight_cells_of_zeros_table_1_are_truncated():
    from utils.theory.papers.zero import table_1

    names = [cell.name for cell in table_1().cells if cell.note]
    assert names == [
        "1T_Pos N=64",
        "1T_Pos+g N=64",
        "1T_Pos N=256",
        "1T_Pos+g N=256",
        "128B_Pos N=1024",
        "128B_Pos+g N=1024",
        "1T_Pos N=1024",
        "1T_Pos+g N=1024",
    ]


def test_interleaving_takes_longer_when_every_micro_batch_waits():
    from utils.theory.papers.zero_bubble import CHUNKS, published_wait
    from utils.theory.pipeline import Costs, interleaved_one_f_one_b, simulate

    for row in read_table("zero_bubble_table_5"):
        p, m = int(row["p"]), int(row["m"])
        times, c = [float(row[name]) for name in ("TF", "TB", "TW")], float(row["Tcomm"])
        schedule = interleaved_one_f_one_b(p, m, CHUNKS[row["model"]])
        published = simulate(schedule, Costs(*times, communication=published_wait(p, c))).span_time
        physical = simulate(schedule, Costs(*times, communication=c)).span_time
        assert physical - published == pytest.approx(p * c)
        v, work = CHUNKS[row["model"]], sum(times)
        assert published == pytest.approx(m * work + (p - 1) * work / v + (2 * p * v - p - 2) * c)


def test_version_1_of_llama_3_prints_an_impossible_degree():
    last = read_table("llama3_table_4")[-1]
    degrees = [int(last[name]) for name in ("TP", "CP", "PP")]
    assert degrees[0] * degrees[1] * degrees[2] * 4 == 8192 != int(last["GPUs"])


# The rules themselves


def test_rules_of_rounding():
    assert str(rounded(41.25, "41.3")) == "41.3"
    assert str(rounded(513.5, "513")) == "514"
    assert str(truncated(513.5, "513")) == "513"
    assert half_unit("1.10") == pytest.approx(0.005)
    assert half_unit("90") == 0.5


def test_a_wrong_number_is_off():
    assert exact("a", "1.2", 1.26).verdict == "off"
    assert exact("a", "513", 513.5).verdict == "off"
    assert exact("a", "513", 513.5, allow_truncation=True).verdict == "exact"
    assert exact("a", "513", 514.1, allow_truncation=True).verdict == "off"
    assert interval("a", "44", 44.6, 45.2).verdict == "off"
    assert interval("a", "44", 45.2, 44.4).verdict == "exact"
    assert within("a", "100", 106, relative=0.05).verdict == "off"
    assert within("a", "0.07", 0.073, absolute=0.002).verdict == "off"
    assert erratum("a", "24.5", 24.5, "it agrees").verdict == "off"
    assert erratum("a", "24.5", 24.96, "it does not").verdict == "erratum"


def test_the_scoreboard_and_its_notes():
    cells = (
        Cell("x", "1", 1.0, "exact"),
        Cell("y", "2", 3.0, "off"),
        Cell("z", "3", None, "not tested", "why"),
    )
    table = Table("Paper", "table 9", "the rule", cells)
    lines = scoreboard([table]).splitlines()
    assert lines[1].split() == ["Paper", "table", "9", "3", "1", "0", "0", "1", "1"]
    assert lines[2].split() == ["all", "3", "1", "0", "0", "1", "1"]
    text = notes([table])
    assert "the rule" in text and "off: y (2)" in text and "not tested: z (3): why" in text


def test_the_command_prints_the_scoreboard():
    done = subprocess.run(
        [sys.executable, "-m", "utils.theory.papers", "network", "--notes"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["paper", "table", "cells", "exact", "band", "erratum", "not", "tested", "off"]
    assert lines[1].split() == ["Ring", "Attention", "table", "2", "10", "8", "0", "2", "0", "0"]
    assert "A100 IB" in done.stdout
    assert done.stderr == ""


def test_every_file_states_its_source():
    folder = resources.files("utils.theory.papers") / "data"
    names = [path.name.removesuffix(".csv") for path in folder.iterdir() if path.name.endswith(".csv")]
    assert len(names) >= 19
    for name in names:
        assert any(word in source_of(name) for word in ("arXiv", "/", "Playbook"))
        rows = read_table(name)
        assert rows and None not in rows[0]
