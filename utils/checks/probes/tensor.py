"""Lab 03 on the far side of the boundary: matrices, shards and gradients for the student's functions."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from utils.checks.boundary import case
from utils.checks.probes.arithmetic import unchanged

# q1, and the cuts of q3, q4 and q5


def cut(*functions, which, cases):
    """Call functions[which](*tensors, *numbers, rank, ranks) for every rank of every case.

    A case is {"tensors", "numbers", "ranks"}, and "transposed" if the tensors shall be views that are not contiguous.
    Returns for each case, for each rank, a list of shards; a shard is {"values", "contiguous", "memory"}, where memory
    counts the bytes that it keeps alive.
    """
    made = []
    for given in cases:
        whole = [_tensor(array, given.get("transposed")) for array in given["tensors"]]
        ranks = given["ranks"]
        made.append(
            [_shards(functions[which](*whole, *given["numbers"], rank, ranks)) for rank in range(ranks)]
        )
    return made


def _shards(returned):
    return [_described(shard) for shard in (returned if isinstance(returned, (tuple, list)) else [returned])]


def _described(shard):
    if not isinstance(shard, torch.Tensor):
        raise TypeError(f"A shard is a tensor, but a {type(shard).__name__} was returned: {shard!r:.80}")
    memory = shard.untyped_storage().nbytes()
    return {"values": shard, "contiguous": shard.is_contiguous(), "memory": memory}


def join(*functions, which, cases):
    """Call functions[which] with each case's list of shards; return the whole matrices."""
    return [_joined(functions[which], [torch.from_numpy(shard) for shard in shards]) for shards in cases]


def _joined(function, shards):
    before = _numbers(*shards)
    whole = function(shards)
    unchanged(_numbers(*shards), before, "the list of shards")
    if not isinstance(whole, torch.Tensor):
        raise TypeError(f"The whole matrix is a tensor, but a {type(whole).__name__} was returned: {whole!r:.80}")
    return whole


def _numbers(*tensors):
    return [tensor.tolist() for tensor in tensors]


# q2: f and g


def operator(*functions, which, x, gradient, transposed):
    """Call functions[which] on this rank's x, and backward with this rank's gradient of the result.

    x and gradient are {"arrays": one per rank}. Returns the result, the gradient of x, and what stands in the two
    tensors afterwards.
    """
    x, gradient = (_tensor(given["arrays"][dist.get_rank()], transposed) for given in (x, gradient))
    x.requires_grad_()
    with case("forward"):
        y = functions[which](x)
    with case("backward"):
        (dx,) = torch.autograd.grad(y, x, gradient)
    return {"y": y, "dx": dx, "x": x, "gradient": gradient}


def _tensor(array, transposed):
    return torch.from_numpy(array.T.copy()).T if transposed else torch.from_numpy(array)


def split_mlp(f, g, x, gradient, parts):
    """Forward and backward of g(tanh(f(x) A) B) with this rank's columns of A and rows of B."""

    def forward(x, a, b):
        return g(torch.tanh(f(x) @ a) @ b)

    return layer(None, forward, x, gradient, parts, [])


# q3, q4, q5: layers cut over the ranks


def layer(_shards, forward, x, gradient, parts, numbers):
    """Call forward(x, *this rank's parts, *numbers), and backward with the gradient of the result.

    parts is {"arrays": a list of arrays for each rank}. Returns the result, the gradient of x, and those of the parts.
    """
    leaves = [torch.from_numpy(part).requires_grad_() for part in parts["arrays"][dist.get_rank()]]
    x = torch.from_numpy(x).requires_grad_()
    before = _numbers(x, *leaves)
    with case("forward"):
        y = forward(x, *leaves, *numbers)
    unchanged(_numbers(x, *leaves), before, "x or the parts of the weights")
    return _backward(y, x, gradient, leaves)


def attention(_shards, forward, x, gradient, parts, head_size, sharers):
    """The same for attention, whose forward also gets the size of a head and the group of those that share its heads.

    sharers is a list of lists of ranks; with one rank in each, nobody shares and the group is None.
    """
    mine = None
    for ranks in sharers:
        group = dist.new_group(ranks) if len(ranks) > 1 else None  # every rank takes part in making every group
        if dist.get_rank() in ranks:
            mine = group
    return layer(None, forward, x, gradient, parts, [head_size, mine])


def _backward(y, x, gradient, leaves):
    if not isinstance(y, torch.Tensor) or tuple(y.shape) != gradient.shape:
        came = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise TypeError(f"A tensor of shape {gradient.shape} was expected as the result, but {came} was returned.")
    if not y.requires_grad:
        raise TypeError("The result has no gradient: it does not depend on x in a way that autograd has seen.")
    with case("backward"):
        y.backward(torch.from_numpy(gradient))
    return {"y": y, "dx": _gradient_of(x), "gradients": [_gradient_of(leaf) for leaf in leaves]}


def _gradient_of(leaf):
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


# q6: the vocabulary


def embedding(look_up, _loss, tokens, gradient, rows):
    """Call look_up(tokens, this rank's rows), and backward; rows is {"arrays": one per rank}."""
    table, tokens = torch.from_numpy(rows["arrays"][dist.get_rank()]).requires_grad_(), torch.from_numpy(tokens)
    before = _numbers(tokens, table)
    with case("forward"):
        y = look_up(tokens, table)
    unchanged(_numbers(tokens, table), before, "the tokens or the rows")
    return _backward(y, table, gradient, [])


def cross_entropy(_look_up, loss, batches):
    """Call loss(this rank's logits, targets, vocab) for each batch, and backward.

    A batch is {"logits": {"arrays": one per rank}, "targets", "vocab"}; batch n has the cases "forward n" and
    "backward n". Returns {"loss", "gradient": that of the logits} for each.
    """
    return [_one_loss(loss, number, **batch) for number, batch in enumerate(batches)]


def _one_loss(loss, number, logits, targets, vocab):
    columns, targets = torch.from_numpy(logits["arrays"][dist.get_rank()]).requires_grad_(), torch.from_numpy(targets)
    before = _numbers(columns, targets)
    with case(f"forward {number}"):
        value = loss(columns, targets, vocab)
    unchanged(_numbers(columns, targets), before, "the logits or the targets")
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        raise TypeError(f"The loss is a tensor with one number and a gradient, but this was returned: {value!r:.120}")
    with case(f"backward {number}"):
        value.backward()
    return {"loss": float(value.detach()), "gradient": _gradient_of(columns)}


# q7: where f and g stand


def transformer_layer(*functions, which, x, gradient, scales, parts):
    """Call functions[which] with norms and split blocks in the order attention, MLP; one norm if there is one scale.

    parts is {"arrays": for each rank [A and B of what stands for attention, A and B of the MLP]}. The gradients come in
    the order scales, parts.
    """
    leaves = [torch.from_numpy(part).requires_grad_() for part in parts["arrays"][dist.get_rank()]]
    scales = [torch.from_numpy(scale).requires_grad_() for scale in scales]
    x = torch.from_numpy(x).requires_grad_()
    norms = [lambda x, scale=scale: F.rms_norm(x, x.shape[-1:], scale, 1e-5) for scale in scales]
    mix, mlp = (lambda x, a=a, b=b: torch.tanh(x @ a) @ b for a, b in (leaves[:2], leaves[2:]))
    given = (norms[0], mix, mlp) if len(norms) == 1 else (norms[0], mix, norms[1], mlp)
    before = _numbers(x)
    with case("forward"):
        y = functions[which](x, *given)
    unchanged(_numbers(x), before, "x")
    return _backward(y, x, gradient, [*scales, *leaves])
