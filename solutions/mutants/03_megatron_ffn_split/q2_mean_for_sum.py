"""g takes the mean of the ranks' tensors in forward

Partial results are parts of a sum, not guesses at the same number.
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
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    return EnterSplit.apply(x)


def g(x):
    return LeaveSplit.apply(x)
