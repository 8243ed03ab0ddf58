"""does not make the calls it should

The right sum, but every rank receives all tensors.
"""

class EnterSplit(torch.autograd.Function):
    """f: where a tensor that all ranks hold enters the split region."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class LeaveSplit(torch.autograd.Function):
    """g: where the ranks' partial results leave the split region."""

    @staticmethod
    def forward(ctx, x):
        own = x.detach().contiguous()
        everything = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everything, own)
        return sum(everything)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    return EnterSplit.apply(x)


def g(x):
    return LeaveSplit.apply(x)
