"""g overwrote the tensor that it was given

The all-reduce writes into the caller's tensor, which backward may still need.
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
        total = x.detach().contiguous()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    return EnterSplit.apply(x)


def g(x):
    return LeaveSplit.apply(x)
