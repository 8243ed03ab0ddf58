"""Pipeline parallelism by hand: one executor runs any schedule of `utils.theory.pipeline` over send and recv.

A schedule says for each rank which piece of work comes next; the executor does it, in that order:

>>> pipeline = Pipeline(schedule, chunks, loss_fn, boundary)         # doctest: +SKIP
>>> report = pipeline.step(inputs, targets)                         # doctest: +SKIP

Each message has its own tag, made of stage, micro-batch and direction, so a rank may send in another order than its
neighbour receives. gloo keeps tags apart; NCCL does not know tags and matches messages by their order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from utils.parallel.pipeline_limits import refuse_what_does_not_run
from utils.parallel.weight_gradients import WeightGradients
from utils.ranks.rank import span
from utils.theory.pipeline import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Schedule, check_complete


@dataclass
class Report:
    """What one rank knows after a step.

    loss            the mean over all micro-batches, on the rank that holds the last stage; None elsewhere
    peak_in_flight  the most micro-batches that waited for their backward at once, in whole ranks' layers: one of a
                    rank's v chunks counts 1/v
    """

    loss: float | None
    peak_in_flight: float


class Pipeline:
    """One rank's part of a pipeline: its chunks of the model, and the step that runs a schedule over them.

    schedule  a Schedule for as many ranks as the group has
    chunks    this rank's stages as modules, in the order of the schedule's chunks; each takes what the stage before
              gives
    loss_fn   (output of the last stage, target) to the mean loss of a micro-batch
    boundary  a tensor with the shape and dtype of what goes from stage to stage; its numbers are not used
    group     the ranks of the pipeline; None for all

    Raises ValueError when these do not fit together, and for bidirectional schedules (DualPipe), which need two copies
    of each stage.
    """

    def __init__(
        self,
        schedule: Schedule,
        chunks: Sequence[nn.Module],
        loss_fn: Callable,
        boundary: torch.Tensor,
        group: dist.ProcessGroup | None = None,
    ):
        _check(schedule, chunks, group)
        self.schedule, self.chunks, self.loss_fn, self.boundary = schedule, list(chunks), loss_fn, boundary
        self.rank = dist.get_rank(group)
        self.mail = _Mail(schedule, boundary, group)
        self.weight_gradients = WeightGradients(self.chunks)

    def step(self, inputs: Sequence | None = None, targets: Sequence | None = None) -> Report:
        """Run the schedule once; the gradients of the mean loss are added to each parameter's `grad`.

        inputs   the m micro-batches, on the rank that holds the first stage; the others may leave it out
        targets  their m targets, on the rank that holds the last stage
        """
        m = self.schedule.micro_batches
        for name, values, stage in (("inputs", inputs, 0), ("targets", targets, self.schedule.stages - 1)):
            if self.schedule.rank_of(stage) == self.rank and (values is None or len(values) != m):
                given = "none" if values is None else len(values)
                raise ValueError(
                    f"Rank {self.rank} holds stage {stage} and needs the {name} of {m} micro-batches, but got {given}."
                )
        self.inputs, self.targets = inputs, targets
        self.in_flight, self.losses, peak = {}, [], 0
        work = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            BACKWARD_INPUT: self._backward,
            BACKWARD_WEIGHT: self._backward_weight,
        }
        for action in self.schedule.ranks[self.rank]:
            work[action.kind](action)
            peak = max(peak, len(self.in_flight))
        self.mail.all_arrived()
        return Report(self._loss(), peak / self.schedule.visits)

    def _loss(self):
        return sum(self.losses).item() if self.losses else None

    def _forward(self, action):
        stage, micro_batch = self.schedule.stage(self.rank, action.chunk), action.micro_batch
        if stage == 0:
            x = self.inputs[micro_batch]
        else:
            x = self.mail.receive("activation", stage, micro_batch).requires_grad_()
        with _mark(action):
            out = self.chunks[action.chunk](x)
            if stage == self.schedule.stages - 1:
                out = self.loss_fn(out, self.targets[micro_batch]) / self.schedule.micro_batches
                self.losses.append(out.detach())
        self.in_flight[stage, micro_batch] = x, out
        if stage < self.schedule.stages - 1:
            self.mail.send("activation", stage + 1, micro_batch, out.detach())

    def _backward(self, action):
        """B, or BW: then the weights' part follows at once."""
        stage, micro_batch = self.schedule.stage(self.rank, action.chunk), action.micro_batch
        if (stage, micro_batch) not in self.in_flight:
            raise ValueError(
                f"Rank {self.rank} shall do {action} before the forward of micro-batch {micro_batch}: "
                "there is nothing yet to go back through."
            )
        gradient = None
        if stage < self.schedule.stages - 1:
            gradient = self.mail.receive("gradient", stage, micro_batch)
        x, out = self.in_flight.pop((stage, micro_batch))
        with _mark(action), self.weight_gradients.later(stage, micro_batch):
            out.backward(gradient)
            if action.kind == BACKWARD:
                self.weight_gradients.now(stage, micro_batch)
        if stage > 0:
            self.mail.send("gradient", stage - 1, micro_batch, x.grad)

    def _backward_weight(self, action):
        name = self.schedule.stage(self.rank, action.chunk), action.micro_batch
        if not self.weight_gradients.waiting(*name):
            raise ValueError(
                f"Rank {self.rank} shall do {action} before the B of micro-batch {action.micro_batch}: "
                "the weights' part of a backward pass needs what B leaves."
            )
        with _mark(action):
            self.weight_gradients.now(*name)


class _Mail:
    """Tensors between stages: by send and recv between ranks, by hand where both stages are on one rank.

    Sends do not wait for the receiver. A stage's gradient shows that its output has arrived, so that memory can go.
    """

    def __init__(self, schedule, boundary, group):
        self.schedule, self.boundary, self.group = schedule, boundary, group
        self.rank = dist.get_rank(group)
        self.on_the_way, self.on_this_rank = {}, {}

    def send(self, what, to_stage, micro_batch, tensor):
        key = what, to_stage, micro_batch
        to_rank = self.schedule.rank_of(to_stage, micro_batch)
        if to_rank == self.rank:
            self.on_this_rank[key] = tensor
        else:
            tensor = tensor.contiguous()
            work = dist.isend(tensor, group=self.group, group_dst=to_rank, tag=self._tag(*key))
            self.on_the_way[key] = work, tensor

    def receive(self, what, stage, micro_batch):
        key = what, stage, micro_batch
        from_stage = stage - 1 if what == "activation" else stage + 1
        from_rank = self.schedule.rank_of(from_stage, micro_batch)
        if from_rank == self.rank:
            tensor = self.on_this_rank.pop(key)
        else:
            tensor = torch.empty_like(self.boundary, requires_grad=False)
            dist.recv(tensor, group=self.group, group_src=from_rank, tag=self._tag(*key))
        if what == "gradient":
            self._arrived(("activation", stage + 1, micro_batch))
        return tensor

    def all_arrived(self):
        for key in list(self.on_the_way):
            self._arrived(key)

    def _arrived(self, key):
        if key in self.on_the_way:
            work, _ = self.on_the_way.pop(key)
            work.wait()

    def _tag(self, what, stage, micro_batch):
        return 2 * (micro_batch * self.schedule.stages + stage) + (what == "gradient")


def _mark(action):
    return span(action.kind, micro_batch=action.micro_batch, chunk=action.chunk)


def _check(schedule, chunks, group):
    check_complete(schedule)
    n, p, v = dist.get_world_size(group), schedule.pipeline, schedule.chunks
    refuse_what_does_not_run(schedule)
    if n != p:
        raise ValueError(f"The schedule is for {p} ranks, but there are {n}.")
    if len(chunks) != v:
        raise ValueError(f"The schedule has {v} chunks on each rank, but {len(chunks)} modules were given.")
    if v > 1 and dist.get_backend(group) == "nccl":
        raise ValueError("With several chunks per rank messages overtake each other, which NCCL does not allow. Use gloo.")
