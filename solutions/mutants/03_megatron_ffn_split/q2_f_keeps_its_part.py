"""f hands rank 0's own gradient on in backward

f as the identity both ways: every rank goes on with its part of the gradient.
"""

class EnterSplit(torch.autograd.Function):
    """f: where a tensor that all ranks hold enters the split region."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


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
    return EnterSplit.apply(x)


def g(x):
    return LeaveSplit.apply(x)
