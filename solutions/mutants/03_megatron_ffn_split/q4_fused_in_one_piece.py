"""the first ranks get gate only, the last ones up only

The fused matrix is cut like any other.
"""

def swiglu_shards(gate_up, down, rank, ranks):
    """This rank's parts of gate_up, as [gate | up], and of down."""
    return gate_up.tensor_split(ranks, dim=1)[rank], down.tensor_split(ranks, dim=0)[rank]


def parallel_swiglu(x, gate_up, down):
    """y = (SiLU(x·gate) ⊙ x·up) · down from this rank's parts."""
    gate, up = (copy_to_group(x) @ gate_up).chunk(2, dim=-1)
    return reduce_from_group((F.silu(gate) * up) @ down)
