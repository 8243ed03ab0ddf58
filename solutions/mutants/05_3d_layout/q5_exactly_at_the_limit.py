"""'largest_bubble': 0.25

At most is not less than.
"""

def broken_rule(model, layout, batch, machine):
    """"node", "layers", "batch", "memory" or "bubble": the rule that is broken; None for a sound layout."""
    t, p, d, b = layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]
    stride = 1
    for name in layout["order"][: layout["order"].index("tensor")]:
        stride *= layout[name]
    for first in range(t * p * d):
        last = first + (t - 1) * stride
        if first // stride % t == 0 and first // machine["gpus_per_node"] != last // machine["gpus_per_node"]:
            return "node"
    if model["layers"] % p:
        return "layers"
    if batch % (d * b):
        return "batch"
    if 16 * model["parameters"] / (t * p) > machine["memory_bytes"]:
        return "memory"
    m = batch // (d * b)
    return "bubble" if (p - 1) / (m + p - 1) >= machine["largest_bubble"] else None
