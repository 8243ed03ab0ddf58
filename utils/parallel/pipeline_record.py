"""A pipeline step that really ran, as the same object that the simulator gives: bubble and timeline by the same code.

>>> measured = recorded(run, schedule)                                          # doctest: +SKIP
>>> measured.bubble_rate, simulate(schedule).bubble_rate                        # doctest: +SKIP
"""

import numpy as np
import torch
import torch.distributed as dist

from utils.parallel.pipeline import Pipeline
from utils.parallel.stages import sleeping_chunks
from utils.ranks.run import Run
from utils.theory.actions import KINDS
from utils.theory.pipeline import UNIT_COSTS, Costs, Schedule, Simulation, TimedAction


def recorded(run: Run, schedule: Schedule, unit: float = 1.0) -> Simulation:
    """The last step of `run` under `schedule`, as a Simulation whose times start at 0.

    run   a Run whose ranks called `Pipeline.step`, or marked their actions with
          `span(kind, micro_batch=…, chunk=…)`, kind being F, B, W or BW
    unit  seconds that count as one unit of time; 1.0 gives seconds

    Only the actions count as work; waiting for a message and handing one over is bubble. `messages_sent` counts the
    sends since the last step's first action. Raises ValueError where a rank did other actions than the schedule says, or
    in another order.
    """
    spans, calls = run.spans(), run.calls()
    rows = [_last_step(spans, rank, row) for rank, row in enumerate(schedule.ranks)]
    begin = min(row[0].start for row in rows)
    timeline = tuple(
        tuple(a._replace(start=(a.start - begin) / unit, end=(a.end - begin) / unit) for a in row) for row in rows
    )
    sends = calls[calls.op == "send"]
    sent = [int(((sends["rank"] == rank) & (sends.start >= begin)).sum()) for rank in range(schedule.pipeline)]
    return Simulation(schedule, timeline, np.array(sent))


def _last_step(spans, rank, row):
    """The last `len(row)` actions of a rank as TimedActions in seconds of the run."""
    if "micro_batch" in spans:
        mine = spans[(spans["rank"] == rank) & spans["name"].isin(KINDS)].sort_values("start").tail(len(row))
    else:
        mine = spans[:0]
    if len(mine) < len(row):
        raise ValueError(
            f"Rank {rank} did {len(mine)} actions, but its schedule has {len(row)}. Mark each with "
            "span(kind, micro_batch=…, chunk=…), or run the schedule with Pipeline."
        )
    chunks = mine["chunk"].fillna(0) if "chunk" in mine else [0] * len(mine)
    done = [
        TimedAction(kind, int(micro_batch), int(chunk), start, end)
        for kind, micro_batch, chunk, start, end in zip(mine["name"], mine["micro_batch"], chunks, mine["start"], mine["end"])
    ]
    for number, (action, planned) in enumerate(zip(done, row)):
        if action[:3] != planned[:3]:
            raise ValueError(
                f"Rank {rank} did {_name(action)} as action {number} of its last step, where the schedule says {planned}."
            )
    return done


def _name(action):
    return f"{action.kind}{action.micro_batch}" + (f".{action.chunk}" if action.chunk else "")


def sleep_through(schedule: Schedule, unit: float = 0.06, costs: Costs = UNIT_COSTS) -> list[float]:
    """On a rank: run `schedule` once over stages that sleep; returns the gradient of each of this rank's stages.

    unit  seconds of one unit of the costs; from 0.05 on the executor's own time hardly shows
    """
    chunks = sleeping_chunks(costs, schedule, dist.get_rank(), unit)
    boundary = torch.empty(1, dtype=torch.float64)
    pipeline = Pipeline(schedule, chunks, lambda out, target: out.sum(), boundary)
    data = [torch.full((1,), float(i + 1), dtype=torch.float64) for i in range(schedule.micro_batches)]
    dist.barrier()
    pipeline.step(data, data)
    return [chunk.weight.grad.item() for chunk in chunks]
