"""Data parallelism: every rank holds the whole model and works on its part of the batch.

The steps in order: `broadcast_model` once, so that all replicas start equal; then for each batch
`shard_batch`, forward and backward on the own part, an average of the gradients, and the same update
everywhere. `data_parallel_step` is the whole step; the averages come one parameter at a time
(`average_gradients`), in buckets (`average_gradients_in_buckets`) and in buckets that travel while backward
still runs (`overlapped_average`). `parameter_server_step` is the classical form with a server in the middle.

What is averaged are the trainable parameters, each once, however many layers share it. A gradient that one
rank lacks counts as zero there. Every rank weighs its gradient with its share of the batch's samples, so that
the sum over the ranks is the gradient of the mean loss over the full batch, also when the parts are unequal.
"""

import contextlib

import torch
import torch.distributed as dist

BUCKET_BYTES = 25 * 2**20
"""DDP's default bucket size (Li et al. 2020, arXiv 2006.15704): 25 MiB."""


def broadcast_model(model, group=None):
    """Overwrite all parameters and buffers, frozen ones too, with those of the group's rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        flat = tensor.detach().reshape(-1).contiguous()
        dist.broadcast(flat, group=group, group_src=0)
        tensor.detach().copy_(flat.view(tensor.shape))


def trainable_parameters(model):
    """The parameters that get a gradient: tied (shared) ones once, frozen ones not at all."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# Parts of a batch


def shard_batch(batch, group=None):
    """This rank's samples of `batch` (B, …), cut as `torch.tensor_split` cuts: sizes differ by at most one.

    With fewer samples than ranks some parts are empty.
    """
    return batch.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]


def share_of_batch(samples, batch_size):
    """The weight of a rank that holds `samples` of the `batch_size` samples: n_r / B.

    Mean gradients of the parts, weighted so and added, give the mean gradient of the batch. The plain mean
    over ranks (1/N) does so only when all parts are equal.
    """
    if not 0 <= samples <= batch_size or batch_size < 1:
        raise ValueError(
            f"A rank holds between 0 and all samples of the batch, but {samples} of {batch_size} were given."
        )
    return samples / batch_size


# Averages of gradients


def average_gradients(model, group=None, weight=None, all_reduce=dist.all_reduce, find_unused=False):
    """Replace every gradient by its weighted sum over the ranks, with one all-reduce per parameter.

    weight       this rank's weight, see `share_of_batch`; 1/N if not given: the plain mean
    all_reduce   called as all_reduce(tensor, group=group); utils.parallel.collectives has some
    find_unused  ask all ranks, with one more small all-reduce, which parameters nobody used, and leave
                 those without gradient, as one process would; otherwise they get zeros
    """
    with _unused_left_alone(model, group, find_unused):
        for parameter in trainable_parameters(model):
            flat = _flat_gradients([parameter], weight, group)
            all_reduce(flat, group=group)
            _take_gradients([parameter], flat)


def average_gradients_in_buckets(
    model, group=None, weight=None, bucket_bytes=BUCKET_BYTES, find_unused=False
):
    """Like `average_gradients`, but with one all-reduce per bucket: fewer messages, the same bytes."""
    with overlapped_average(model, group, weight, bucket_bytes, find_unused):
        pass


def make_buckets(parameters, bucket_bytes=BUCKET_BYTES):
    """Cut `parameters` into lists of at most `bucket_bytes` bytes, in reverse order.

    Backward runs through the layers in about this order. A bucket is closed when it would grow beyond
    `bucket_bytes` or when the dtype or device changes; a parameter that is larger than a bucket has one of
    its own.
    """
    buckets, filled = [], 0
    for parameter in reversed(list(parameters)):
        last = buckets[-1][-1] if buckets else None
        fits_in = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if not fits_in or filled + parameter.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


@contextlib.contextmanager
def overlapped_average(model, group=None, weight=None, bucket_bytes=BUCKET_BYTES, find_unused=False):
    """Average the gradients of the backward pass that runs inside the `with` block, while it runs.

    >>> with overlapped_average(model, weight=share):      # doctest: +SKIP
    ...     loss.backward()

    A bucket starts its all-reduce as soon as backward has finished all its gradients and the bucket before it
    has started: all ranks need the same order. What is left starts at the end of the block, which then waits
    for all. Earlier micro-batches of an accumulated gradient run backward outside the block. Raises
    RuntimeError when backward reaches a parameter twice inside it.
    """
    buckets = make_buckets(trainable_parameters(model), bucket_bytes)
    bucket_of = {parameter: number for number, bucket in enumerate(buckets) for parameter in bucket}
    missing = [set(bucket) for bucket in buckets]
    started = []

    def start_next():
        flat = _flat_gradients(buckets[len(started)], weight, group)
        started.append((flat, dist.all_reduce(flat, group=group, async_op=True)))

    def gradient_is_ready(parameter):
        waiting_for = missing[bucket_of[parameter]]
        if parameter not in waiting_for:
            raise RuntimeError(
                "backward ran twice inside overlapped_average, but gradients of the first run are already on "
                "their way. Run only the last micro-batch's backward inside the block, the others before it."
            )
        waiting_for.remove(parameter)
        while len(started) < len(buckets) and not missing[len(started)]:
            start_next()

    hooks = [parameter.register_post_accumulate_grad_hook(gradient_is_ready) for parameter in bucket_of]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    with _unused_left_alone(model, group, find_unused):
        while len(started) < len(buckets):
            start_next()
        for bucket, (flat, work) in zip(buckets, started, strict=True):
            work.wait()
            _take_gradients(bucket, flat)


# Whole steps


def data_parallel_step(
    model, loss_fn, optimizer, inputs, targets, batch_size=None, bucket_bytes=None, group=None
):
    """One training step on this rank's samples; every rank ends with the same parameters.

    inputs, targets  this rank's part of the batch, (n, …) each; n may be 0
    loss_fn          loss_fn(model(inputs), targets) is the mean over the samples
    batch_size       samples of the whole batch, needed when the parts are unequal
    bucket_bytes     average in buckets of this size, overlapped with backward; if not given, parameter
                     by parameter after it

    Returns this rank's loss, detached; NaN without samples.
    """
    weight = None if batch_size is None else share_of_batch(len(inputs), batch_size)
    optimizer.zero_grad()
    if bucket_bytes is None:
        loss = _forward_backward(model, loss_fn, inputs, targets)
        average_gradients(model, group, weight)
    else:
        with overlapped_average(model, group, weight, bucket_bytes):
            loss = _forward_backward(model, loss_fn, inputs, targets)
    optimizer.step()
    return loss


def parameter_server_step(model, loss_fn, optimizer, inputs, targets, batch_size=None, group=None):
    """One step with rank 0 as the server and the others as workers.

    The server sends w to each worker, each worker sends back the gradient of its samples, the server adds
    them up and updates: 2NΨ elements through the server's link for N = world size − 1 workers (Li et al.
    2014, OSDI). The server looks at no samples and alone needs an optimizer; a worker holds w and g and no
    more. The arguments are those of `data_parallel_step`. Workers end with the parameters that they computed
    with; the next step brings new ones.

    Returns the worker's loss, detached; None on the server.
    """
    rank, workers = dist.get_rank(group), dist.get_world_size(group) - 1
    if workers < 1:
        raise ValueError("A parameter server needs at least one worker: start 2 ranks or more.")
    parameters = trainable_parameters(model)
    weights = _flatten(parameters)
    if rank != 0:
        dist.recv(weights, group=group, group_src=0)
        _copy_into(parameters, weights)
        model.zero_grad()
        loss = _forward_backward(model, loss_fn, inputs, targets)
        share = 1 / workers if batch_size is None else share_of_batch(len(inputs), batch_size)
        dist.send(_flat_gradients(parameters, share, group), group=group, group_dst=0)
        return loss
    for worker in range(1, workers + 1):
        dist.send(weights, group=group, group_dst=worker)
    total, gradient = torch.zeros_like(weights), torch.empty_like(weights)
    for worker in range(1, workers + 1):
        dist.recv(gradient, group=group, group_src=worker)
        total += gradient
    _take_gradients(parameters, total)
    optimizer.step()
    return None


def _forward_backward(model, loss_fn, inputs, targets):
    if len(inputs) == 0:
        return torch.tensor(float("nan"))  # the mean of nothing; its gradient would be NaN too
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    return loss.detach()


# Between tensors of many shapes and one flat buffer


def _flatten(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def _copy_into(tensors, flat):
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _flat_gradients(parameters, weight, group):
    """The gradients times this rank's weight, one after the other; zeros for a parameter without gradient."""
    weight = 1 / dist.get_world_size(group) if weight is None else weight
    return _flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]).mul_(weight)


def _take_gradients(parameters, flat):
    """Write the parts of `flat` into the gradients, which keep their strides (transposed, channels last)."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    _copy_into([parameter.grad for parameter in parameters], flat)


@contextlib.contextmanager
def _unused_left_alone(model, group, find_unused):
    """After the average inside the block, take the gradient away again where no rank had one."""
    parameters = trainable_parameters(model)
    used_here = [parameter.grad is not None for parameter in parameters]
    yield
    if find_unused and parameters:
        used = torch.tensor(used_here, dtype=torch.uint8, device=parameters[0].device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group)
        for parameter, used_somewhere in zip(parameters, used.tolist(), strict=True):
            if not used_somewhere:
                parameter.grad = None
