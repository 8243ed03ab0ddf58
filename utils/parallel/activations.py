"""Count the activations: the bytes that autograd keeps between the forward and the backward pass.

>>> layer = torch.nn.Linear(3, 5, bias=False)
>>> x = torch.randn(2, 3)
>>> saved_bytes(lambda: layer(x), exclude=layer)        # the layer keeps its input: 2 × 3 × 4 bytes
24
"""
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


@dataclass(frozen=True)
class Saved:
    """One stretch of memory that autograd keeps. `shape` and `dtype` are those of the first tensor that asked for it;
    `n_bytes` is the whole stretch, since a view keeps all of it alive."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    n_bytes: int


def saved_tensors(forward: Callable[[], object], exclude: torch.Tensor | torch.nn.Module | Iterable = ()) -> list[Saved]:
    """Run `forward()` and list what autograd keeps for the backward pass, in order of first use.

    forward  a function without arguments, usually `lambda: loss_fn(model(x), y)`
    exclude  what is not to be counted: a module (its parameters and buffers), a tensor, or several of these

    Tensors that share a storage are one entry: an in-place ReLU and the convolution behind it keep the same memory.
    Of a sharded tensor (DTensor) the local part counts. Works under `FakeTensorMode`, where nothing is allocated, and on
    any device. Memory that a kernel uses only while it runs is not seen, nor is what `torch.utils.checkpoint` drops.
    Raises TypeError for anything else in `exclude`.
    """
    ignored = {_storage(part) for tensor in _tensors_of(exclude) for part in _plain(tensor)}
    kept: dict[StorageWeakRef, Saved] = {}

    def keep(tensor):
        for part in _plain(tensor):
            storage = _storage(part)
            if storage not in ignored:
                kept.setdefault(storage, Saved(tuple(part.shape), part.dtype, part.untyped_storage().nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return list(kept.values())


def saved_bytes(forward: Callable[[], object], exclude: torch.Tensor | torch.nn.Module | Iterable = ()) -> int:
    """The bytes of `saved_tensors(forward, exclude)` together."""
    return sum(saved.n_bytes for saved in saved_tensors(forward, exclude))


def _tensors_of(things):
    if isinstance(things, torch.Tensor):
        yield things
    elif isinstance(things, torch.nn.Module):
        yield from things.parameters()
        yield from things.buffers()
    elif isinstance(things, Iterable):
        for thing in things:
            yield from _tensors_of(thing)
    else:
        raise TypeError(f"exclude takes tensors and modules, but {things!r} was given. Pass for example exclude=(model, x).")


def _plain(tensor):
    """The tensors that hold the memory: the tensor itself, or what a wrapper such as a DTensor wraps."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    attributes = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [part for attribute in attributes if isinstance(attribute, torch.Tensor) for part in _plain(attribute)]


def _storage(tensor):
    """A key that stays unique as long as we hold it, even after the memory is freed."""
    return StorageWeakRef(tensor.untyped_storage())
