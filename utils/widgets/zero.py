"""Lesson 02's widget: what training takes on one rank under each ZeRO stage, beside a GPU's memory.

    plan_memory()           a widget; draw_memory(7.5e9, world_size=64, stage=2) is its picture alone
"""

from utils.widgets.frame import Frame


def plan_memory(parameters: float = 7.5e9, precision: str = "mixed", optimizer: str = "adam", world_size: int = 64,
                stage: int = 2, micro_batch: int = 1, micro_batches: int = 1, sequence: int = 1024,
                recomputation: str = "none", offload: str = "nothing", gpu: str = "A100-80GB") -> Frame:
    """A widget that plans the memory of one rank: all four ZeRO stages side by side, the chosen one marked.

    parameters     Ψ, from 1e8 to 1e12
    precision      "fp32", "mixed" (16 bytes with Adam), "mixed, fp32 gradients" (18), "mixed, both gradients" (20)
    optimizer      "adam", "momentum" or "sgd"
    world_size     N ranks of data parallelism
    stage          0 (nothing is sharded) to 3
    micro_batch    b sequences of `sequence` (s) tokens on each rank at a time; micro_batches of them (m) in a step
    recomputation  "none", "selective" or "full", see utils.theory.models.RECOMPUTATIONS
    offload        "nothing", "optimizer" (with the gradients) or "parameters" (all of the state), to the CPU's memory
    gpu            "V100-32GB", "A100-80GB", "H100-80GB" or "H200-141GB"

    The button trains a small model in the chosen stage on real ranks (at most 8) and lays the measured bytes beside
    the predicted ones.
    """
    raise NotImplementedError("plan_memory is being written.")


def draw_memory(parameters=7.5e9, precision="mixed", optimizer="adam", world_size=64, stage=2, micro_batch=1,
                micro_batches=1, sequence=1024, recomputation="none", offload="nothing", gpu="A100-80GB",
                runs=(), figure=None):
    """Draw what `plan_memory` shows; returns the matplotlib Figure."""
    raise NotImplementedError("draw_memory is being written.")


def memory_sentence(parameters=7.5e9, precision="mixed", optimizer="adam", world_size=64, stage=2, micro_batch=1,
                    micro_batches=1, sequence=1024, recomputation="none", offload="nothing", gpu="A100-80GB",
                    runs=()) -> str:
    """The chosen stage's bytes, whether they fit, the largest model that does, and what a rank sends in a step."""
    raise NotImplementedError("memory_sentence is being written.")
