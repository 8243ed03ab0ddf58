"""The parameters of a sharded layer are not the shard alone

The layer is registered as a submodule, and its empty parameters with it.
"""

class ShardedLayer(nn.Module):
    """A layer of which this rank keeps a chunk; its weights are whole only while it computes."""

    def __init__(self, layer):
        super().__init__()
        self.hidden = [layer]  # in a list, where nn.Module does not look for parameters
        self.layer = layer
        self.whole = list(layer.parameters())
        self.shapes = [p.shape for p in self.whole]
        self.shard = nn.Parameter(own_chunk(flatten(self.whole)).clone())
        self.free()

    def gather(self):
        """Make the layer's parameters whole, on all ranks."""
        flat = self.shard.new_empty(sum(shape.numel() for shape in self.shapes))
        own_chunk(flat).copy_(self.shard.detach())
        ring_all_gather(flat)
        for parameter, view in zip(self.whole, views(flat, self.shapes)):
            parameter.data = view

    def free(self):
        """Leave the layer's parameters without memory."""
        for parameter in self.whole:
            parameter.data = parameter.data.new_empty(0)

    def forward(self, x):
        return Computed.apply(x, self.shard, self)


class Computed(torch.autograd.Function):
    """The layer as one operation, for which autograd keeps the input and no weights."""

    @staticmethod
    def forward(ctx, x, shard, sharded):
        ctx.save_for_backward(x)
        ctx.sharded = sharded
        sharded.gather()
        outputs = sharded.hidden[0](x)
        sharded.free()
        return outputs

    @staticmethod
    def backward(ctx, gradient):
        x, sharded = ctx.saved_tensors[0].detach().requires_grad_(), ctx.sharded
        sharded.gather()
        with torch.enable_grad():
            outputs = sharded.hidden[0](x)
        x_gradient, *gradients = torch.autograd.grad(outputs, [x, *sharded.whole], gradient)
        sharded.free()
        return x_gradient, ring_reduce_scatter(flatten(gradients)) / dist.get_world_size(), None
