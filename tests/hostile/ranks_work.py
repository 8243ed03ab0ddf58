"""What the ranks do on an odd machine. A module, so that they must find it too."""
import torch
import torch.distributed as dist


def total() -> float:
    """Add one from every rank, in the default group and in one of our own."""
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    again = torch.ones(1000)
    dist.all_reduce(again, group=dist.new_group())
    assert torch.equal(ones, again)
    return ones[0].item()
