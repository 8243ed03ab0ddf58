"""What lesson 03's widget runs on ranks: one product of matrices, cut as it was chosen."""


def cut_product(x, a, b, cut_a: str, cut_b: str, activation: str) -> list[list[float]]:
    """Z = act(X·A)·B in fp32 from this rank's parts of A and B (lists of rows); returns this rank's Z.

    The collectives are those of tensor parallelism, from utils.parallel.tensor_ops.
    """
    import torch
    import torch.distributed as dist

    from utils.parallel.tensor_ops import join_parts, reduce_from_group, reduce_scatter_to_parts
    rank, world_size = dist.get_rank(), dist.get_world_size()
    act = {"none": lambda y: y, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]
    x, a, b = (torch.tensor(matrix, dtype=torch.float32) for matrix in (x, a, b))
    if world_size == 1:
        return (act(x @ a) @ b).tolist()

    def part(matrix, cut):
        return matrix.chunk(world_size, dim=1 if cut == "columns" else 0)[rank].contiguous()

    y = (part(x, "columns") if cut_a == "rows" else x) @ part(a, cut_a)
    between = {("rows", "rows"): lambda y: reduce_scatter_to_parts(y, dim=1),
               ("rows", "columns"): reduce_from_group,
               ("columns", "columns"): lambda y: join_parts(y, dim=1)}
    if (cut_a, cut_b) in between:
        y = between[cut_a, cut_b](y)
    z = act(y) @ part(b, cut_b)
    return (reduce_from_group(z) if cut_b == "rows" else join_parts(z, dim=1)).tolist()
