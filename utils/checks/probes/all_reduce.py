"""Lab 01 on the far side of the boundary: tensors, models and batches for the student's functions."""

import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from utils.checks.boundary import case
from utils.checks.probes.arithmetic import unchanged
from utils.parallel.data import make_buckets, trainable_parameters
from utils.ranks import span

# q1, q2, q3: collectives that work in place


def in_place(function, cases):
    """Call function(tensor) once per case; return what stands in the tensor afterwards, a list of arrays.

    Each case: "arrays", one per rank; and "transposed", if the tensor is to be a view that is not contiguous.
    """
    tensors = []
    for number, given in enumerate(cases):
        array = given["arrays"][dist.get_rank()]
        tensor = torch.from_numpy(array.T.copy()).T if given["transposed"] else torch.from_numpy(array)
        memory = tensor.view_as(tensor)  # also if the tensor is made to look elsewhere
        with case(number):
            function(tensor)
        tensors.append(memory)
    return tensors


# q4: a data-parallel step


class Net(nn.Module):
    """A small regression that holds every trap: see the exercise.

    `first` and `second` share their weight, `frozen` is not trained, `unused` takes no part in forward, the weight of
    `last` is a transposed view, and `shift` is a buffer.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 3).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(3, 2)
        self.last.weight = nn.Parameter(torch.empty(3, 2).t())
        self.register_buffer("shift", torch.empty(4))
        self.double()

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x + self.shift))))
        return self.last(torch.tanh(self.frozen(hidden)))


def net_with(state):
    """A Net with the given parameters and buffers: {name: array}."""
    net = Net()
    for name, tensor in state_of(net).items():
        tensor.copy_(torch.from_numpy(state[name]))
    return net


def state_of(net):
    """{name: tensor} of all parameters and buffers; a shared parameter under its first name only."""
    return {name: tensor.detach() for name, tensor in [*net.named_parameters(), *net.named_buffers()]}


def broadcast(broadcast_model, _step, states):
    """Give every rank its own model, call broadcast_model, return the parameters and buffers."""
    net = net_with(states[dist.get_rank()])
    with case("broadcast"):
        broadcast_model(net)
    return state_of(net)


def train(_broadcast_model, data_parallel_step, state, row_batches, learning_rate, weight_decay):
    """Train on `row_batches`, a list of {"x": (B, 4), "y": (B, 2)}; return the state after each step.

    All ranks start with `state` and get their part of each batch as `torch.tensor_split` cuts it.
    """
    net = net_with(state)
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, weight_decay=weight_decay)
    states = []
    for number, batch in enumerate(row_batches):
        x, y = (
            torch.from_numpy(batch[name]).tensor_split(dist.get_world_size())[dist.get_rank()]
            for name in "xy"
        )
        before = [x.tolist(), y.tolist()]
        with case(number):
            data_parallel_step(net, nn.functional.mse_loss, optimizer, x, y, len(batch["x"]))
        unchanged([x.tolist(), y.tolist()], before, "inputs or targets")
        states.append({name: tensor.clone() for name, tensor in state_of(net).items()})
    return states


# q5: buckets and overlap


def buckets(student_make_buckets, _backward, cases):
    """Cut parameters into buckets; return them as lists of positions in `sizes`, for each case.

    A case is {"sizes", "bucket_bytes", "dtype"}.
    """
    return [_positions(student_make_buckets, **each) for each in cases]


def _positions(student_make_buckets, sizes, bucket_bytes, dtype):
    parameters = [nn.Parameter(torch.zeros(size, dtype=getattr(torch, dtype))) for size in sizes]
    position = {id(parameter): number for number, parameter in enumerate(parameters)}
    made = student_make_buckets(parameters, bucket_bytes)
    unchanged([position[id(parameter)] for parameter in parameters], list(range(len(sizes))), "the list of parameters")
    if not isinstance(made, (list, tuple)) or not all(isinstance(bucket, (list, tuple)) for bucket in made):
        raise TypeError(f"make_buckets must return a list of lists of parameters; it returned {made!r:.80}")
    return [[position.get(id(parameter), -1) for parameter in bucket] for bucket in made]


class SlowBackward(torch.autograd.Function):
    """Passes its input on; its backward takes some time and leaves a span "backward" with the layer's number."""

    @staticmethod
    def forward(ctx, x, layer, seconds):
        ctx.layer, ctx.seconds = layer, seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        with span("backward", layer=ctx.layer):
            time.sleep(ctx.seconds)
        return gradient, None, None


class Chain(nn.Module):
    """Linear layers of one width with a slow backward; the last shares its weight with the first."""

    def __init__(self, layers, width, seconds=0.0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.layers[-1].weight = self.layers[0].weight
        self.seconds = seconds
        self.double()

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = SlowBackward.apply(torch.tanh(layer(x)), number, self.seconds)
        return x


def chain_with(weights, seconds=0.0):
    """A Chain with the given parameters: {name: array}."""
    names = [name for name in weights if name.endswith("bias")]
    chain = Chain(len(names), len(weights[names[0]]), seconds)
    for name, parameter in chain.named_parameters():
        parameter.detach().copy_(torch.from_numpy(weights[name]))
    return chain


def overlap(_make_buckets, backward_with_overlap, weights, row_batches, bucket_bytes, seconds):
    """Run one backward per batch; return the gradients after each, {name: array}, and the hooks that are left."""
    chain = chain_with(weights, seconds)
    gradients = []
    for number, batch in enumerate(row_batches):
        x = torch.from_numpy(batch).tensor_split(dist.get_world_size())[dist.get_rank()]
        chain.zero_grad()
        loss = chain(x).square().mean()
        with case(number):
            backward_with_overlap(loss, make_buckets(trainable_parameters(chain), bucket_bytes))
        gradients.append({name: _gradient_of(parameter) for name, parameter in chain.named_parameters()})
    hooks = sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in chain.parameters())
    return {"gradients": gradients, "hooks": hooks}


def _gradient_of(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


# q6: the parameter server


def server(server_round, _server_elements, _ring_elements, weights, slopes, learning_rate, rounds):
    """Run rounds in which worker k's gradient at w is slopes[k] · w; return the server's weights after each round.

    Workers return the weights at which they were asked for their gradient.
    """
    rank = dist.get_rank()
    held = torch.from_numpy(weights.copy() if rank == 0 else np.full_like(weights, np.nan))
    seen, after = [], []

    def gradient(at):
        seen.append(at.clone())
        return torch.from_numpy(slopes[rank - 1]) * at

    for number in range(rounds):
        with case(number):
            server_round(held, gradient, learning_rate)
        after.append(held.clone())
    return {"after": after, "seen": seen}

