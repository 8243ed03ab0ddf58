"""fewest_ranks(1,000,000,000, 16,000,000,000, 0, 0)

Stage 0 has nothing to spread, and may fill a rank to the last byte.
"""

def smallest_stage(parameters, memory_bytes, ranks, activation_bytes):
    """The lowest ZeRO stage that fits, or None."""
    formulas = (zero1_bytes, zero2_bytes, zero3_bytes)
    needed = [16 * parameters, *(formula(parameters, ranks) for formula in formulas)]
    fitting = [stage for stage in range(4) if needed[stage] + activation_bytes <= memory_bytes]
    return fitting[0] if fitting else None


def fewest_ranks(parameters, memory_bytes, stage, activation_bytes):
    """The smallest number of ranks with which this stage fits, or None."""
    whole, sharded = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[stage]
    room = memory_bytes - activation_bytes - whole * parameters
    if room <= 0:
        return None
    return -(-sharded * parameters // room) if sharded else 1
