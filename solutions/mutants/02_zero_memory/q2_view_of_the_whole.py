"""a view that keeps the whole tensor alive: .clone()

The weights' chunk is a view of all of them in fp32 and fp64.
"""

class ShardedAdam:
    """Adam for a model whose replicas are on all ranks; each rank keeps the state of its own chunk."""

    def __init__(self, model, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.lr, self.betas, self.eps, self.steps = lr, betas, eps, 0
        chunk = own_chunk(flatten(self.parameters))
        self.weights = chunk.float() if chunk.dtype == torch.float16 else chunk
        self.momentum, self.variance = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def step(self):
        """One step with the mean gradient over the ranks; all ranks end with the same weights."""
        gradients = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        gradient = ring_reduce_scatter(gradients).to(self.weights.dtype) / dist.get_world_size()
        self.steps += 1
        beta1, beta2 = self.betas
        self.momentum.mul_(beta1).add_(gradient, alpha=1 - beta1)
        self.variance.mul_(beta2).add_(gradient**2, alpha=1 - beta2)
        momentum = self.momentum / (1 - beta1**self.steps)
        variance = self.variance / (1 - beta2**self.steps)
        self.weights -= self.lr * momentum / (variance.sqrt() + self.eps)
        flat = flatten(self.parameters)
        own_chunk(flat).copy_(self.weights)
        ring_all_gather(flat)
        for parameter, view in zip(self.parameters, views(flat, [p.shape for p in self.parameters])):
            parameter.detach().copy_(view)
            parameter.grad = None
