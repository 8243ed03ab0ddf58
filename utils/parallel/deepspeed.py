"""The same model trained by DeepSpeed's ZeRO (`make deepspeed` installs it). It is optional: without it nothing else changes.

>>> available() or print(missing())     # doctest: +SKIP
DeepSpeed is not installed here, so this part shows what it would do and does not run it. `make deepspeed` installs it.

On a CPU DeepSpeed would compile kernels with g++ for minutes. What it needs for them is left out here: communication
goes through gloo, and the optimizer is PyTorch's own.
"""

import contextlib
import importlib.util
import os
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Trained:
    """What `train` returns on each rank.

    weights             every parameter whole, by name: a copy
    losses              of each step, the mean over the ranks
    parameter_elements  elements of the weights that this rank kept between the steps
    optimizer_elements  elements of the optimizer's state on this rank
    """

    weights: dict
    losses: list
    parameter_elements: int
    optimizer_elements: int


def available():
    """Whether DeepSpeed is installed; nothing is imported by asking."""
    return importlib.util.find_spec("deepspeed") is not None


def missing():
    """The sentence for a reader without DeepSpeed."""
    return (
        "DeepSpeed is not installed here, so this part shows what it would do and does not run it. "
        "`make deepspeed` installs it."
    )


def configuration(stage, offload=False, samples_per_rank=1):
    """DeepSpeed's configuration as a dict, which is usually a JSON file beside the program.

    stage             0 (plain data parallelism), 1, 2 or 3
    offload           keep the optimizer state, and at stage 3 the parameters too, in main memory; stages 1 to 3
    samples_per_rank  in one step; DeepSpeed computes the global batch from it
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"DeepSpeed has stages 0, 1, 2 and 3, but {stage!r} was given.")
    if offload and stage == 0:
        raise ValueError("DeepSpeed offloads from stage 1 on, but stage 0 was given with offload.")
    zero = {"stage": stage}
    if stage == 3:
        # Elements that may stay whole, of one parameter and of all: millions by default, which is all of a tiny model.
        zero |= {
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": samples_per_rank,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # off; DeepSpeed clips to length 1 if nobody says otherwise
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # torch's AdamW
        "zero_force_ds_cpu_optimizer": False,  # offloading would insist on DeepSpeed's own, which is compiled
        "steps_per_print": 10**9,
    }


def train(model, loss_of, batches, stage, offload=False, optimizer=torch.optim.AdamW):
    """Train a model by DeepSpeed, a step for each batch; a `Trained`. Every rank calls it, inside `launch`.

    model      any module, with the same weights on all ranks; DeepSpeed changes it
    loss_of    called with the model and a batch's inputs and targets; returns the mean over the samples
    batches    this rank's part of each step's batch: (inputs, targets), of equal sizes on all ranks
    stage, offload  see `configuration`
    optimizer  called with the parameters, as `functools.partial(torch.optim.AdamW, lr=1e-3)` would be

    Raises RuntimeError with the sentence of `missing` when DeepSpeed is not there.
    """
    deepspeed = _import()
    batches = list(batches)
    names = {parameter: name for name, parameter in model.named_parameters()}
    losses = []
    with _quiet():
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer([parameter for parameter in names if parameter.requires_grad]),
            config=configuration(stage, offload, samples_per_rank=len(batches[0][0])),
        )
        for inputs, targets in batches:
            loss = loss_of(engine, inputs, targets)
            engine.backward(loss)
            engine.step()
            losses.append(_mean_over_ranks(loss))
        kept = sum(getattr(parameter, "ds_tensor", parameter).numel() for parameter in names)
        with deepspeed.zero.GatheredParameters(list(names), enabled=stage == 3):
            weights = {name: parameter.detach().clone() for parameter, name in names.items()}
    return Trained(weights, losses, kept, _state_elements(engine.optimizer))


def _import():
    if not available():
        raise RuntimeError(missing())
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if dist.get_backend() == "gloo" else "cuda")
    with _quiet():
        import deepspeed
    # All-reduce in shared memory is a kernel to be compiled; without it gloo does the work.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextlib.contextmanager
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that newer versions of PyTorch and of Python have deprecated
        yield


def _mean_over_ranks(loss):
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def _state_elements(optimizer):
    """Elements of the optimizer's state tensors; DeepSpeed's optimizer wraps the one that was given."""
    state = getattr(optimizer, "optimizer", optimizer).state
    tensors = [t for of_one in state.values() for t in of_one.values() if isinstance(t, torch.Tensor) and t.dim() > 0]
    return sum(tensor.numel() for tensor in tensors)
