"""A sweep over ranks, stages, recomputation and sequence lengths for lesson 02's figure, and its stored result.

Every point is a training step of the 7.5B model of ZeRO's table 1 by `utils.parallel.fake_world.shard_on_paper`:
PyTorch's own sharding code, no memory. All of it takes minutes, so the result is kept beside this file:

    python -m utils.parallel.zero_sweep          run all points and write zero_sweep.csv
"""

from pathlib import Path

import pandas as pd

from utils.parallel.fake_world import shard_on_paper
from utils.theory.models import RECOMPUTATIONS
from utils.theory.presets import MODELS

MODEL = MODELS["narayanan-7.5b"]
WORLD_SIZES = (1, 4, 16, 64, 256, 1024)
SEQUENCES = (512, 1024, 2048, 4096, 8192)
STORED = Path(__file__).with_suffix(".csv")

POINTS = tuple(
    [{"world_size": n, "stage": stage, "recompute": "none", "sequence": 2048} for stage in (0, 2, 3) for n in WORLD_SIZES]
    + [
        {"world_size": 64, "stage": 3, "recompute": what, "sequence": s}
        for what in RECOMPUTATIONS
        for s in SEQUENCES
        if (what, s) != ("none", 2048)  # is a point of the first sweep
    ]
)


def run_point(world_size, stage, recompute, sequence):
    """One row of the sweep: its arguments and the bytes on one rank. Attention is written out, as the papers count it."""
    paper = shard_on_paper(MODEL, world_size, stage, recompute=recompute, sequence=sequence, fused=False, dropout=0.1)
    return {
        "world_size": world_size,
        "stage": stage,
        "recompute": recompute,
        "sequence": sequence,
        "state_bytes": round(paper.state_bytes),
        "activation_bytes": round(paper.activation_bytes),
        "peak_bytes": round(paper.peak_bytes),
        "moved_per_parameter": round(paper.moved_per_parameter, 6),
    }


def stored_sweep():
    """The rows of `POINTS` as they were computed with the torch version of constraints.txt; a list of dicts."""
    return pd.read_csv(STORED, keep_default_na=False).to_dict("records")


def main():
    """Run every point and write `STORED`."""
    rows = [run_point(**point) for point in POINTS]
    pd.DataFrame(rows).to_csv(STORED, index=False, lineterminator="\n")
    print(f"{STORED.name}: {len(rows)} points")


if __name__ == "__main__":
    main()
