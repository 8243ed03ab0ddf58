"""Lesson 05's training step as a script: on one machine, or under torchrun on many.

    python -m utils.parallel.train_3d                                   # all ranks on this machine
    torchrun --nnodes=2 --nproc-per-node=4 --node-rank=0 --master-addr=ADDRESS --master-port=29500 \\
        -m utils.parallel.train_3d                                      # the same on the second node, with --node-rank=1

NCCL carries the messages where each rank has a GPU, gloo where not.
"""

import argparse

import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.mesh import Training3D
from utils.theory.layout import Layout, coordinates
from utils.theory.models import Transformer

MODEL = Transformer(
    layers=4, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=256, sequence=32, activation="swiglu", tied=False
)


def train(layout: Layout, batch: int, steps: int, seed: int = 0) -> list[float]:
    """Train MODEL on counting sequences, which it soon continues; returns the losses."""
    training = Training3D(MODEL, layout, batch, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        first = torch.randint(MODEL.vocab, (batch, 1), generator=generator)
        counting = (first + torch.arange(MODEL.sequence + 1)) % MODEL.vocab
        losses.append(training.step(counting[:, :-1], counting[:, 1:]))
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("tensor", "pipeline", "data"):
        parser.add_argument(f"--{name}", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="sequences of one step, over all ranks")
    given = parser.parse_args()
    layout = Layout(tensor=given.tensor, pipeline=given.pipeline, data=given.data)
    run = launch(train, layout, given.batch, given.steps, world_size=layout.world_size, timeout=300)
    if not dist.is_initialized() or dist.get_rank() == 0:  # under torchrun every rank comes here
        places = (coordinates(rank, layout.sizes) for rank in range(layout.world_size))
        for rank, (place, sent) in enumerate(zip(places, run.sent_bytes(), strict=True)):
            at = ", ".join(f"{name} {place[name]}" for name in ("tensor", "pipeline", "data"))
            print(f"rank {rank} ({at}) sent {sent / given.steps / 1e6:.3f} MB per step")
        print(f"{run.backend}, losses: " + " ".join(f"{loss:.3f}" for loss in run.results[0]))


if __name__ == "__main__":
    main()
