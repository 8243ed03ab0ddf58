"""Split a backward pass in two: the gradient of the input first, the gradients of the weights later.

Only the input's gradient is awaited by another rank, so a schedule may do the weights' part when there is nothing
better to do (Zero Bubble, Qi et al. 2023, arXiv 2401.10241). Matrices make nearly all of that part, so it is the
linear layers whose weights wait; norms and embeddings get theirs at once.
"""

import contextlib
from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd import Function


class WeightGradients:
    """Let the linear layers of `modules` put off their weights' gradients.

    >>> layer, x = nn.Linear(2, 3), torch.ones(4, 2)
    >>> gradients = WeightGradients([layer])
    >>> with gradients.later("first"):
    ...     layer(x).sum().backward()
    >>> layer.weight.grad is None
    True
    >>> gradients.now("first")
    >>> layer.weight.grad.tolist()
    [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]
    """

    def __init__(self, modules: Sequence[nn.Module]):
        self._put_off = {}
        self._current = None
        for module in modules:
            for layer in module.modules():
                if isinstance(layer, nn.Linear):
                    layer.forward = _Later(layer, self)
                elif hasattr(layer, "put_off"):
                    layer.put_off = self.put_off

    @contextlib.contextmanager
    def later(self, *name):
        """Backward passes inside the `with` block leave their weights' part for `now(*name)`."""
        self._current = self._put_off.setdefault(name, [])
        try:
            yield
        finally:
            self._current = None

    def now(self, *name) -> None:
        """Do the weights' part of what ran under `later(*name)`; KeyError if nothing did, see `waiting`."""
        for work in self._put_off.pop(name):
            work()

    def waiting(self, *name) -> bool:
        """Whether something ran under `later(*name)` and its weights' part is still to be done."""
        return name in self._put_off

    def put_off(self, work) -> None:
        """Do `work()` in `now`, or at once outside `later`."""
        if self._current is None:
            work()
        else:
            self._current.append(work)


class _Later:
    """A linear layer's forward whose backward gives the input's gradient and puts off the rest."""

    def __init__(self, layer, gradients):
        self.layer, self.gradients = layer, gradients

    def __call__(self, x):
        return _Linear.apply(x, self.layer.weight, self.layer, self.gradients.put_off)


class _Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, layer, put_off):
        ctx.save_for_backward(x)
        ctx.layer, ctx.put_off = layer, put_off
        return nn.functional.linear(x, weight, layer.bias)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        ctx.put_off(lambda: _add_gradients(layer, x, gradient))
        return gradient @ layer.weight if ctx.needs_input_grad[0] else None, None, None, None


@torch.no_grad()
def _add_gradients(layer, x, gradient):
    rows, columns = gradient.flatten(0, -2), x.flatten(0, -2)
    _add(layer.weight, lambda: rows.T @ columns)
    if layer.bias is not None:
        _add(layer.bias, lambda: rows.sum(0))


def _add(parameter, gradient):
    if parameter.requires_grad and parameter.grad is None:
        parameter.grad = gradient()
    elif parameter.requires_grad:
        parameter.grad += gradient()
