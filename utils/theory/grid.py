"""Ranks on a grid: coordinates, groups, and the link that each group uses.

A layout gives each dimension a size. The order says which dimension is innermost, that is, whose ranks
are neighbours: the first name varies fastest with the rank.
"""

from dataclasses import dataclass, replace
from math import prod

from .arguments import divides, one_of, several, whole_number
from .memory import STAGES
from .models import RECOMPUTATIONS
from .pipeline import LOOPED, SCHEDULES

DIMENSIONS = ("tensor", "context", "data", "pipeline")
"""The dimensions, innermost first, as Megatron-LM orders them: t and c in the server, p between servers.

Llama 3 puts data outermost instead: ("tensor", "context", "pipeline", "data").
Expert-parallel ranks are taken from the data ranks and have no dimension of their own.
"""


@dataclass(frozen=True)
class Layout:
    """How one step is spread over t·c·p·d ranks.

    tensor, context, pipeline, data, expert: t, c, p, d, e; e must divide d.
    micro_batch: b, sequences per micro-batch.
    schedule, chunks: a name of pipeline.SCHEDULES and v, chunks per rank.
    recomputation: "none", "selective" or "full".
    sequence_parallel: Megatron's, together with tensor parallelism.
    zero_stage: what is sharded over the data (and context) ranks, 0 to 3.
    overlap_gradients: whether the gradients' reduction runs during the last backward.
    flash_attention: scores are never written to memory; the backward computes them again on the way
        (arXiv 2205.14135). Their memory is then as under selective recomputation, whatever is recomputed.
    order: dimensions, innermost first.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    recomputation: str = "full"
    sequence_parallel: bool = False
    zero_stage: int = 0
    overlap_gradients: bool = False
    flash_attention: bool = False
    order: tuple = DIMENSIONS

    def __post_init__(self):
        for name in (*DIMENSIONS, "expert", "micro_batch", "chunks"):
            whole_number(name, getattr(self, name))
        one_of("schedule", self.schedule, tuple(SCHEDULES))
        one_of("recomputation", self.recomputation, RECOMPUTATIONS)
        one_of("zero_stage", self.zero_stage, STAGES)
        divides("expert", self.expert, "data", self.data)
        if sorted(several("order", self.order)) != sorted(DIMENSIONS):
            raise ValueError(
                f"order must name each of {', '.join(DIMENSIONS)} once, but {self.order!r} was given."
            )
        if self.chunks > 1 and self.schedule not in LOOPED:
            raise ValueError(
                f"chunks must be 1 for the schedule {self.schedule!r}, but {self.chunks} was given; "
                f"only {' and '.join(LOOPED)} take more."
            )

    @property
    def world_size(self):
        """N = t·c·p·d."""
        return prod(self.sizes.values())

    @property
    def sizes(self):
        """Size of each dimension, innermost first."""
        return {name: getattr(self, name) for name in self.order}

    def stride(self, dimension):
        """How far apart two neighbours along `dimension` are, in ranks."""
        one_of("dimension", dimension, self.order)
        return prod(getattr(self, name) for name in self.order[: self.order.index(dimension)])

    def replace(self, **changes):
        """A copy with some fields changed."""
        return replace(self, **changes)


def coordinates(rank, sizes):
    """Where `rank` is on the grid: a dict of one coordinate per dimension.

    sizes: a dict, or a Layout's `sizes`; the first dimension varies fastest.

    >>> coordinates(5, {"tensor": 2, "pipeline": 4})
    {'tensor': 1, 'pipeline': 2}
    """
    _check_sizes(sizes)
    whole_number("rank", rank, minimum=0, maximum=prod(sizes.values()) - 1)
    position = {}
    for name, size in sizes.items():
        rank, position[name] = divmod(rank, size)
    return position


def rank_at(position, sizes):
    """The rank at `position`, a dict of one coordinate per dimension of `sizes`; undoes `coordinates`."""
    _check_sizes(sizes)
    if set(position) != set(sizes):
        raise ValueError(
            f"position must name {', '.join(sizes)}, but {', '.join(position) or 'nothing'} was given."
        )
    rank, stride = 0, 1
    for name, size in sizes.items():
        rank += stride * whole_number(name, position[name], minimum=0, maximum=size - 1)
        stride *= size
    return rank


def groups(dimension, sizes):
    """The groups of ranks that differ only along `dimension`; every rank is in exactly one of them.

    dimension: a name, or several: groups over ("data", "context") reduce gradients, for example.

    >>> groups("pipeline", {"tensor": 2, "pipeline": 2})
    [[0, 2], [1, 3]]
    """
    _check_sizes(sizes)
    along = (dimension,) if isinstance(dimension, str) else several("dimension", dimension)
    for name in along:
        one_of("dimension", name, tuple(sizes))
    found = {}
    for rank in range(prod(sizes.values())):
        position = coordinates(rank, sizes)
        found.setdefault(tuple(position[name] for name in sizes if name not in along), []).append(rank)
    return list(found.values())


def ranks_per_node(layout, dimension, gpus_per_node):
    """Ranks of one group along `dimension` that share a server, when ranks fill servers one after another."""
    near = whole_number("gpus_per_node", gpus_per_node) // layout.stride(one_of("dimension", dimension, DIMENSIONS))
    return max(1, min(near, getattr(layout, dimension)))


def group_link(layout, dimension, cluster):
    """The Link that bounds a ring along `dimension` of `layout` on `cluster`."""
    near = ranks_per_node(layout, dimension, cluster.gpus_per_node)
    return cluster.ring_link(getattr(layout, dimension), near)


def link_name(layout, dimension, cluster):
    """ "none", "intra" or "inter": what the groups along `dimension` need."""
    size = getattr(layout, one_of("dimension", dimension, DIMENSIONS))
    if size == 1:
        return "none"
    return "intra" if ranks_per_node(layout, dimension, cluster.gpus_per_node) == size else "inter"


def _check_sizes(sizes):
    for name, size in sizes.items():
        whole_number(name, size)
