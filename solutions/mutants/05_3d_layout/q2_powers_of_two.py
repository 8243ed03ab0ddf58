"""'gpus_per_node': 6, 'memory_bytes': 20000000000

Tries 1, 2, 4 and 8 tensor ranks only.
"""

def rank_bytes(model, layout, batch):
    """Bytes on the fullest rank: parameters, gradients, its share of the optimizer, activations."""
    t, p, d, b = layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]
    h, s = model["hidden"], model["sequence"]
    layers = model["layers"] // p
    parameters = (layers * (12 * h * h + 13 * h) + (model["vocab"] + s) * h) / t
    in_flight = min(p, batch // (d * b))
    return (2 + 2 + 12 / d) * parameters + in_flight * layers * 34 * s * b * h / t


def fewest_gpus(model, batch, micro_batch, machine):
    """(t, p, d) of a smallest layout that fits, or None."""
    best = None
    for t in (1, 2, 4, 8):
        for p in range(1, model["layers"] + 1):
            for d in range(1, batch // micro_batch + 1):
                rests = (
                    machine["gpus_per_node"] % t,
                    model["heads"] % t,
                    model["layers"] % p,
                    batch % (d * micro_batch),
                )
                if any(rests):
                    continue
                layout = {"tensor": t, "pipeline": p, "data": d, "micro_batch": micro_batch}
                if rank_bytes(model, layout, batch) > machine["memory_bytes"]:
                    continue
                if best is None or t * p * d < best[0] * best[1] * best[2]:
                    best = (t, p, d)
    return best
