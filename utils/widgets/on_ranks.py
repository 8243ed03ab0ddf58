"""What the widgets run on ranks. It imports neither matplotlib nor ipywidgets: a rank needs no picture."""


def all_reduce(algorithm: str, elements: int) -> bool:
    """All-reduce `elements` fp32 numbers by `algorithm`; returns whether this rank got the exact sum.

    The numbers are whole and their sums small enough that fp32 adds them without rounding, in any order.
    """
    import torch
    import torch.distributed as dist

    from utils.parallel.collectives import ALGORITHMS
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pattern = torch.arange(elements, dtype=torch.float32) % 97 + 1
    tensor = (rank + 1) * pattern
    result = ALGORITHMS[algorithm](tensor)
    return torch.equal(tensor if result is None else result, pattern * (world_size * (world_size + 1) // 2))
