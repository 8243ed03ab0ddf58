"""Bytes that training takes on one rank: parameters, gradients, optimizer state; what fits; offload.

Activations have their own module (`activations`), and so has the ResNet of the first lesson (`resnet`).
"""

from dataclasses import dataclass

from .arguments import device_bytes, non_negative, one_of, positive, several, whole_number
from .units import GiB


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of each part of the training state."""

    parameters: float
    gradients: float
    optimizer: float

    def __post_init__(self):
        positive("parameters", self.parameters)
        non_negative("gradients", self.gradients)
        non_negative("optimizer", self.optimizer)

    @property
    def bytes_per_parameter(self):
        """All of it, without sharding."""
        return self.parameters + self.gradients + self.optimizer


PRECISIONS = {
    "fp32": Recipe(4, 4, 0),
    "mixed": Recipe(2, 2, 4),
    "mixed, fp32 gradients": Recipe(2, 4, 4),
    "mixed, both gradients": Recipe(2, 2 + 4, 4),
}
"""Bytes per parameter without what the optimizer remembers; mixed precision keeps an fp32 master copy, 4 bytes."""

MOMENT_BYTES = {"sgd": 0, "momentum": 4, "adam": 8}
"""What the optimizer remembers of each parameter, in fp32: nothing, the momentum, or Adam's two moments."""


def build_recipe(precision="mixed", optimizer="adam"):
    """The Recipe of a precision and an optimizer, names in PRECISIONS and MOMENT_BYTES.

    >>> build_recipe("mixed", "adam").bytes_per_parameter, build_recipe("fp32", "sgd").bytes_per_parameter
    (16, 8)
    """
    base = PRECISIONS[one_of("precision", precision, tuple(PRECISIONS))]
    moments = MOMENT_BYTES[one_of("optimizer", optimizer, tuple(MOMENT_BYTES))]
    return Recipe(base.parameters, base.gradients, base.optimizer + moments)


RECIPES = {
    "fp32 sgd": build_recipe("fp32", "sgd"),
    "fp32 momentum": build_recipe("fp32", "momentum"),
    "fp32 adam": build_recipe("fp32", "adam"),
    "mixed adam": build_recipe("mixed", "adam"),
    "mixed adam, fp32 gradients": build_recipe("mixed, fp32 gradients", "adam"),
    "mixed adam, both gradients": build_recipe("mixed, both gradients", "adam"),
}
"""Recipes by name; optimizer state includes the fp32 master copy of the parameters.

fp32 sgd                    w and g                                               2 copies,  8 bytes
fp32 momentum               w, g, momentum                                        3 copies, 12 bytes
fp32 adam                   w, g, momentum, variance                              4 copies, 16 bytes
mixed adam                  ZeRO's K = 12: fp16 w and g, fp32 master and moments            16 bytes
mixed adam, fp32 gradients  Megatron-LM with bf16: gradients kept in fp32 only              18 bytes
mixed adam, both gradients  bf16 gradients and an fp32 accumulator beside them (nanotron)   20 bytes
"""

STAGES = (0, 1, 2, 3)
"""ZeRO stages: 0 shards nothing, 1 the optimizer state, 2 the gradients too, 3 the parameters too."""


@dataclass(frozen=True)
class TrainingState:
    """Bytes on one rank, by part."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total_bytes(self):
        return self.parameters + self.gradients + self.optimizer


def recipe_of(recipe):
    """The Recipe named `recipe`; a Recipe is returned as it is. Raises ValueError for an unknown name."""
    if isinstance(recipe, Recipe):
        return recipe
    return RECIPES[one_of("recipe", recipe, tuple(RECIPES))]


def training_state(parameters, recipe="mixed adam", stage=0, world_size=1):
    """Bytes of the training state on one rank, for `parameters` parameters under a ZeRO stage.

    ZeRO (arXiv 1910.02054), section 5 and figure 1; with K = 12 and N ranks:
    stage 1: 4Ψ + KΨ/N, stage 2: 2Ψ + (2 + K)Ψ/N, stage 3: (4 + K)Ψ/N.

    >>> [round(training_state(7.5e9, stage=s, world_size=64).total_bytes / 1e9, 1) for s in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    positive("parameters", parameters)
    one_of("stage", stage, STAGES)
    n = whole_number("world_size", world_size)
    each = recipe_of(recipe)
    return TrainingState(
        parameters=each.parameters * parameters / (n if stage >= 3 else 1),
        gradients=each.gradients * parameters / (n if stage >= 2 else 1),
        optimizer=each.optimizer * parameters / (n if stage >= 1 else 1),
    )


def training_state_bytes(parameters, recipe="mixed adam", stage=0, world_size=1):
    """Total bytes of `training_state`."""
    return training_state(parameters, recipe, stage, world_size).total_bytes


def peak_training_state(parts, recipe="mixed adam", stage=0, world_size=1, gradient_copies=1):
    """Bytes on one rank, each kind at its own peak, while parts of the model take turns in being whole.

    Stage 2 has the gradients of one part whole beside its shards, stage 3 the weights of one part too:
    Σψ/N + max ψ (PyTorch FSDP, arXiv 2304.11277, section 3.2). Stages 0 and 1 have everything whole already.

    parts: parameters of each part that is gathered and reduced by itself, as a rule a layer.
    gradient_copies: 2 where a part's gradients are packed into a second buffer to be sent.

    >>> [peak_training_state([6, 2], "fp32 sgd", stage, world_size=2).parameters for stage in (2, 3)]
    [32.0, 40.0]
    """
    parts = [positive("parts", parameters) for parameters in several("parts", parts)]
    each, copies = recipe_of(recipe), whole_number("gradient_copies", gradient_copies)
    resting = training_state(sum(parts), recipe, stage, world_size)
    return TrainingState(
        parameters=resting.parameters + each.parameters * max(parts) * (stage >= 3),
        gradients=resting.gradients + each.gradients * max(parts) * copies * (stage >= 2),
        optimizer=resting.optimizer,
    )


def largest_model(memory_bytes, recipe="mixed adam", stage=0, world_size=1, tensor=1):
    """Parameters of the largest model whose training state alone fits in `memory_bytes` per rank.

    ZeRO, table 2: `tensor` ranks of model parallelism multiply the answer. No room is left for activations.
    """
    device_bytes("memory_bytes", memory_bytes)
    per_parameter = training_state_bytes(1, recipe, stage, world_size)
    return whole_number("tensor", tensor) * memory_bytes / per_parameter


def smallest_stage_that_fits(parameters, memory_bytes, world_size, recipe="mixed adam"):
    """The lowest ZeRO stage whose training state fits in `memory_bytes` per rank, or None."""
    device_bytes("memory_bytes", memory_bytes)
    for stage in STAGES:
        if training_state_bytes(parameters, recipe, stage, world_size) <= memory_bytes:
            return stage
    return None


# Data parallelism


def copies_of_parameters(optimizer):
    """Tensors as large as the parameters that an fp32 rank holds: sgd 2 (w, g), momentum 3, adam 4."""
    one_of("optimizer", optimizer, ("sgd", "momentum", "adam"))
    recipe = RECIPES[f"fp32 {optimizer}"]
    return recipe.bytes_per_parameter // recipe.parameters


def data_parallel_bytes(parameters, activation_bytes_per_sample, batch, world_size, optimizer="adam"):
    """Bytes on one fp32 data-parallel rank: every copy of the parameters, and B/N samples' activations.

    Parameters do not shrink with the number of ranks; only activations do. The largest rank is meant:
    it gets ⌈B/N⌉ samples when N does not divide B.
    """
    samples = -(-whole_number("batch", batch) // whole_number("world_size", world_size))
    activations = samples * non_negative("activation_bytes_per_sample", activation_bytes_per_sample)
    return training_state_bytes(parameters, f"fp32 {optimizer}") + activations


def parameter_server_worker_bytes(parameters, bytes_per_element=4):
    """Bytes of w and g on a worker: 2 copies whatever the optimizer, whose state the server keeps."""
    return 2 * positive("parameters", parameters) * positive("bytes_per_element", bytes_per_element)


# Buffers


def fused_buffer_bytes(parameters, bytes_per_element=4):
    """Bytes of one buffer that fuses all gradients in fp32: 6 GB for 1.5B parameters (ZeRO, section 3.2)."""
    return positive("parameters", parameters) * positive("bytes_per_element", bytes_per_element)


def checkpoint_file_bytes(parameters, bytes_per_parameter=14):
    """Bytes of a training checkpoint: the 16-bit parameters and the optimizer state, 2 + K, as a rule.

    The 1T run of Narayanan et al. 2021 writes 13.8 TB, 13.69 bytes per parameter.
    """
    return positive("parameters", parameters) * positive("bytes_per_parameter", bytes_per_parameter)


# Fine-tuning a few added parameters


def lora_parameters(model, rank, targets=("query", "value")):
    """Parameters that LoRA (arXiv 2106.09685) adds: rank · (inputs + outputs) for each adapted matrix.

    targets: any of query, key, value, output, and for every matrix of the MLP, mlp.
    """
    whole_number("rank", rank)
    h, kv = model.hidden, model.kv_hidden
    inputs_and_outputs = {
        "query": 2 * h,
        "key": h + kv,
        "value": h + kv,
        "output": 2 * h,
        "mlp": model.mlp_matrices * (h + model.ffn),
    }
    for target in targets:
        one_of("targets", target, tuple(inputs_and_outputs))
    return model.layers * rank * sum(inputs_and_outputs[target] for target in targets)


NF4_BYTES_PER_PARAMETER = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""QLoRA (arXiv 2305.14314), section 3: 4 bits, and quantized constants for each block of 64: 4.127 bits."""


def lora_state(base_parameters, adapter_parameters, base_bytes_per_parameter=2.0, recipe="mixed adam"):
    """Training state when the base is frozen: gradients and optimizer state for the adapter only.

    base_bytes_per_parameter: 2 for LoRA on 16-bit weights; NF4_BYTES_PER_PARAMETER for QLoRA.
    """
    positive("base_parameters", base_parameters)
    adapter = training_state(adapter_parameters, recipe)
    base_bytes = positive("base_bytes_per_parameter", base_bytes_per_parameter) * base_parameters
    return TrainingState(adapter.parameters + base_bytes, adapter.gradients, adapter.optimizer)


# Offload


@dataclass(frozen=True)
class Offloaded:
    """Bytes on one GPU, in one node's main memory, and on one node's NVMe drives."""

    gpu_bytes: float
    cpu_bytes: float
    nvme_bytes: float = 0.0


def zero2_offload(parameters, gpus_per_node, nodes=1, cpu_optimizer=True, buffer_factor=1.5):
    """DeepSpeed's own estimate for ZeRO-2, with the optimizer on the CPU or not.

    GPU: 2Ψ, or 4Ψ + 16Ψ/N without offload. CPU per node: the estimator's max(4N, 16)Ψ, or 4Ψ for each GPU
    of the node while the model is built; times `buffer_factor`. Source: DeepSpeed, memory requirements.
    """
    gpus = whole_number("gpus_per_node", gpus_per_node) * whole_number("nodes", nodes)
    positive("parameters", parameters)
    positive("buffer_factor", buffer_factor)
    if cpu_optimizer:
        return Offloaded(2 * parameters, parameters * max(4 * gpus, 16) * buffer_factor)
    return Offloaded(4 * parameters + 16 * parameters / gpus, parameters * 4 * gpus_per_node * buffer_factor)


def zero3_offload(
    parameters,
    largest_layer_parameters,
    gpus_per_node,
    nodes=1,
    offload_parameters=True,
    offload_optimizer=True,
    sharded_construction=True,
    nvme=False,
    buffer_factor=1.5,
):
    """DeepSpeed's own estimate for ZeRO-3: 18 bytes per parameter, spread over GPUs, main memory or NVMe.

    A GPU always holds the largest layer whole (4 bytes per parameter). Offloading the optimizer leaves
    2Ψ/N on the GPU; offloading the parameters too leaves nothing else there.
    sharded_construction: the model is built shard by shard; otherwise each GPU's process builds it whole
        in main memory first, 4Ψ per GPU.
    nvme: what is offloaded lives on NVMe (ZeRO-Infinity, arXiv 2104.07857), without `buffer_factor`;
        main memory then keeps the largest layer as a buffer for each GPU.
    """
    whole_number("gpus_per_node", gpus_per_node)
    whole_number("nodes", nodes)
    positive("parameters", parameters)
    positive("buffer_factor", buffer_factor)
    if positive("largest_layer_parameters", largest_layer_parameters) > parameters:
        raise ValueError(
            f"largest_layer_parameters must be at most parameters, but {largest_layer_parameters!r} and "
            f"{parameters!r} were given."
        )
    if offload_parameters and not offload_optimizer:
        raise ValueError(
            "offload_parameters must be False when offload_optimizer is False, but True was given: "
            "DeepSpeed offloads parameters only together with the optimizer."
        )
    gpus = gpus_per_node * nodes
    layer_bytes = 4 * largest_layer_parameters
    if not offload_optimizer:
        offloaded_bytes, gpu_bytes = 0, layer_bytes + 18 * parameters / gpus
    elif offload_parameters:
        offloaded_bytes, gpu_bytes = 18 * parameters / nodes, layer_bytes
    else:
        offloaded_bytes, gpu_bytes = 16 * parameters / nodes, layer_bytes + 2 * parameters / gpus
    building_bytes = gpus_per_node * (layer_bytes if sharded_construction else 4 * parameters)
    if nvme or not offload_optimizer:
        return Offloaded(gpu_bytes, building_bytes * buffer_factor, offloaded_bytes)
    cpu_bytes = offloaded_bytes if sharded_construction else max(building_bytes, offloaded_bytes)
    return Offloaded(gpu_bytes, cpu_bytes * buffer_factor)


def as_gib(n_bytes):
    """`n_bytes` in GiB (2**30 bytes), the unit that DeepSpeed and nvidia-smi print as GB or MiB."""
    return non_negative("n_bytes", n_bytes) / GiB
