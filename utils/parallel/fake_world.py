"""A model on any number of ranks without the ranks: PyTorch's own sharding code on tensors that have no memory.

`fully_shard`, AdamW and autograd run one training step of rank 0 as they would on N GPUs, but with fake tensors
(shapes, no numbers) and a fake process group (N ranks, nobody else there). What they allocate and send is
counted on the way.

>>> from utils.theory.presets import MODELS
>>> paper = shard_on_paper(MODELS["narayanan-7.5b"], world_size=64, stage=3)      # doctest: +SKIP
>>> paper.state_bytes / 1e9, paper.sent_per_parameter                            # doctest: +SKIP
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class OnPaper:
    """One training step of one rank. Bytes on this rank unless the name says otherwise.

    parameter_bytes   what the rank keeps between steps: its shard in fp32, the master copy
    gathered_bytes    the most of whole (unsharded) parameters at one time, in bf16
    gradient_bytes    the shard of the gradients
    optimizer_bytes   momentum and variance
    activation_bytes  what autograd keeps at the end of the forward pass
    peak_bytes        the most that all kinds take together during a step; `peak` has it by kind
    calls             collectives of a step, by name
    sent_per_parameter  elements that the step's collectives move, in units of Ψ: 3 or 2, the paper's count
    measured_layers   the slices that were run; more layers were added by continuing the straight line
    """

    parameters: int
    world_size: int
    stage: int
    parameter_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    peak_bytes: int
    peak: dict
    calls: dict
    sent_per_parameter: float
    measured_layers: tuple

    @property
    def state_bytes(self):
        """Parameters, gradients and optimizer state: what the ZeRO paper's table 1 counts."""
        raise NotImplementedError


def shard_on_paper(shape, world_size=64, stage=3, recompute="none", sequence=None, batch=1, layers=4, mixed=True):
    """Run a step of rank 0 out of `world_size` and count its bytes. About three seconds; no memory, no processes.

    shape       a `utils.theory.models.Transformer`
    stage       3 shards all; 2 keeps gathered parameters from forward to backward (`reshard_after_forward=False`);
                0 shards nothing
    recompute   "none", "selective" or "full", see `utils.parallel.activations.recompute`
    sequence    tokens per sequence; by default the shape's own
    batch       sequences on this rank
    layers      run slices of this many layers and of half as many, and continue the line to the whole model; None runs
                all layers, about half a second each
    mixed       bf16 compute and fp32 reduction, as in mixed-precision Adam; otherwise everything in fp32
    """
    raise NotImplementedError
