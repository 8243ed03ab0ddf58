"""Lab 05 on the far side of the boundary: a small model cut three ways, for the student's groups and training step."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from utils.checks.boundary import case
from utils.checks.probes.arithmetic import number_or_none
from utils.parallel.pipeline import Pipeline
from utils.parallel.tensor_ops import copy_to_group, reduce_from_group
from utils.theory.pipeline import build

WEIGHTS = ("table", "scale", "shift", "a", "b")


class Stage(nn.Module):
    """One pipeline stage of a language model, its MLP cut over the ranks of a tensor group.

    table  (V, h) on the first and the last stage, which embed and predict with it; None on the stages between
    scale  (h,), the same on all ranks of the tensor group
    shift  (h,), frozen
    a, b   this rank's columns (h, f/t) and rows (f/t, h)
    """

    def __init__(self, group, first, last, weights):
        super().__init__()
        self.group, self.first, self.last = group, first, last
        for name, array in zip(WEIGHTS, weights, strict=True):
            value = None if array is None else nn.Parameter(torch.from_numpy(array), requires_grad=name != "shift")
            self.register_parameter(name, value)

    def forward(self, x):
        """Tokens (b, s) on the first stage, else (b, s, h); gives (b, s, h), on the last stage logits (b, s, V)."""
        x = F.embedding(x, self.table) if self.first else x
        inner = copy_to_group(x * self.scale + self.shift, self.group)
        x = x + reduce_from_group(torch.tanh(inner @ self.a) @ self.b, self.group)
        return x @ self.table.T if self.last else x


def mean_loss(logits, targets):
    """Cross-entropy, the mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run_pipeline(stage, inputs, targets, group):
    """Forward and backward of all micro-batches under 1F1B by the course's executor.

    inputs, targets: lists of m tensors (b, s), the same on every rank of `group`. Adds the gradients of the mean loss
    over the m micro-batches to the stage's parameters; returns that loss on the last rank of the group, else None.
    """
    schedule = build("1f1b", dist.get_world_size(group), len(inputs))
    boundary = torch.empty(*inputs[0].shape, len(stage.scale), dtype=stage.scale.dtype)
    return Pipeline(schedule, [stage], mean_loss, boundary, group).step(inputs, targets).loss


def step(make_groups, train_step, sizes, weights, tokens, targets, micro_batch):
    """Make the student's groups, build this rank's stage on them, call the student's step once.

    weights is {"arrays": for each rank the arrays of WEIGHTS, table None where there is none}. Returns the members of
    each group, the loss, the gradient of each weight, and the inputs of each call of run_pipeline, one array each.
    """
    with case("groups"):
        groups = make_groups(**sizes)
    if not isinstance(groups, dict):
        raise TypeError(f"make_groups must return a dict of groups; it returned a {type(groups).__name__}.")
    missing = [name for name in ("tensor", "data", "pipeline", "embedding") if name not in groups]
    if missing:
        raise KeyError(f"make_groups must return a dict with a group under the name {missing[0]!r}.")
    members = {str(name): _members(group) for name, group in groups.items()}
    stages, mine = dist.get_world_size(groups["pipeline"]), dist.get_rank(groups["pipeline"])
    stage = Stage(groups["tensor"], mine == 0, mine == stages - 1, weights["arrays"][dist.get_rank()])
    seen = []

    def watched(stage, inputs, targets, group):
        seen.append(torch.cat(list(inputs)).numpy().copy())
        return run_pipeline(stage, inputs, targets, group)

    with case("step"):
        loss = train_step(stage, watched, groups, torch.from_numpy(tokens), torch.from_numpy(targets), micro_batch)
    gradients = {name: getattr(stage, name) for name in WEIGHTS}
    return {
        "members": members,
        "loss": number_or_none(loss, "The loss"),
        "inputs": seen,
        "gradients": {name: None if weight is None else weight.grad for name, weight in gradients.items()},
    }


def _members(group):
    return None if group is None else sorted(dist.get_process_group_ranks(group))
