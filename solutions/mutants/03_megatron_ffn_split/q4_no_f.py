"""The gradient of x on rank 0 is that of this rank's part of the work only

Each rank sends its own part of the gradient down.
"""

def swiglu_shards(gate_up, down, rank, ranks):
    """This rank's parts of gate_up, as [gate | up], and of down."""
    halves = gate_up.chunk(2, dim=1)
    mine = [half.tensor_split(ranks, dim=1)[rank] for half in halves]
    return torch.cat(mine, dim=1), down.tensor_split(ranks, dim=0)[rank]


def parallel_swiglu(x, gate_up, down):
    """y = (SiLU(x·gate) ⊙ x·up) · down from this rank's parts."""
    gate, up = (x @ gate_up).chunk(2, dim=-1)
    return reduce_from_group((F.silu(gate) * up) @ down)
