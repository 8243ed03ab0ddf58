"""the ranks' partial results are not added up

Each rank goes on with its partial result.
"""

def swiglu_shards(gate_up, down, rank, ranks):
    """This rank's parts of gate_up, as [gate | up], and of down."""
    halves = gate_up.chunk(2, dim=1)
    mine = [half.tensor_split(ranks, dim=1)[rank] for half in halves]
    return torch.cat(mine, dim=1), down.tensor_split(ranks, dim=0)[rank]


def parallel_swiglu(x, gate_up, down):
    """y = (SiLU(x·gate) ⊙ x·up) · down from this rank's parts."""
    gate, up = (copy_to_group(x) @ gate_up).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ down
