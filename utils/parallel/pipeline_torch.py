"""PyTorch's own pipelines, `torch.distributed.pipelining`: its order of actions read as a Schedule, and its schedules run.

>>> torch_schedule("GPipe", 2, 3).ranks[1][:4]                                     # doctest: +SKIP
>>> run_torch("1F1B", chunks, loss_fn, inputs, targets)                            # doctest: +SKIP

The table of actions is a private part of PyTorch, and so is its runtime for schedules written as text; both are used here
and nowhere else.
"""

import contextlib
import csv
import os
import tempfile
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from utils.theory.pipeline import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Schedule

TORCH_NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped bfs",
    "Interleaved1F1B": "interleaved 1f1b",
    "InterleavedZeroBubble": None,
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
"""PyTorch's seven schedules; the course's name of each, None where the course has none."""

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
_LETTERS = {FORWARD: "F", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W", BACKWARD: "B"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


# Read


def printed_table(name: str, pipeline: int, micro_batches: int) -> list[list[str]]:
    """PyTorch's list of actions for each rank, as it prints them: "2F0" is the forward of micro-batch 0 on stage 2.

    F forward, I backward of the input, W of the weights, B both; two in brackets run as one. No rank is started.
    Raises ValueError for a name that is not in TORCH_NAMES.
    """
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    rows = get_schedule_ops(_known(name), pipeline, micro_batches)
    return [[str(action) for action in row if action is not None and "REDUCE" not in str(action)] for row in rows]


def torch_schedule(name: str, pipeline: int, micro_batches: int) -> Schedule:
    """PyTorch's schedule as one of ours, which `simulate` and `draw_schedule` take.

    In PyTorch 2.13 the table of "1F1B" starts the last rank at micro-batch 1 and ends with one that does not exist; the
    executed order is right. Here that rank's forwards are counted from 0.
    """
    placement = "v" if name in V_SHAPED else "loop"
    rows = [[part for cell in row for part in _parts(cell)] for row in printed_table(name, pipeline, micro_batches)]
    chunks = 1 + max(stage for row in rows for stage, *_ in row) // pipeline
    rows = [_first_is_zero(row) if name == "1F1B" else row for row in rows]
    actions = tuple(
        tuple(Action(kind, micro_batch, stage // pipeline, paired) for stage, kind, micro_batch, paired in row) for row in rows
    )
    return Schedule(f"PyTorch's {name}", actions, micro_batches, chunks, placement)


def _first_is_zero(row):
    """The same actions with the forwards' micro-batches counted from 0."""
    too_much = row[0][2]
    return [(stage, kind, m - too_much if kind == FORWARD else m, paired) for stage, kind, m, paired in row]


def _parts(cell):
    """(stage, kind, micro-batch, paired) of the one or two actions in a cell of the table."""
    pair = cell.startswith("(")
    inside = cell[1 : cell.index(")")].split(";") if pair else [cell]
    for position, text in enumerate(inside):
        letter = next(letter for letter in _KINDS if letter in text)
        stage, micro_batch = map(int, text.split(letter))
        yield stage, _KINDS[letter], micro_batch, pair and position == 0


def as_text(schedule: Schedule) -> list[list[str]]:
    """Our schedule in PyTorch's words, for each rank a list such as ["0F0", "0F1", "0I0", "0W0", …].

    >>> from utils.theory.pipeline import zb_h1
    >>> as_text(zb_h1(2, 2))
    [['0F0', '0F1', '0I0', '0W0', '0I1', '0W1'], ['1F0', '1I0', '1F1', '1I1', '1W0', '1W1']]
    """
    return [
        [f"{schedule.stage(rank, a.chunk)}{_LETTERS[a.kind]}{a.micro_batch}" for a in row]
        for rank, row in enumerate(schedule.ranks)
    ]


# Run


def stages_of_rank(name: str, pipeline: int, rank: int) -> list[int]:
    """The stages that `rank` holds under one of PyTorch's schedules: one, or two where the schedule has several chunks."""
    if _known(name) in ("GPipe", "1F1B"):
        return [rank]
    return [rank, 2 * pipeline - 1 - rank] if name in V_SHAPED else [rank, pipeline + rank]


def run_torch(name: str, chunks: Sequence[nn.Module], loss_fn: Callable, inputs, targets) -> float | None:
    """On a rank: one step of a schedule of PyTorch; gradients are left in the chunks, the loss comes from the last stage.

    name    one of TORCH_NAMES
    chunks  this rank's stages, in the order of `stages_of_rank`
    inputs, targets  of all micro-batches, (m, …); every rank may give them, only the first and last stage take them
    """
    from torch.distributed.pipelining.schedules import get_schedule_class

    stages = _stages(chunks, stages_of_rank(name, dist.get_world_size(), dist.get_rank()))
    schedule = get_schedule_class(name)(
        stages if len(chunks) > 1 else stages[0], n_microbatches=len(inputs), loss_fn=loss_fn
    )
    return _step(schedule, stages, inputs, targets)


def run_text(rows: Sequence[Sequence[str]], chunk: nn.Module, loss_fn: Callable, inputs, targets) -> float | None:
    """On a rank: one step of a schedule written as text, one stage per rank, in PyTorch's own runtime.

    rows  for each rank its actions, as `as_text` writes them; PyTorch adds the sends and receives
    """
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    stages = _stages([chunk], [dist.get_rank()])
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=len(inputs), loss_fn=loss_fn)
    with _file(rows) as path:
        schedule._load_csv(path)
    return _step(schedule, stages, inputs, targets)


def _stages(chunks, numbers):
    from torch.distributed.pipelining import PipelineStage

    stages = len(numbers) * dist.get_world_size()
    device = next(chunks[0].parameters()).device
    of_rank = [PipelineStage(chunk, number, stages, device) for chunk, number in zip(chunks, numbers)]
    if dist.get_backend() == "gloo":
        # Up to torch 2.11 a stage first greets its neighbours. NCCL needs that; gloo does not, and it cannot send to
        # the own rank, where a V-shaped schedule has two neighbours.
        for stage in of_rank:
            stage._get_init_p2p_neighbors_ops = list
    return of_rank


def _step(schedule, stages, inputs, targets):
    """PyTorch takes the whole batch and cuts it itself. In torch 2.10 the strides of the cut must be those of a whole tensor."""
    takes_inputs, takes_targets = (any(getattr(s, end) for s in stages) for end in ("is_first", "is_last"))
    batch = (torch.flatten(torch.as_tensor(inputs), 0, 1).contiguous(),) if takes_inputs else ()
    losses = []
    extra = {"target": torch.flatten(targets, 0, 1), "losses": losses} if takes_targets else {}
    schedule.step(*batch, **extra, return_outputs=False)
    return torch.stack(losses).mean().item() if losses else None


@contextlib.contextmanager
def _file(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schedule.csv")
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        yield path


def _known(name):
    if name not in TORCH_NAMES:
        raise ValueError(f"PyTorch has the schedules {', '.join(TORCH_NAMES)}, but {name!r} was given.")
    return name
