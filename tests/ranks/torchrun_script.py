"""A learner's script: the same worker function, started by torchrun."""
import rank_workers as workers
import torch.distributed as dist

from utils import launch

run = launch(workers.sum_of_ranks)
if dist.get_rank() == 0:
    print("results", run.results, "sent", run.sent_bytes())
try:
    launch(workers.sum_of_ranks, world_size=99)
except ValueError as error:
    if dist.get_rank() == 0:
        print(error)
dist.destroy_process_group()
