"""Watch memory while a program runs: the bytes of named groups of tensors, after every operation.

Where `PeakBytes` of :mod:`utils.parallel.zero_bytes` knows the course's ZeRO stages, `Watch` takes any tensors:
a lesson's own classes, or a model under PyTorch's FSDP2.
"""

from collections.abc import Callable, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.parallel.zero_bytes import new_bytes

Groups = dict[str, Iterable[torch.Tensor | None]]


def group_bytes(groups: Groups) -> dict[str, int]:
    """The bytes behind each group of tensors: every stretch of memory once and whole, in the first group that has it.

    groups  {name: tensors}; None among them counts as nothing

    >>> row = torch.zeros(3, 4)[0]                     # a view keeps all 12 numbers alive
    >>> group_bytes({"parameters": [row, row], "gradients": [None]})
    {'parameters': 48, 'gradients': 0}
    """
    seen = set()
    return {name: new_bytes(tensors, seen) for name, tensors in groups.items()}


class Watch(TorchDispatchMode):
    """Count groups of tensors after every torch operation inside a `with` block, backward passes included.

    groups   a function without arguments that returns the groups of `group_bytes`; it is asked each time, since
             tensors come and go

    history  the counts in order, {name: bytes} each, the first from before the block
    marks    {name: position in history}, set by `mark`

    >>> kept = []
    >>> with Watch(lambda: {"kept": kept}) as watch:
    ...     kept.append(torch.zeros(5))
    ...     kept.append(torch.zeros(5))
    ...     total = sum(kept)
    ...     kept.clear()
    >>> watch.peak
    {'kept': 40}
    """

    def __init__(self, groups: Callable[[], Groups]):
        super().__init__()
        self.groups, self.history, self.marks = groups, [group_bytes(groups())], {}

    def mark(self, name: str) -> None:
        """Remember where in the history we are, for example where backward begins."""
        self.marks[name] = len(self.history)

    @property
    def peak(self) -> dict[str, int]:
        """Each group at its own peak."""
        return {name: max(counts[name] for counts in self.history) for name in self.history[0]}

    @property
    def peak_total(self) -> int:
        """The most bytes that all groups took at the same moment."""
        return max(sum(counts.values()) for counts in self.history)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        self.history.append(group_bytes(self.groups()))
        return result
