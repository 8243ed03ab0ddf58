"""The same model trained by DeepSpeed's ZeRO, where DeepSpeed is installed (`make deepspeed`); it is optional.

>>> available() in (True, False)
True
"""


def available():
    """Whether DeepSpeed can be imported here; nothing is imported by asking."""
    raise NotImplementedError


def missing():
    """The sentence for a reader without DeepSpeed: what is missing and the command that installs it."""
    raise NotImplementedError


def train(model, batches, stage, offload=False, lr=1e-3, weight_decay=0.01):
    """Train on this rank with DeepSpeed's ZeRO, and return a `Trained`; call it on every rank, inside `launch`.

    model    any module, with the same weights on all ranks
    batches  this rank's part of each step's batch: a sequence of (inputs, targets), parts of equal size
    stage    0, 1, 2 or 3
    offload  keep the optimizer state, and at stage 3 the parameters too, in main memory
    """
    raise NotImplementedError
