"""A ZeRO rank as a whole: training state, activations, what is offloaded, the peak, and the largest GPT that fits.

The training state alone is `memory.training_state`; what a stage sends is `traffic.zero_elements_per_step`.
"""

from dataclasses import dataclass

from .activations import layer_activation_bytes
from .arguments import device_bytes, non_negative, one_of
from .memory import recipe_of, training_state
from .presets import gpt_with_layers
from .traffic import zero_elements_per_step

OFFLOADS = ("nothing", "optimizer", "parameters")
"""What moves to the CPU's memory, as far as the stage shards it (ZeRO-Offload, arXiv 2101.06840; ZeRO-Infinity).

optimizer   the optimizer state from stage 1 on, and with it the gradients from stage 2 on
parameters  and the parameters, in stage 3
"""


@dataclass(frozen=True)
class ZeroBytes:
    """Bytes on one rank's GPU, by part, and in the CPU's memory for this rank.

    gathered: one layer's parameters, whole while it computes, beside the shards of stage 3.
    """

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    cpu_bytes: float = 0.0

    @property
    def state_bytes(self):
        """On the GPU, what stays from step to step."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total_bytes(self):
        """On the GPU."""
        return self.state_bytes + self.gathered + self.activations


def zero_rank_bytes(
    parameters,
    model,
    recipe="mixed adam",
    stage=0,
    world_size=1,
    micro_batch=1,
    recomputation="none",
    offload="nothing",
):
    """ZeroBytes of one of N ranks that train `parameters` parameters under a ZeRO stage.

    model: a Transformer, for the activations only, which count 16 bits whatever the recipe.
    micro_batch: b sequences of the model's length on each rank.

    Under full recomputation the activations hold one layer's whole activations too, while it is computed again.
    """
    one_of("offload", offload, OFFLOADS)
    state = vars(training_state(parameters, recipe, stage, world_size))
    activations = model.layers * layer_activation_bytes(model, micro_batch, recomputation=recomputation)
    if recomputation == "full":
        activations += layer_activation_bytes(model, micro_batch)
    leaves_from_stage = {
        "nothing": {},
        "optimizer": {"optimizer": 1, "gradients": 2},
        "parameters": {"optimizer": 1, "gradients": 2, "parameters": 3},
    }[offload]
    leaving = {part for part, first in leaves_from_stage.items() if stage >= first}
    on_gpu = {part: 0.0 if part in leaving else n_bytes for part, n_bytes in state.items()}
    gathered = recipe_of(recipe).parameters * model.layer_parameters if stage == 3 else 0.0
    return ZeroBytes(**on_gpu, gathered=gathered, activations=activations, cpu_bytes=sum(state[part] for part in leaving))


def zero_peak_bytes(parameters, largest_block, largest_parameter, recipe="mixed adam", stage=0, world_size=1):
    """The most bytes of training state that a rank of `utils.parallel.zero` holds at a moment of a step.

    largest_block: parameters of the largest block. Stage 2 holds one block's gradient whole during backward, and beside
        it the gradient that has just come; stage 3 the block's weights too.
    largest_parameter: elements of the largest tensor in that block.

    Weights of 16 bits: the optimizer reads its gradients in fp32, a copy of 4 bytes for each parameter that it updates.
    """
    each = recipe_of(recipe)
    state = training_state(parameters, each, stage, world_size)
    non_negative("largest_block", largest_block)
    non_negative("largest_parameter", largest_parameter)
    backward = each.gradients * (largest_block + largest_parameter) if stage >= 2 else 0
    backward += each.parameters * largest_block if stage >= 3 else 0
    updated = parameters / (world_size if stage >= 1 else 1)
    return state.total_bytes + max(backward, 4 * updated if each.parameters == 2 else 0)


def zero_bytes_per_step(parameters, recipe="mixed adam", stage=0, world_size=None, micro_batches=1):
    """Bytes that a rank sends in one step: `zero_elements_per_step`, each as wide as a parameter of the recipe."""
    elements = zero_elements_per_step(parameters, stage, world_size, micro_batches)
    return recipe_of(recipe).parameters * elements


def largest_gpt(memory_bytes, sequence=2048, **choices):
    """The largest `presets.gpt_with_layers` whose state and activations fit in `memory_bytes`; None if not even one layer.

    choices: arguments of `zero_rank_bytes` from `recipe` on.

    >>> from .units import GiB
    >>> largest_gpt(80 * GiB, stage=0).parameters < largest_gpt(80 * GiB, stage=1, world_size=8).parameters
    True
    """
    device_bytes("memory_bytes", memory_bytes)

    def fits(layers):
        model = gpt_with_layers(layers, sequence)
        return zero_rank_bytes(model.parameters, model, **choices).total_bytes <= memory_bytes

    if not fits(1):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return gpt_with_layers(low, sequence)

