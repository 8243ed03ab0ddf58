"""broken_rule misses a broken rule: “node”

Only the size of t is compared with the node.
"""

def broken_rule(model, layout, batch, machine):
    """"node", "layers", "batch", "memory" or "bubble": the rule that is broken; None for a sound layout."""
    t, p, d, b = layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]
    if t > machine["gpus_per_node"] or machine["gpus_per_node"] % t:
        return "node"
    if model["layers"] % p:
        return "layers"
    if batch % (d * b):
        return "batch"
    if 16 * model["parameters"] / (t * p) > machine["memory_bytes"]:
        return "memory"
    m = batch // (d * b)
    return "bubble" if (p - 1) / (m + p - 1) > machine["largest_bubble"] else None
