"""The checks that need GPUs; `pytest tests/gpu` on a machine that has them."""
import pytest
import torch
import torch.distributed as dist

from utils import RankError, device, launch

GPUS = torch.cuda.device_count()
needs_a_gpu = pytest.mark.skipif(GPUS < 1, reason="needs an NVIDIA GPU; this machine has none")
needs_two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs two NVIDIA GPUs; this machine has {GPUS}")


def sum_on_the_device():
    x = torch.full((1000,), float(dist.get_rank() + 1), device=device())
    dist.all_reduce(x)
    return x


def columns_of_a_matrix():
    dist.all_reduce(torch.ones(4, 4, device=device())[:, :2].contiguous())
    return str(device())


@needs_a_gpu
def test_one_rank_on_one_gpu():
    run = launch(sum_on_the_device, world_size=1)
    assert (run.backend, run.devices) == ("nccl", ("cuda:0",))
    assert run.results[0].device.type == "cpu" and run.results[0][0] == 1  # results come back without touching the GPU
    assert run.comm().query("op == 'all_reduce'").elements.item() == 1000


@needs_a_gpu
def test_more_ranks_than_gpus_run_on_the_cpu():
    run = launch(sum_on_the_device, world_size=GPUS + 1)
    assert run.backend == "gloo" and run.results[0][0] == sum(range(1, GPUS + 2))


@needs_two_gpus
def test_one_rank_per_gpu():
    run = launch(sum_on_the_device, world_size=GPUS)
    assert run.backend == "nccl" and run.results[-1][0] == sum(range(1, GPUS + 1))
    assert run.sent_bytes() == pytest.approx([2 * (GPUS - 1) / GPUS * 4000] * GPUS)


@needs_two_gpus
def test_a_rank_that_never_joins_is_named():
    def one_stays_away():
        if dist.get_rank() == 0:
            sum_on_the_device()
            torch.cuda.synchronize()

    with pytest.raises(RankError):
        launch(one_stays_away, world_size=2, timeout=20)


@needs_a_gpu
def test_the_notebooks_own_process_never_touches_the_gpu():
    launch(columns_of_a_matrix, world_size=1)
    assert not torch.cuda.is_initialized()
