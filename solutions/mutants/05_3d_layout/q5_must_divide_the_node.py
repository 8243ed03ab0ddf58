"""'tensor': 3, 'pipeline': 2, 'data': 1

Six ranks of one node are in one node, although 3 does not divide 8.
"""

def broken_rule(model, layout, batch, machine):
    """"node", "layers", "batch", "memory" or "bubble": the rule that is broken; None for a sound layout."""
    t, p, d, b = layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]
    stride = 1
    for name in layout["order"][: layout["order"].index("tensor")]:
        stride *= layout[name]
    if machine['gpus_per_node'] % (t * stride) and t > 1:
        return 'node'
    if model["layers"] % p:
        return "layers"
    if batch % (d * b):
        return "batch"
    if 16 * model["parameters"] / (t * p) > machine["memory_bytes"]:
        return "memory"
    m = batch // (d * b)
    return "bubble" if (p - 1) / (m + p - 1) > machine["largest_bubble"] else None
