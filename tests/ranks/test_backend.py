"""The choice of a backend, for machines we do not have."""
import pytest

from utils.ranks import choose_backend


@pytest.mark.parametrize("gpus, ranks, backend, banner", [
    (0, 4, "gloo", ""),
    (1, 1, "nccl", ""),
    (1, 2, "gloo", "2 ranks but 1 GPU: the ranks run on the CPU with gloo (NCCL wants one GPU per rank)."),
    (2, 2, "nccl", ""),
    (2, 4, "gloo", "4 ranks but 2 GPUs: the ranks run on the CPU with gloo (NCCL wants one GPU per rank)."),
    (8, 8, "nccl", ""),
    (8, 4, "nccl", ""),
])
def test_what_the_course_chooses_on_linux(gpus, ranks, backend, banner):
    choice = choose_backend(gpus, ranks, "linux")
    assert (choice.backend, choice.banner) == (backend, banner)
    assert choice.devices == (tuple(f"cuda:{rank}" for rank in range(ranks)) if backend == "nccl" else ("cpu",) * ranks)


def test_macs_use_gloo():
    assert choose_backend(0, 4, "darwin").backend == "gloo"


def test_a_wish_for_gloo_is_silent():
    assert choose_backend(2, 4, "linux", wish="gloo").banner == ""
    assert choose_backend(8, 4, "linux", wish="gloo").devices == ("cpu",) * 4


@pytest.mark.parametrize("gpus, platform, message", [
    (0, "linux", "needs Linux and at least one NVIDIA GPU"),
    (4, "darwin", "needs Linux and at least one NVIDIA GPU"),
    (2, "linux", "needs one GPU per rank: 4 ranks, 2 GPUs. Use world_size=2"),
])
def test_a_wish_for_nccl_that_cannot_be_met(gpus, platform, message):
    with pytest.raises(ValueError, match=message):
        choose_backend(gpus, 4, platform, wish="nccl")


@pytest.mark.parametrize("world_size", [0, -3, 1.5, None, True])
def test_world_size_must_be_a_number_of_ranks(world_size):
    with pytest.raises(ValueError, match="world_size is the number of ranks"):
        choose_backend(0, world_size, "linux")


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend is 'gloo', 'nccl' or None"):
        choose_backend(0, 4, "linux", wish="mpi")
