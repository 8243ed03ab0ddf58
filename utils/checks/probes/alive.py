"""The bytes of tensors that are alive while code runs, whoever holds them."""

import gc

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AliveBytes(TorchDispatchMode):
    """Follow the memory behind every tensor that an operation inside a `with` block gives back.

    >>> with AliveBytes() as alive:
    ...     kept = torch.zeros(100) + torch.ones(100)
    >>> alive.now(), alive.peak
    (400, 1200)

    A stretch of memory counts once and whole, however many views it has, and as long as one of them is there. A tensor
    from elsewhere, such as one of `torch.from_numpy`, counts only when a view of it is made inside. What an operation
    needs only while it runs is not seen.
    """

    def __init__(self):
        super().__init__()
        self._made, self.peak = set(), 0

    def __enter__(self):
        gc.freeze()  # what is there already need not be looked through by every collection
        return super().__enter__()

    def __exit__(self, *error):
        gc.unfreeze()
        return super().__exit__(*error)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":  # a shape without memory
                self._made.add(StorageWeakRef(leaf.untyped_storage()))
        self.peak = max(self.peak, self._count())
        return result

    def now(self):
        """Bytes that are alive now; circles of objects that nobody reaches are collected first."""
        gc.collect()
        return self._count()

    def restart(self):
        """Begin a new peak, and return what is alive now."""
        self.peak = self.now()
        return self.peak

    def _count(self):
        storages = {made: torch.UntypedStorage._new_with_weak_ptr(made.cdata) for made in self._made}
        self._made = {made for made, storage in storages.items() if storage is not None}
        return sum(storage.nbytes() for storage in storages.values() if storage is not None)
