"""Functions that the engine's tests run on ranks. They live in a module of their own, as a learner's script would."""
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from utils import launch, span


def sum_of_ranks():
    x = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x[0].item()


def rank_and_arguments(*arguments):
    return dist.get_rank(), arguments


def says_hello():
    print("hello from", dist.get_rank())
    os.system("echo a child speaks")
    print("and on stderr", file=sys.stderr)


def environment():
    return {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "COURSE_TEST")} | {
        "folder": os.getcwd(), "threads": torch.get_num_threads(), "pid": os.getpid()}


def marked_work():
    with span("forward", micro_batch=3):
        time.sleep(0.02)
    dist.all_reduce(torch.ones(8))


# ---- mistakes -----------------------------------------------------------------------------------------------------

def one_raises():
    if dist.get_rank() == 1:
        raise ValueError("no such chunk")
    dist.all_reduce(torch.ones(4))


def one_never_joins():
    if dist.get_rank() == 2:
        return
    dist.all_reduce(torch.ones(4))


def different_collectives():
    if dist.get_rank() == 1:
        dist.all_gather([torch.empty(4) for _ in range(4)], torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))


def different_sizes(elements):
    dist.all_reduce(torch.ones(elements + 2 if dist.get_rank() == 0 else elements))


def different_dtypes():
    dist.all_reduce(torch.ones(40_000, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32))


def different_roots():
    dist.broadcast(torch.ones(4), src=dist.get_rank() % 2)


def unequal_broadcast():
    dist.broadcast(torch.ones(4 if dist.get_rank() == 0 else 6), src=0)


def send_fits_not(sent, received):
    if dist.get_rank() == 0:
        dist.send(torch.ones(sent), dst=1)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(received), src=0)


def everybody_receives():
    dist.recv(torch.ones(4), src=(dist.get_rank() + 1) % dist.get_world_size())


def everybody_sends_first():
    n, rank = dist.get_world_size(), dist.get_rank()
    dist.send(torch.ones(4), dst=(rank + 1) % n)
    dist.recv(torch.ones(4), src=(rank - 1) % n)


def first_rank_says_who_it_is_and_all_send_first(folder):
    if dist.get_rank() == 0:
        with open(os.path.join(folder, "pid"), "w") as file:
            file.write(str(os.getpid()))
    everybody_sends_first()


def crossed_groups():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    order = [first, second] if dist.get_rank() == 0 else [second, first]
    if dist.get_rank() < 2:
        for group in order:
            dist.all_reduce(torch.ones(2), group=group)


def different_order():
    a, b = torch.ones(3), torch.full((3,), 2.0)
    if dist.get_rank() == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)


def different_order_in_a_loop():
    grads = [torch.ones(3), torch.full((3,), 2.0)]
    for i in ([0, 1] if dist.get_rank() == 0 else [1, 0]):
        dist.all_reduce(grads[i])


def one_call_too_many():
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), async_op=True)


def one_calls_sys_exit():
    if dist.get_rank() == 1:
        sys.exit(3)
    dist.barrier()


def one_calls_os_exit():
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def one_crashes():
    if dist.get_rank() == 1:
        import ctypes
        ctypes.string_at(0)
    dist.barrier()


def one_is_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()


def one_runs_out_of_memory():
    if dist.get_rank() == 1:
        torch.ones(10**15)
    dist.barrier()


def one_returns_a_generator():
    return (i for i in range(3)) if dist.get_rank() == 2 else 1


def launches_again():
    return launch(sum_of_ranks, world_size=2)


def not_contiguous(collective):
    columns = torch.ones(4, 4)[:, :2]
    parts = [columns] * dist.get_world_size() if dist.get_rank() == 0 else None
    {"all_reduce": lambda: dist.all_reduce(columns), "broadcast": lambda: dist.broadcast(columns, src=0),
     "reduce": lambda: dist.reduce(columns, dst=0),
     "scatter": lambda: dist.scatter(torch.empty(4, 2), parts)}[collective]()


def one_never_ends():
    if dist.get_rank() == 1:
        while True:
            pass
    dist.barrier()


def prints_for_ever():
    while dist.get_rank() == 0:
        print("x" * 10_000)
    dist.barrier()


def leaves_processes_behind():
    os.system("(setsid sleep 4321 &) ; sleep 4321 &")


def sleeps(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)


# ---- what the recorder must see -----------------------------------------------------------------------------------

def every_collective(elements):
    n, rank = dist.get_world_size(), dist.get_rank()
    x = torch.ones(elements)
    parts = [torch.empty(elements) for _ in range(n)]
    dist.all_reduce(x)
    dist.broadcast(x, src=1)
    dist.reduce(x.clone(), dst=1)
    dist.all_gather(parts, x)
    dist.reduce_scatter(torch.empty(elements), [torch.ones(elements) for _ in range(n)])
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.scatter(torch.empty(elements), parts if rank == 1 else None, src=1)
    dist.all_to_all_single(torch.empty(n * elements), torch.ones(n * elements))
    if rank == 0:
        dist.send(x, dst=1, tag=7)
    elif rank == 1:
        dist.recv(x, src=0, tag=7)
    dist.barrier()


def uneven_all_to_all():
    rank = dist.get_rank()  # rank r sends r+1 rows to each of two ranks
    dist.all_to_all_single(torch.empty(3, 5), torch.ones(2 * (rank + 1), 5), [1, 2], [rank + 1] * 2)


def uneven_all_to_all_in_a_group():
    rank, group = dist.get_rank(), dist.new_group([0, 2])
    if rank in (0, 2):  # every member sends one row to the first and two rows to the second, a list of two or of one
        rows = 1 if rank == 0 else 2
        dist.all_to_all_single(torch.empty(2 * rows, 5), torch.ones(3, 5), [rows] * 2, [1, 2], group=group)


def through_either_door(elements):
    """The same calls, first as `torch.distributed` makes them, then in the forms that only the operators see."""
    group, rank = dist.group.WORLD, dist.get_rank()
    x = torch.full((elements,), float(rank + 1))
    peer = dict(group_dst=1) if rank == 0 else dict(group_src=0)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    (dist.send if rank == 0 else dist.recv)(x, **peer, tag=3)
    with_tensor = x.clone()
    group.allreduce(with_tensor).wait()
    group.allreduce(tensors=[with_tensor]).wait()
    (group.send if rank == 0 else group.recv)([x], 1 - rank, tag=3).wait()
    return x, with_tensor


def works_in_a_callback():
    """What runs when a call is done may make tensors and make calls, as DDP's hooks do."""
    x = torch.ones(3)
    future = dist.all_reduce(x, async_op=True).get_future()
    return future.then(lambda done: float((done.value()[0] + torch.ones(3)).sum())).wait()


def waits_out_of_order():
    x = [torch.ones(4) for _ in range(3)]
    works = [dist.all_reduce(part, async_op=True) for part in x]
    other = (dist.isend if dist.get_rank() == 0 else dist.irecv)(torch.ones(2), 1 - dist.get_rank())
    for work in (works[2], works[0], other, works[1]):
        work.wait()
    work.wait()  # a second time
    return [float(part.sum()) for part in x]


def trains_with_ddp(steps):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 10))
    for _ in range(steps):
        model(torch.ones(2, 30)).sum().backward()


def trains_with_fsdp():
    from torch.distributed.fsdp import fully_shard
    model = fully_shard(torch.nn.Linear(32, 8))
    model(torch.ones(2, 32)).sum().backward()


def uses_dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    distribute_tensor(torch.ones(8, 3), mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()


def uses_functional_collectives():
    import torch.distributed._functional_collectives as functional
    return float((functional.all_reduce(torch.ones(6), "sum", dist.group.WORLD) + 0).sum())


def in_inference_mode():
    with torch.inference_mode():
        dist.all_reduce(torch.ones(6))


def one_megabyte(times):
    x = torch.ones(250_000)
    dist.barrier()
    for _ in range(times):
        dist.all_reduce(x)
    dist.barrier()


def ring_neighbours(elements):
    n, rank = dist.get_world_size(), dist.get_rank()
    outgoing, incoming = torch.ones(elements), torch.empty(elements)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, (rank + 1) % n),
                                        dist.P2POp(dist.irecv, incoming, (rank - 1) % n)]):
        work.wait()


def dies_after_a_call():
    dist.all_reduce(torch.ones(5))
    if dist.get_rank() == 0:
        os.kill(os.getpid(), 9)
    dist.barrier()


def one_skips_backward():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    loss = model(torch.ones(1, 3)).sum()
    if dist.get_rank() == 0:
        loss.backward()


def error_without_a_message():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    raise Mute


def talks_near_and_far():
    rank = dist.get_rank()
    near = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    x = torch.ones(4)
    dist.all_reduce(x, group=near)
    dist.all_reduce(x)
    return x.tolist()


# ---- waits that end -----------------------------------------------------------------------------------------------

def receives_early(seconds):
    """Ask for the message first, work for long, then send: as double buffering does."""
    other, incoming = 1 - dist.get_rank(), torch.empty(1)
    receiving = dist.irecv(incoming, other)
    time.sleep(seconds)
    dist.isend(torch.tensor([float(dist.get_rank())]), other).wait()
    receiving.wait()
    return incoming.item()


def a_thread_sends_later(seconds):
    """The main threads all wait in recv; what they wait for comes from other threads."""
    def later():
        time.sleep(seconds)
        dist.isend(torch.tensor([float(dist.get_rank())]), other).wait()

    other, incoming = 1 - dist.get_rank(), torch.empty(1)
    thread = threading.Thread(target=later)
    thread.start()
    dist.recv(incoming, other)
    thread.join()
    return incoming.item()


def waits_with_a_limit(seconds):
    if dist.get_rank() == 0:
        try:
            dist.irecv(torch.empty(1), 1).wait(datetime.timedelta(seconds=seconds))
        except RuntimeError:
            return "gave up"


def names_a_root_that_does_not_exist():
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(3), src=99)
    dist.barrier()
