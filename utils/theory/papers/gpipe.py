"""GPipe, arXiv 1811.06965."""

from ..memory import Recipe, training_state_bytes
from ..pipeline import pipeline_speedup
from ..presets import MODELS
from ..units import GB, GiB
from .tables import Cell, Table, erratum, not_tested, read_table, within

PAPER = "GPipe"
RMSPROP = Recipe(4, 4, 4)


def table_1():
    """Parameters and their memory, 12 bytes each, of the largest Transformers and AmoebaNets."""
    cells = []
    for row in read_table("gpipe_table_1"):
        name = f"{row['model']} {row['col']}"
        if not row["model"].startswith("Transformer"):
            cells.append(
                not_tested(f"{name} parameters", row["params"], "AmoebaNet's cells are not described here")
            )
            cells.append(_amoeba_memory(name, row))
        else:
            cells.extend(_transformer(name, row))
        if not name.startswith("Transformer-3 "):
            cells.append(
                not_tested(f"{name} activations", row["peak_act"], "depends on the compiler's buffers")
            )
    rule = (
        "parameters ±0.4 %; memory, 12 bytes per parameter: Transformers in GiB ±1 %, AmoebaNets in GB "
        "±7 %, from the rounded parameters"
    )
    return Table(PAPER, "table 1", rule, tuple(cells))


def _transformer(name, row):
    model = MODELS[f"gpipe-{row['model'].removeprefix('Transformer-')}"]
    unit = {"M": 1e6, "B": 1e9}[row["params"][-1]]
    # The paper's count has no final norm.
    parameters = model.parameters - model.norm_parameters
    memory = training_state_bytes(parameters, RMSPROP) / GiB
    yield within(f"{name} parameters", row["params"][:-1], parameters / unit, relative=0.004)
    if row["col"] == "Naive-1" and row["model"] == "Transformer-3":
        note = "swapped with its neighbour: 282.2M · 12 B is 3.15 GiB, printed as activations"
        yield erratum(f"{name} memory", row["param_mem"][:-1], memory, note)
        yield Cell(f"{name} activations", row["peak_act"][:-1], None, "erratum", note)
    else:
        yield within(f"{name} memory", row["param_mem"][:-1], memory, relative=0.01)


def _amoeba_memory(name, row):
    unit = {"M": 1e6, "B": 1e9}[row["params"][-1]]
    gigabytes = float(row["params"][:-1]) * unit * RMSPROP.bytes_per_parameter / GB
    if "(72;512)" in name:
        note = "24.62 is 12 bytes for 2.05 B parameters, not 1.8 B; the text's 25x is 2.05 B / 82 M"
        return erratum(f"{name} memory", row["param_mem"][:-2], gigabytes, note)
    return within(f"{name} memory", row["param_mem"][:-2], gigabytes, relative=0.07)


def table_2():
    """Speed-ups over K = 2, M = 1."""
    cells = []
    for row in read_table("gpipe_table_2"):
        m = int(row["M"])
        for column, printed in row.items():
            if column == "M":
                continue
            kind, k = column.split("_K")
            name = f"{kind} K={k} M={m}"
            if kind == "Amoeba":
                cells.append(
                    not_tested(name, printed, "its stages are not balanced, and by how much is not printed")
                )
            elif m == 32:
                cells.append(within(name, printed, pipeline_speedup(int(k), m), relative=0.10))
            elif m == 1:
                cells.append(
                    Cell(
                        name,
                        printed,
                        pipeline_speedup(int(k), m),
                        "not tested",
                        "recomputation is scheduled early",
                    )
                )
            else:
                note = "above KM/(M + K − 1): the batch was changed to fit the memory"
                cells.append(Cell(name, printed, pipeline_speedup(int(k), m), "not tested", note))
    return Table(PAPER, "table 2", "KM/(M + K − 1), ±10 %", tuple(cells))


def table_3():
    """Speed-ups over K = 2 on GPUs without NVLink, M = 32."""
    base = pipeline_speedup(2, 32)
    cells = tuple(
        within(f"Transformer K={k}", text, pipeline_speedup(k, 32) / base, relative=0.10)
        for k, text in ((2, "1"), (4, "1.8"), (8, "3.3"))
    )
    return Table(PAPER, "table 3", "ratio of KM/(M + K − 1), ±10 %", cells)


TABLES = (table_1, table_2, table_3)
