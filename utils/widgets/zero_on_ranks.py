"""What the widget of lesson 02 runs on ranks: a few training steps of a small GPT under a ZeRO stage, counted."""

from dataclasses import dataclass

STEPS = 3


@dataclass(frozen=True)
class Counted:
    """What one rank counted.

    parameters, gradients, optimizer  bytes that rest between two steps
    peak_bytes                        the most of all three together at a moment of backward or of the update
    losses                            this rank's loss in each step
    """

    parameters: int
    gradients: int
    optimizer: int
    peak_bytes: int
    losses: tuple[float, ...]


def train(config, stage: int, precision: str, optimizer: str) -> Counted:
    """Train the GPT of `config` (a Transformer) for STEPS steps; barriers lie around the second one, to find its sends.

    precision  "fp32" or "mixed": bf16 weights and gradients, an fp32 master copy in the optimizer
    optimizer  "adam", "momentum" or "sgd"
    """
    import torch
    import torch.distributed as dist

    from utils.parallel.model import LanguageModel
    from utils.parallel.zero_bytes import PeakBytes, state_bytes
    torch.set_num_threads(1)  # the model is tiny, and other ranks want the cores too
    model = LanguageModel(config, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    zero = _stage(model, stage, _optimizer(optimizer))
    tokens = torch.randint(config.vocab, (2, config.sequence + 1), generator=torch.Generator().manual_seed(dist.get_rank()))
    losses = []

    def forward():
        logits = zero(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        return loss

    def update(loss):
        zero.backward(loss)
        zero.step()

    update(forward())  # now the optimizer has all of its state
    dist.barrier()
    update(forward())
    dist.barrier()
    resting = state_bytes(zero)
    loss = forward()
    with PeakBytes(zero) as peak:  # slow: it counts after every operation
        update(loss)
    return Counted(resting.parameters, resting.gradients, resting.optimizer, peak.total, tuple(losses))


def _optimizer(name):
    import functools

    import torch

    from utils.parallel.zero_shards import Adam
    return {"adam": Adam,
            "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            "sgd": functools.partial(torch.optim.SGD, lr=0.1)}[name]


def _stage(model, stage, optimizer):
    from utils.parallel.zero import Zero1, Zero2, Zero3
    if stage == 0:
        return _replicated(model, optimizer)
    if stage == 1:
        return Zero1(model, optimizer)
    blocks = [model.tok_embeddings, model.pos_embeddings, *model.layers, model.norm, model.output]
    return (Zero2 if stage == 2 else Zero3)(model, optimizer, blocks)


def _replicated(model, optimizer):
    """Stage 0: each rank keeps everything, as stage 1 does in a group of one; the gradients are averaged over all."""
    import torch.distributed as dist

    from utils.parallel.collectives import ring_all_reduce
    from utils.parallel.zero import Zero1

    class Replicated(Zero1):
        def backward(self, loss):
            super().backward(loss, 1 / dist.get_world_size())

        def step(self):
            for flat in self.flats:
                ring_all_reduce(flat.gradients)
            super().step()

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return Replicated(model, optimizer, groups[dist.get_rank()])
