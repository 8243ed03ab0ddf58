"""Lab 04 on the far side of the boundary: stages, micro-batches and schedules for the student's functions."""

import gc
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from utils.checks.boundary import case
from utils.checks.probes.arithmetic import number_or_none, unchanged
from utils.parallel.pipeline import Pipeline
from utils.theory.pipeline import Action, Schedule


def squared_error(output, target):
    """The mean over the samples of a sum over the outputs."""
    return (output - target).square().sum(1).mean()


def _tensors(arrays):
    return None if arrays is None else [torch.from_numpy(array) for array in arrays]


# q4: a schedule on ranks


class WatchedStage(nn.Module):
    """tanh(x · weight + bias), with a frozen bias; it notes what is done with it.

    events  "F" and "BW" in the order in which they happened
    peak    the most forwards whose graph was alive at once
    """

    def __init__(self, weight, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(weight))
        self.bias = nn.Parameter(torch.from_numpy(bias), requires_grad=False)
        self.events, self.peak, self._alive = [], 0, weakref.WeakSet()

    def forward(self, x):
        out = _Watch.apply(torch.tanh(x @ self.weight + self.bias), self)
        if len(self._alive) > self.peak:
            gc.collect()  # graphs that hang in a circle of objects are nobody's any more
            self.peak = max(self.peak, len(self._alive))
        return out


class _Token:
    """Lives as long as the graph that it hangs on."""


class _Watch(Function):
    @staticmethod
    def forward(ctx, x, stage):
        ctx.token, ctx.stage = _Token(), stage
        stage._alive.add(ctx.token)
        stage.events.append("F")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.stage.events.append("BW")
        return gradient, None


def execute(run_schedule, cases):
    """Run each case's schedule on all ranks; return loss, gradients, events and peak of this rank for each case.

    A case has for each rank, as {"arrays": one entry per rank}: actions, weights [weight, bias], before (what the weight's
    grad holds already), inputs and targets (lists of arrays, or None where a rank has none); and boundary, an array.
    """
    rank = dist.get_rank()
    return [_execute(run_schedule, rank, number, **given) for number, given in enumerate(cases)]


def _execute(run_schedule, rank, number, actions, weights, before, inputs, targets, boundary):
    stage = WatchedStage(*weights["arrays"][rank])
    stage.weight.grad = torch.from_numpy(before["arrays"][rank])
    mine = [(kind, i) for kind, i in actions["arrays"][rank]]
    x, y = (_tensors(part["arrays"][rank]) for part in (inputs, targets))
    with case(number):
        loss = run_schedule(mine, stage, squared_error, torch.from_numpy(boundary), x, y)
    unchanged(mine, [(kind, i) for kind, i in actions["arrays"][rank]], "the list of actions")
    return {
        "loss": number_or_none(loss, "The loss"),
        "gradient": stage.weight.grad,
        "frozen": stage.bias.grad is None,
        "events": stage.events,
        "peak": stage.peak,
    }


# q5: backward in two parts


def split_linear(_order, SplitLinear, layers):
    """For each layer, several micro-batches through SplitLinear: forward, backward, and only then what was put off.

    A layer is {"weight", "inputs", "gradients", "of_input": whether x has a gradient, "late": the order of the W's}.
    Returns outputs, gradients of x, and the weight's gradient before, between and after.
    """
    return [_split(SplitLinear, **layer) for layer in layers]


def _split(SplitLinear, weight, inputs, gradients, of_input, late):
    weight = torch.from_numpy(weight).requires_grad_()
    waiting, outputs, of_inputs, products = [], [], [], []
    for array, gradient in zip(inputs, gradients):
        x, put_off = torch.from_numpy(array).requires_grad_(of_input), []
        y = SplitLinear.apply(x, weight, put_off.append)
        with _Products(weight.shape) as made:
            y.backward(torch.from_numpy(gradient))
        products.append(made.count)
        outputs.append(y)
        of_inputs.append(x.grad)
        waiting.append(put_off)
    early = weight.grad is not None
    seen = []
    for number in late:
        for work in waiting[number]:
            work()
        seen.append(None if weight.grad is None else weight.grad.clone())
    return {
        "outputs": outputs,
        "of_inputs": of_inputs,
        "early": early,
        "put_off": [len(works) for works in waiting],
        "products": products,
        "seen": seen,
    }


class _Products(TorchDispatchMode):
    """Counts the matrix products whose result has the shape of a weight, or of its transpose."""

    def __init__(self, shape):
        super().__init__()
        self.count, self._shapes = 0, (tuple(shape), tuple(shape)[::-1])

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if "mm" in operator.__name__ and isinstance(result, torch.Tensor):
            self.count += tuple(result.squeeze().shape) in self._shapes
        return result


class SplitStage(nn.Module):
    """tanh(tanh(x · firstᵀ) · secondᵀ) from the student's layers; a Pipeline sets `put_off`."""

    def __init__(self, SplitLinear, first, second):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.from_numpy(array)) for array in (first, second))
        self.layer, self.put_off = SplitLinear, lambda work: work()

    def forward(self, x):
        for weight in (self.first, self.second):
            x = torch.tanh(self.layer.apply(x, weight, lambda work: self.put_off(work)))
        return x


def split_pipeline(zb_h1_order, SplitLinear, micro_batches, weights, inputs, targets, boundary):
    """The student's order and layers in the course's Pipeline; return loss and gradients of this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = tuple(tuple(Action(kind, i) for kind, i in row) for row in zb_h1_order(ranks, micro_batches))
    stage = SplitStage(SplitLinear, *weights["arrays"][rank])
    pipeline = Pipeline(Schedule("yours", rows, micro_batches), [stage], squared_error, torch.from_numpy(boundary))
    x, y = (_tensors(part["arrays"][rank]) for part in (inputs, targets))
    with case("step"):
        report = pipeline.step(x, y)
    return {"loss": report.loss, "gradients": [stage.first.grad, stage.second.grad]}
