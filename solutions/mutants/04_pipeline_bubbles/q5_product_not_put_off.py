"""The weight's product was computed in B already

Only the adding is left for later.
"""

def zb_h1_order(ranks, micro_batches):
    """For each rank a list of (kind, micro-batch) with kinds F, B and W: 1F1B whose last W's fill the bubble."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                order.append(("F", ahead + i))
            order.append(("B", i))
            if i >= rank:
                order.append(("W", i - rank))
        order += [("W", i) for i in range(max(0, micro_batches - rank), micro_batches)]
        orders.append(order)
    return orders


class SplitLinear(torch.autograd.Function):
    """y = x · weightᵀ; backward gives the gradient of x and puts off that of the weight."""

    @staticmethod
    def forward(ctx, x, weight, put_off):
        ctx.save_for_backward(x)
        ctx.weight, ctx.put_off = weight, put_off
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        (x,), weight = ctx.saved_tensors, ctx.weight

        part = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        def weight_part():
            weight.grad = part if weight.grad is None else weight.grad + part

        ctx.put_off(weight_part)
        return gradient @ weight, None, None
