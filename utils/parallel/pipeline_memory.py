"""The activations that a pipeline rank holds, counted while a schedule runs.

>>> with LiveActivations(exclude=[*chunks, inputs, targets]) as live:            # doctest: +SKIP
...     pipeline.step(inputs, targets)
>>> live.peak_bytes                                                              # doctest: +SKIP
"""

import time
from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from utils.parallel.activations import tensors_of


class LiveActivations:
    """Bytes that autograd saved and that are still alive, while the `with` block runs.

    exclude  what is not an activation: modules (their parameters and buffers), tensors, or several of these, such as the
             batch

    Hooks see each tensor that a forward saves. Of its memory only a weak reference is kept, so the count falls when the
    memory is given back, by whomever: after a backward, or after the weights' part that was put off. A stretch of memory
    counts once and whole. Looked at whenever autograd saves a tensor or asks for one. Not seen: what
    `torch.utils.checkpoint` computes again in backward, and what nobody saves, such as a stage's output on its way. Works
    with fake tensors.

    peak_bytes  the most bytes that were alive at once
    history     (seconds since the start, bytes alive), one entry per look that changed the count

    >>> x = torch.ones(4, requires_grad=True)
    >>> with LiveActivations() as live:
    ...     y = x.exp().sum()          # exp saves its result, 16 bytes
    ...     z = x.exp().sum()
    ...     y.backward()
    ...     del y
    >>> live.peak_bytes, live.live_bytes()
    (32, 16)
    """

    def __init__(self, exclude: torch.nn.Module | torch.Tensor | Iterable = ()):
        self._ignored = {_key(tensor) for tensor in tensors_of(exclude)}
        self._alive, self._bytes = {}, 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, self._asked_for)
        self.peak_bytes, self.history, self._begin = 0, [(0.0, 0)], time.perf_counter()

    def __enter__(self):
        self._hooks.__enter__()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)
        self.live_bytes()

    def live_bytes(self) -> int:
        """Look now: the bytes that are alive."""
        for storage in [storage for storage in self._alive if storage.expired()]:
            self._bytes -= self._alive.pop(storage)
        if self._bytes != self.history[-1][1]:
            self.history.append((time.perf_counter() - self._begin, self._bytes))
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return self._bytes

    def _saved(self, tensor):
        storage = _key(tensor)
        if storage not in self._ignored:
            self.live_bytes()
            if storage not in self._alive:
                self._alive[storage] = tensor.untyped_storage().nbytes()
                self._bytes += self._alive[storage]
                self.live_bytes()
        return tensor

    def _asked_for(self, tensor):
        self.live_bytes()
        return tensor


def _key(tensor):
    return StorageWeakRef(tensor.untyped_storage())
