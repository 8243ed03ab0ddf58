"""f adds up in forward, but there it hands the tensor on as it is

Each does the other's work.
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
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    return LeaveSplit.apply(x)


def g(x):
    return EnterSplit.apply(x)
