"""g adds up in backward, but there it hands the gradient on as it is

The gradient of an all-reduce as the libraries have it: t times too large when all ranks compute the same loss.
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
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def f(x):
    return EnterSplit.apply(x)


def g(x):
    return LeaveSplit.apply(x)
