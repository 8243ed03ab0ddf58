"""A pair of matrices cut over t ranks, Z = act(X·A)·B: what each rank computes, and where all must synchronise.

The rule of Megatron-LM (arXiv 1909.08053, section 3): A by columns and B by rows needs one synchronisation; every other
choice needs two. Here is every choice, on numbers. Then a layer's time over t: what of the GPUs is left for computing.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .activations import check_tensor
from .arguments import non_negative, one_of, whole_number
from .collectives import busbw_factor
from .grid import Layout
from .throughput import RATES, layer_seconds

CUTS = ("columns", "rows")
ACTIVATIONS = {
    "none": lambda y: y,
    "relu": lambda y: np.maximum(y, 0.0),
    "gelu": np.vectorize(lambda y: y * (1 + math.erf(y / math.sqrt(2))) / 2, otypes=[float]),
}
"""The functions between the two products; GeLU exactly, not its approximation by tanh."""


@dataclass(frozen=True)
class Synchronisation:
    """One point where every rank waits for all others.

    collective: "all_reduce", "all_gather" or "reduce_scatter". matrix: "Y" or "Z". elements: of the whole matrix.
    """

    collective: str
    matrix: str
    elements: int

    def elements_sent(self, tensor):
        """Elements that each rank sends, by the definition of the collective: a factor of (t − 1)/t times the matrix."""
        return busbw_factor(self.collective, tensor) * self.elements


def synchronisations(cut_a, cut_b, y_elements, z_elements):
    """The Synchronisations of Z = act(X·A)·B in order, until every rank holds all of Z.

    A by columns leaves each rank its columns of Y = X·A, complete. A by rows (X is cut by columns) leaves each rank a
    part of the sum of all of Y, which must be added before the activation. B by rows asks for the same columns of Y and
    leaves a part of the sum of Z; B by columns asks for the whole Y and leaves columns of Z.

    >>> [s.collective for s in synchronisations("columns", "rows", 4, 1)]
    ['all_reduce']
    """
    one_of("cut_a", cut_a, CUTS)
    one_of("cut_b", cut_b, CUTS)
    non_negative("y_elements", y_elements)
    non_negative("z_elements", z_elements)
    between = {
        ("columns", "rows"): None,
        ("columns", "columns"): "all_gather",
        ("rows", "rows"): "reduce_scatter",
        ("rows", "columns"): "all_reduce",
    }[cut_a, cut_b]
    first = [Synchronisation(between, "Y", y_elements)] if between else []
    return [*first, Synchronisation("all_reduce" if cut_b == "rows" else "all_gather", "Z", z_elements)]


@dataclass(frozen=True)
class CutProduct:
    """Z = act(X·A)·B over t ranks. Lists are indexed by rank.

    x, a, b: whole matrices (n, k), (k, f) and (f, o). cut_a, cut_b: how A and B are cut, see CUTS; X follows A.
    tensor: t; must divide what is cut. activation: a name in ACTIVATIONS.
    """

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray
    cut_a: str = "columns"
    cut_b: str = "rows"
    tensor: int = 2
    activation: str = "relu"

    def __post_init__(self):
        whole_number("tensor", self.tensor)
        one_of("activation", self.activation, tuple(ACTIVATIONS))
        for name, matrix, cut in (("A", self.a, self.cut_a), ("B", self.b, self.cut_b)):
            size = matrix.shape[CUTS[::-1].index(one_of(f"cut_{name.lower()}", cut, CUTS))]
            if size % self.tensor:
                raise ValueError(
                    f"{name} has {size} {cut if size > 1 else cut[:-1]}, which {self.tensor} ranks cannot share equally. "
                    f"Cut {name} by {CUTS[1 - CUTS.index(cut)]}, choose another t, or wider matrices."
                )

    @cached_property
    def a_shards(self):
        """A's part on each rank."""
        return _shards(self.a, self.cut_a, self.tensor)

    @cached_property
    def b_shards(self):
        """B's part on each rank."""
        return _shards(self.b, self.cut_b, self.tensor)

    @cached_property
    def x_shards(self):
        """What each rank needs of X: all of it, or the columns that meet its rows of A."""
        return _shards(self.x, "columns", self.tensor) if self.cut_a == "rows" else [self.x] * self.tensor

    @cached_property
    def y_parts(self):
        """What each rank computes first: its columns of Y, or, with A by rows, its part of the sum Y."""
        return [x @ a for x, a in zip(self.x_shards, self.a_shards)]

    @cached_property
    def y(self):
        """X·A, before the activation."""
        return self.x @ self.a

    @cached_property
    def activated(self):
        """What each rank multiplies with its part of B: columns of act(Y), or all of it."""
        whole = ACTIVATIONS[self.activation](self.y)
        return _shards(whole, "columns", self.tensor) if self.cut_b == "rows" else [whole] * self.tensor

    @cached_property
    def z_parts(self):
        """What each rank computes last: its part of the sum Z, or its columns."""
        return [y @ b for y, b in zip(self.activated, self.b_shards)]

    @cached_property
    def z(self):
        """The result, the same for every cut."""
        return ACTIVATIONS[self.activation](self.y) @ self.b

    @cached_property
    def z_without_sum(self):
        """Z if A is cut by rows and each rank applies the activation to its own part of the sum, before it is added.

        Wrong unless the activation is "none": act(Y₁) + act(Y₂) is not act(Y₁ + Y₂).
        """
        return sum(ACTIVATIONS[self.activation](part) for part in self.y_parts) @ self.b

    @property
    def synchronisations(self):
        """See `synchronisations`; a single rank needs none."""
        return synchronisations(self.cut_a, self.cut_b, self.y.size, self.z.size) if self.tensor > 1 else []

    @property
    def elements_sent(self):
        """Elements that each rank sends in all, by the definition of the collectives."""
        return sum(each.elements_sent(self.tensor) for each in self.synchronisations)


def _shards(matrix, cut, tensor):
    return np.split(matrix, tensor, axis=1 if cut == "columns" else 0)


# A layer's time


def tensor_layer_seconds(model, cluster, tensor, micro_batch=1, recomputation="full", rates=RATES):
    """Seconds of one layer cut over t ranks: {"forward", "backward", "weight gradient", "communication": seconds}.

    What is computed comes by phase, recomputation with "backward"; "communication" are the all-reduces of all phases.
    See `throughput.layer_seconds`. Raises ValueError when the model cannot be cut in t (`activations.check_tensor`) or
    the cluster is too small.
    """
    check_tensor(model, tensor)
    whole_number("tensor", tensor, maximum=cluster.gpus)
    layout = Layout(tensor=tensor, micro_batch=micro_batch, recomputation=recomputation)
    parts = layer_seconds(model, cluster, layout, rates)
    sending = sum(parts.pop("tensor all-reduce", ()))
    forward, backward, weight_gradient = (sum(phase) for phase in zip(*parts.values()))
    return {"forward": forward, "backward": backward, "weight gradient": weight_gradient, "communication": sending}


def tensor_efficiency(model, cluster, tensor, micro_batch=1, recomputation="full", rates=RATES):
    """T(1) / (t·T(t)) for the seconds T of a layer: the share of t GPUs' time that one GPU would have needed.

    What is missing to 1 went into all-reduces, and into the norms, dropout and additions that every rank repeats.
    """
    choices = (micro_batch, recomputation, rates)
    alone, together = (sum(tensor_layer_seconds(model, cluster, t, *choices).values()) for t in (1, tensor))
    return alone / (tensor * together)
