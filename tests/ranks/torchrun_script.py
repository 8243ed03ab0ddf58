"""A learner's script: the same worker function, started by torchrun."""
import atexit

import rank_workers as workers
import torch.distributed as dist

from utils import launch

atexit.register(lambda: print("at the end, a group is left:", dist.is_initialized()))  # exit functions run last in, first out
run = launch(workers.sum_of_ranks)
if dist.get_rank() == 0:
    print("results", run.results, "sent", run.sent_bytes())
try:
    launch(workers.sum_of_ranks, world_size=99)
except ValueError as error:
    if dist.get_rank() == 0:
        print(error)
