"""zero1_bytes returns a wrong number

The division by the ranks drops its rest, and that K times.
"""

def zero1_bytes(parameters, ranks, optimizer_bytes=12):
    """Bytes on one rank when the optimizer state is sharded over the ranks."""
    return 4 * parameters + optimizer_bytes * (parameters // ranks)


def zero2_bytes(parameters, ranks, optimizer_bytes=12):
    """Bytes on one rank when the gradients are sharded as well."""
    return 2 * parameters + (2 + optimizer_bytes) * parameters / ranks


def zero3_bytes(parameters, ranks, optimizer_bytes=12):
    """Bytes on one rank when the weights are sharded as well."""
    return (4 + optimizer_bytes) * parameters / ranks
