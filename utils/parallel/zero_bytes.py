"""Bytes of the training state that are alive on a rank, at rest and at their peak: counted from the tensors.

As numbers: :mod:`utils.theory.memory`.
"""

import gc
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the training state on this rank, by kind; the fields of `utils.theory.memory.TrainingState`."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def total_bytes(self):
        return self.parameters + self.gradients + self.optimizer


def state_bytes(zero):
    """Count the memory behind a stage's parameters, gradients and optimizer state that is allocated now.

    zero  a `Zero1`, `Zero2` or `Zero3`; every stretch of memory counts once and whole, however many views it has
    """
    flats, shards = zero.flats, zero.optimizer
    flat_parameters = {parameter for flat in flats for parameter in flat.parameters}
    kinds = [
        [t for flat in flats for t in (flat.weights, flat.shard)]
        + [parameter for parameter in zero.model.parameters() if parameter not in flat_parameters],
        [t for flat in flats for t in (flat.gradients, flat.gradient)]
        + [t.grad for t in [*zero.model.parameters(), *shards.masters]],
        [*shards.masters, *(t for state in shards.optimizer.state.values() for t in state.values())],
    ]
    seen = set()
    return StateBytes(*(new_bytes(tensors, seen) for tensors in kinds))


def alive_bytes():
    """Bytes of all tensors that Python can reach in this process, whoever holds them."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    with_gradients = [*tensors, *(tensor.grad for tensor in tensors if tensor.is_leaf)]
    return new_bytes(with_gradients, set())


def new_bytes(tensors, seen):
    """Bytes of the tensors' storages that are not in `seen`, and add them there."""
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    new = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in seen}
    seen.update(new)
    return sum(new.values())


class PeakBytes(TorchDispatchMode):
    """Watch a stage's training state inside a `with` block: count it after every operation, keep the most.

    >>> with PeakBytes(zero) as peak:         # doctest: +SKIP
    ...     zero.backward(zero(x).sum())
    >>> peak.most                             # doctest: +SKIP

    most   StateBytes, each kind at its own peak
    total  the most that all kinds took at the same moment
    """

    def __init__(self, zero):
        super().__init__()
        self.zero, self.most, self.total = zero, state_bytes(zero), state_bytes(zero).total_bytes

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        now = state_bytes(self.zero)
        self.total = max(self.total, now.total_bytes)
        self.most = StateBytes(*(max(getattr(self.most, kind), getattr(now, kind)) for kind in vars(now)))
        return result
