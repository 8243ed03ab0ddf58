"""no bucket is empty

If the last parameter is larger than a bucket, the first bucket stays empty.
"""

def make_buckets(parameters, bucket_bytes):
    """Cut the list of parameters into buckets of at most `bucket_bytes`, from the last parameter to the first."""
    buckets, filled = [[]], 0
    for parameter in reversed(parameters):
        if filled + parameter.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


def backward_with_overlap(loss, buckets):
    """Run backward; every gradient ends as its mean over the ranks. Buckets travel while backward still runs."""
    missing = [len(bucket) for bucket in buckets]
    on_their_way = []

    def gradient_is_ready(number):
        missing[number] -= 1
        if missing[number] == 0:
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in buckets[number]]) / dist.get_world_size()
            on_their_way.append((buckets[number], flat, dist.all_reduce(flat, async_op=True)))

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: gradient_is_ready(number))
        for number, bucket in enumerate(buckets)
        for parameter in bucket
    ]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for bucket, flat, work in on_their_way:
        work.wait()
        parts = flat.split([parameter.numel() for parameter in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad.copy_(part.view(parameter.shape))
