"""The course's shared package: what a lesson imports.

>>> from utils import launch, span, device        # doctest: +SKIP

`launch` runs a function on real ranks (:mod:`utils.ranks`), :mod:`utils.theory` holds the formulas,
:mod:`utils.parallel` the torch code that later lessons reuse, :mod:`utils.widgets` the pictures and
:mod:`utils.checks` the exercises' checks. Importing this package is cheap: torch is loaded when ranks start.
"""
from utils.ranks import RankError, Run, device, launch, span

__all__ = ["RankError", "Run", "device", "launch", "span"]
