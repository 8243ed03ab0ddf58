"""Replayed on a cluster, a run takes what its calls take there: ranks wait for each other as they did."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.mesh import Training3D
from utils.parallel.replay import replay
from utils.theory.hardware import CHIPS, LINKS, Cluster
from utils.theory.layout import Layout
from utils.theory.models import Transformer

NEAR, FAR = 2.0, 24.0
MODEL = Transformer(layers=4, hidden=8, heads=2, kv_heads=2, ffn=8, vocab=8, sequence=4, activation="swiglu", tied=False)


class TwoServers:
    """Two servers of four; every call takes NEAR inside one and FAR between them, whatever its size."""

    gpus = 8

    def __init__(self):
        self.asked = []

    def seconds(self, op, ranks, n_bytes):
        self.asked.append((op, ranks, n_bytes))
        return NEAR if len({rank // 4 for rank in ranks}) == 1 else FAR


def chain():
    """A barrier, then: 0 and 1 meet, 1 sends to 4, 4 and 5 meet; 6 and 7 meet twice meanwhile."""
    rank, x = dist.get_rank(), torch.ones(3)
    groups = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (4, 5), (6, 7))}
    dist.all_reduce(x)                       # before the barrier: does not count
    dist.barrier()
    if rank in (0, 1):
        dist.all_reduce(x, group=groups[0, 1])
    if rank == 1:
        dist.isend(x, 4).wait()
    if rank == 4:
        dist.recv(x, 1)
    if rank in (4, 5):
        dist.all_reduce(x, group=groups[4, 5])
    if rank in (6, 7):
        for _ in range(2):
            dist.all_reduce(x, group=groups[6, 7])


def test_ranks_wait_for_each_other():
    cluster = TwoServers()
    assert replay(launch(chain, world_size=8, echo=False), cluster) == NEAR + FAR + NEAR
    assert set(cluster.asked) == {("all_reduce", (0, 1), 12), ("all_reduce", (4, 5), 12), ("all_reduce", (6, 7), 12),
                                  ("recv", (1, 4), 12)}


def one_step(layout):
    training = Training3D(MODEL, layout, batch=4)
    batch = torch.arange(16).view(4, 4) % MODEL.vocab
    dist.barrier()
    training.step(batch, batch)


def calls_of_a_step(tensor, pipeline):
    """Seconds of a 2×2×2 step where a tensor call takes `tensor`, a message `pipeline`, and all else nothing.

    Two micro-batches through two stages under 1F1B. On the first stage: 2 layers · 2 calls and the embedding's, forward;
    2 · 2 backward. On the last: 2 · 2 forward, 3 of the loss; 2 · 2 backward and the head's.
    """
    first, last = (5, 4), (7, 5)
    until_last_stage_is_done = first[0] * tensor + 2 * (pipeline + sum(last) * tensor)
    return until_last_stage_is_done + pipeline + first[1] * tensor


def test_a_3d_step_by_hand():
    class Wires(TwoServers):
        def __init__(self, tensor, pipeline):
            self.tensor, self.pipeline = tensor, pipeline

        def seconds(self, op, ranks, n_bytes):
            if op == "recv":
                return self.pipeline
            return self.tensor if ranks in ((0, 1), (2, 3), (4, 5), (6, 7)) else 0.0

    run = launch(one_step, Layout(tensor=2, pipeline=2, data=2), world_size=8, echo=False, timeout=120)
    for tensor, pipeline in ((1.0, 0.0), (1.0, 3.0), (0.0, 2.0)):
        assert replay(run, Wires(tensor, pipeline)) == calls_of_a_step(tensor, pipeline)


def test_tensor_parallelism_across_servers_costs_more():
    cluster = Cluster(2, 4, CHIPS["A100-80GB"], LINKS["nvlink3"], LINKS["infiniband hdr"])
    seconds = []
    for order in (("tensor", "context", "data", "pipeline"), ("data", "context", "pipeline", "tensor")):
        layout = Layout(tensor=2, pipeline=2, data=2, order=order)
        seconds.append(replay(launch(one_step, layout, world_size=8, echo=False, timeout=120), cluster))
    assert seconds[1] > 2 * seconds[0]


def test_calls_that_do_not_fit_together():
    call = SimpleNamespace(op="all_reduce", ranks=(0, 1), elements=1, dtype="float32", peer=None, tag=None)
    run = SimpleNamespace(records=[SimpleNamespace(rank=0, calls=[call]), SimpleNamespace(rank=1, calls=[])])
    with pytest.raises(ValueError, match="do not fit together"):
        replay(run, TwoServers())
