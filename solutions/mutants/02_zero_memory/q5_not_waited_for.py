"""before all its shards had come

Computes with whatever stands in the memory.
"""

def forward_with_prefetch(layers, x):
    """Send x through the layers; each one's weights are on their way while the layer before computes."""
    def start(layer):
        flat = layer.shard.new_empty(layer.elements)
        own_chunk(flat).copy_(layer.shard)
        return flat, start_all_gather(flat)

    arriving, handles = start(layers[0])
    for number, layer in enumerate(layers):
        weights = arriving
        if number + 1 < len(layers):
            arriving, handles = start(layers[number + 1])
        x = layer.compute(weights, x)
    return x
