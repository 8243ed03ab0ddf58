"""v chunks on a rank make the bubble v times smaller

The bubble of plain 1F1B.
"""

def volumes(model, layout, batch):
    """{"tensor", "pipeline", "data": bytes that a rank sends in a step}."""
    t, p, d, b = layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]
    h, s, layers = model["hidden"], model["sequence"], model["layers"] // p
    m = batch // (d * b)
    activation = 2 * b * s * h
    parameters = (layers * (12 * h * h + 13 * h) + (model["vocab"] + s) * h) / t
    return {
        "tensor": m * layers * 6 * 2 * (t - 1) / t * activation,
        "pipeline": 2 * layout["chunks"] * m * activation if p > 1 else 0,
        "data": 2 * (d - 1) / d * 2 * parameters,
    }


def step_seconds(model, layout, batch, machine):
    """{"compute", "tensor", "pipeline", "data", "bubble": seconds of a step}."""
    t, p, d, v = layout["tensor"], layout["pipeline"], layout["data"], layout["chunks"]
    h, s, L = model["hidden"], model["sequence"], model["layers"]
    m = batch // (d * layout["micro_batch"])
    sent = volumes(model, layout, batch)
    flops = 96 * batch * s * L * h * h * (1 + s / (6 * h) + model["vocab"] / (16 * L * h))

    def seconds(dimension, messages, link):
        return messages * link["alpha_seconds"] + sent[dimension] / link["bytes_per_second"]

    parts = {
        "compute": flops / (t * p * d) / machine["flops_per_second"],
        "tensor": seconds("tensor", m * L // p * 6 * 2 * (t - 1), machine["inside"]),
        "pipeline": seconds("pipeline", 2 * v * m if p > 1 else 0, machine["between"]),
    }
    parts["bubble"] = (p - 1) / m * sum(parts.values())
    parts["data"] = seconds("data", 2 * (d - 1), machine["between"])
    return parts
