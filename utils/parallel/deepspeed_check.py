"""The course's small language model trained by DeepSpeed beside one process, and the stored result for who lacks DeepSpeed.

    python -m utils.parallel.deepspeed_check     where DeepSpeed is installed: run all cases, write deepspeed_check.csv
"""

import functools
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F

from utils.parallel import deepspeed
from utils.parallel.data import shard_batch
from utils.parallel.model import LanguageModel
from utils.ranks import launch
from utils.theory.models import Transformer

SHAPE = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=2, ffn=96, vocab=64, sequence=16, activation="swiglu", tied=False
)
"""The model of lesson 02."""

CASES = ((1, False), (2, False), (3, False), (3, True))
"""Stage, and whether the state is offloaded to main memory."""

STEPS, WORLD_SIZE = 10, 4
STORED = Path(__file__).with_suffix(".csv")


def batch(step):
    """Eight sequences (8, 16); the next token is the token plus one."""
    tokens = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(step))
    return tokens, (tokens + 1) % 64


def loss_of(model, tokens, targets):
    """Mean cross-entropy; the model itself is called, so that its hooks run."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def alone():
    """The weights by name after training in one process."""
    model = LanguageModel(SHAPE)
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss_of(model, *batch(step)).backward()
        adam.step()
        adam.zero_grad()
    return dict(model.named_parameters())


def run_case(stage, offload):
    """On every rank: train by DeepSpeed; the row of this rank."""
    torch.set_num_threads(1)
    batches = [[shard_batch(whole) for whole in batch(step)] for step in range(STEPS)]
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01)
    trained = deepspeed.train(LanguageModel(SHAPE), loss_of, batches, stage, offload, optimizer)
    difference = max((trained.weights[name] - weight).abs().max().item() for name, weight in alone().items())
    return {
        "stage": stage,
        "offload": offload,
        "parameters_kept": trained.parameter_elements,
        "optimizer_elements": trained.optimizer_elements,
        "difference": difference,
    }


def run_all():
    """A row for each of CASES, with the largest figures of any rank."""
    for case in CASES:
        ranks = launch(run_case, *case, world_size=WORLD_SIZE, timeout=300, echo=False).results
        yield {name: max(row[name] for row in ranks) for name in ranks[0]}


def stored_rows():
    """What `run_all` gave when it was last written."""
    return pd.read_csv(STORED, keep_default_na=False).to_dict("records")


def rows():
    """The rows, run here if DeepSpeed is installed and stored ones otherwise."""
    return list(run_all()) if deepspeed.available() else stored_rows()


def main():
    """Run every case and write `STORED`."""
    measured = list(run_all())
    pd.DataFrame(measured).to_csv(STORED, index=False, lineterminator="\n")
    print(f"{STORED.name}: {len(measured)} cases")


if __name__ == "__main__":
    main()
