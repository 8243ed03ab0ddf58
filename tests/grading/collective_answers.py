"""What a student could hand in: functions that communicate in every way that torch.distributed has.  Read as text."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def pairs(x):
    """Ranks 0, 1 and ranks 2, 3: a sum and a maximum in each pair, and a message within it."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    total, largest, came = x.clone(), x.clone(), torch.empty_like(x)
    dist.all_reduce(total, group=mine)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=mine)
    if rank % 2:
        dist.send(x, group=mine, group_dst=0)
    else:
        dist.recv(came, group=mine, group_src=1)
    return {"total": total, "largest": largest, "came": came if rank % 2 == 0 else None}


def grid(x):
    """A 2 x 2 mesh: sum over each row, then gather over each column."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    total = x.clone()
    dist.all_reduce(total, group=mesh["row"].get_group())
    every = torch.empty(2 * len(x))
    dist.all_gather_into_tensor(every, total, group=mesh.get_group("column"))
    return every


def uneven(x):
    """Rank r sends r + 1 rows to everybody; on N ranks each rank gets 1 + 2 + ... + N rows."""
    rank, n = dist.get_rank(), dist.get_world_size()
    given = torch.full(((rank + 1) * n, 2), float(rank))
    taken = torch.empty(n * (n + 1) // 2, 2)
    dist.all_to_all_single(taken, given, [source + 1 for source in range(n)], [rank + 1] * n)
    listed = [torch.empty(source + 1) for source in range(n)]
    dist.all_to_all(listed, [torch.full((rank + 1,), float(rank)) for _ in range(n)])
    return {"single": taken, "listed": torch.cat(listed)}


def uneven_wrong(x):
    rank = dist.get_rank()
    dist.all_to_all_single(torch.empty(5), torch.empty(4), [2, 3], [1, 3] if rank else [2, 2])


def zero_step(x):
    """reduce_scatter, and all_gathers in flight while something else is computed."""
    n = dist.get_world_size()
    part = torch.empty(len(x) // n)
    dist.reduce_scatter_tensor(part, x.clone())
    first, second = torch.empty_like(x), torch.empty_like(x)
    works = [
        dist.all_gather_into_tensor(whole, part * k, async_op=True) for k, whole in ((1, first), (2, second))
    ]
    early = works[1].is_completed()
    for work in works:
        work.wait()
    return {"part": part, "first": first, "second": second, "done": works[1].is_completed(), "early": early}


def functional(x):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(x, "sum", group)
    part = functional.reduce_scatter_tensor(x, "max", 0, group)
    return {"total": total + 0, "part": part + 0, "every": functional.all_gather_tensor(part, 0, group) + 0}


def tensor_layer(x):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.arange(8.0).reshape(2, 4), mesh, [Shard(0)], src_data_rank=None)
    whole = DTensor.from_local(torch.tensor([[0.0, 1.0]]), mesh, [Replicate()]) @ weight
    return whole.full_tensor()


def objects(x):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, {"rank": dist.get_rank()})
    said = ["hello", 3] if dist.get_rank() == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    return [[item["rank"] for item in every], said]


def half(x):
    total = (x + 0.1).bfloat16()
    dist.all_reduce(total)
    return total.float()


def any_source(x):
    rank, (low, high) = dist.get_rank(), [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    mine, came = (low, high)[rank // 2], torch.empty_like(x)
    if rank % 2:
        dist.send(x, rank - 1, group=mine)
        return -1
    return dist.recv(came, group=mine)


def ddp(x):
    torch.manual_seed(0)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    layer(x[None, :2]).sum().backward()
    return layer.module.weight.grad


def two_groups_of_the_same_ranks(x):
    """Messages of one group are not those of another."""
    rank, a, b = dist.get_rank(), dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank:
        works = [dist.isend(x + 1, group=b, group_dst=0), dist.isend(x, group=a, group_dst=0)]
        return [work.wait() for work in works]
    first, second = torch.empty_like(x), torch.empty_like(x)
    dist.recv(first, group=a, group_src=1)
    dist.recv(second, group=b, group_src=1)
    return [first, second]


def groups_differ(x):
    """Rank 0 waits in one group, rank 1 in another."""
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(x, group=b if dist.get_rank() else a)


def helps_itself(x):
    group = dist.distributed_c10d._get_default_group()
    group._line.allowed = ("send", "all_reduce", "new_group")
    dist.all_reduce(x)
    return x


def makes_a_group_anyway(x):
    group = dist.distributed_c10d._get_default_group()
    other = type(group)(group._line, "group 7", [0, 1], dist.get_rank())
    other.send([x], 1 - dist.get_rank()) if dist.get_rank() else other.recv([x], 1)


def uneven_list(x):
    dist.reduce_scatter(torch.empty(2), [torch.empty(2), torch.empty(3)])


def rows_that_do_not_divide(x):
    dist.all_to_all_single(torch.empty(3), torch.empty(3))


def room_is_too_small(x):
    group = dist.distributed_c10d._get_default_group()
    group._allgather_base(torch.empty(1), x).wait()


def any_call(name):
    x, n = torch.ones(4), dist.get_world_size()

    def parts():
        return [torch.ones(4 // n) for _ in range(n)]

    {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "all_gather": lambda: dist.all_gather([torch.ones(4) for _ in range(n)], x),
        "reduce_scatter": lambda: dist.reduce_scatter(parts()[0], parts()),
        "all_to_all": lambda: dist.all_to_all(parts(), parts()),
        "gather": lambda: dist.gather(x, [torch.ones(4) for _ in range(n)] if dist.get_rank() == 0 else None),
        "scatter": lambda: dist.scatter(parts()[0], parts() if dist.get_rank() == 0 else None),
        "barrier": lambda: dist.barrier(),
        "send": lambda: dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0),
        "new_group": lambda: dist.new_group([0, 1]),
    }[name]()
    return 1


def zero_training(x):
    """Two steps of ZeRO-3 with prefetching; the weights of every rank, gathered."""
    from utils.parallel.zero import Zero3

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    zero = Zero3(model, prefetch=True)
    for step in range(2):
        inputs = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) / 12 + step + dist.get_rank()
        zero.backward(zero(inputs).square().mean())
        zero.step()
    with zero.gathered():
        return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def tensor_parallel(x):
    """A language model in a group of its own: loss with a vocabulary cut over the ranks, and its gradients."""
    from utils.parallel.model import LanguageModel
    from utils.parallel.tensor import ParallelLanguageModel
    from utils.theory.models import Transformer

    config = Transformer(
        layers=1, hidden=8, heads=2, kv_heads=2, ffn=12, vocab=11, sequence=4, activation="swiglu", tied=False
    )
    torch.manual_seed(0)
    whole = LanguageModel(config, dtype=torch.float64)
    group = dist.new_group([0, 1]) if dist.get_world_size() > 1 else None
    model = ParallelLanguageModel(whole, group, sequence_parallel=group is not None)
    tokens = torch.arange(8).reshape(2, 4)
    loss = model.loss(tokens, tokens + 1)
    loss.backward()
    return loss
