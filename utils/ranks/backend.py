"""Which backend and devices a run gets: a pure decision, so that it can be tested for machines we do not have."""
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """The backend's name, one device name per rank, and one line that says why (empty when nothing surprises)."""
    backend: str
    devices: tuple[str, ...]
    banner: str


def choose_backend(gpu_count: int, world_size: int, platform: str = sys.platform, wish: str | None = None) -> Choice:
    """Decide how `world_size` ranks communicate on a machine with `gpu_count` GPUs.

    One GPU per rank: NCCL. Fewer GPUs than ranks (or none): gloo on the CPU, since NCCL refuses two ranks
    on one GPU. `platform` is `sys.platform`'s value; `wish` is "nccl", "gloo" or None.

    >>> choose_backend(gpu_count=0, world_size=4, platform="linux").backend
    'gloo'
    >>> choose_backend(gpu_count=8, world_size=2, platform="linux").devices
    ('cuda:0', 'cuda:1')

    Raises ValueError with a sentence for a wish that cannot be met.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size is the number of ranks, a whole number of at least 1, not {world_size!r}.")
    if wish not in (None, "gloo", "nccl"):
        raise ValueError(f"backend is 'gloo', 'nccl' or None (let the course choose), not {wish!r}.")
    nccl_works = platform == "linux" and gpu_count > 0
    if wish == "nccl" and not nccl_works:
        raise ValueError("backend='nccl' needs Linux and at least one NVIDIA GPU; use backend='gloo' or leave it out.")
    if wish == "nccl" and gpu_count < world_size:
        raise ValueError(f"backend='nccl' needs one GPU per rank: {world_size} ranks, {gpu_count} GPU{'s' * (gpu_count > 1)}. "
                         f"Use world_size={gpu_count} or backend='gloo'.")
    if wish != "gloo" and nccl_works and gpu_count >= world_size:
        return Choice("nccl", tuple(f"cuda:{rank}" for rank in range(world_size)), "")
    banner = ""
    if wish is None and nccl_works:
        banner = (f"{world_size} ranks but {gpu_count} GPU{'s' * (gpu_count > 1)}: "
                  "the ranks run on the CPU with gloo (NCCL wants one GPU per rank).")
    return Choice("gloo", ("cpu",) * world_size, banner)


def count_gpus() -> int:
    """The number of NVIDIA GPUs that torch can use, without creating a CUDA context in this process."""
    import torch
    return torch.cuda.device_count()
