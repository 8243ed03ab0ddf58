"""Lab 02 on the far side of the boundary: models, gradients and layers for the student's functions."""

import functools

import torch
import torch.distributed as dist
from torch import nn

from utils.checks.boundary import case
from utils.checks.probes.alive import AliveBytes
from utils.checks.probes.all_reduce import net_with, state_of
from utils.ranks import span


def mine(part):
    """This rank's array of {"arrays": one per rank}, as a tensor over the same memory."""
    return torch.from_numpy(part["arrays"][dist.get_rank()])


def values(named_tensors):
    """{name: array}, copied without making a tensor that would be counted."""
    return {name: tensor.detach().numpy().copy() for name, tensor in named_tensors}


# q2: Adam whose state is spread over the ranks


def adam_on_net(ShardedAdam, state, steps, settings):
    """Train a Net of lab 01's exercise 4 with the given gradients; return its state after each step.

    steps     for each step {name: {"arrays": one gradient per rank}}; parameters that are missing have no gradient
    settings  keyword arguments of ShardedAdam
    """
    net = net_with(state)
    optimizer = ShardedAdam(net, **settings)
    states, left = [], []
    for number, gradients in enumerate(steps):
        for name, parameter in net.named_parameters():
            if name in gradients:
                parameter.grad = mine(gradients[name]).clone()
        with case(number):
            optimizer.step()
        states.append(values(state_of(net).items()))
        left.append([name for name, p in net.named_parameters() if p.requires_grad and p.grad is not None])
    return {"states": states, "left": left}


def adam_on_row(ShardedAdam, row, steps, dtype, settings):
    """Train one parameter, a row of numbers in `dtype`; return it afterwards, and the bytes that are new.

    Another one was trained before, with an optimizer of its own.
    """
    module, earlier = nn.Module(), nn.Module()
    earlier.row = nn.Parameter(torch.from_numpy(row.copy()).to(getattr(torch, dtype)))
    earlier.row.grad = mine(steps[0]).to(earlier.row.dtype)
    ShardedAdam(earlier, **settings).step()
    with AliveBytes() as alive:
        module.row = nn.Parameter(torch.from_numpy(row).to(getattr(torch, dtype)))
        before = alive.now()
        optimizer = ShardedAdam(module, **settings)
        for gradient in steps:
            module.row.grad = mine(gradient).to(module.row.dtype)
            optimizer.step()
        module.row.grad = None
        new_bytes = alive.now() - before
    return {"row": values([("row", module.row)])["row"], "new_bytes": new_bytes}


# q3: gradients that only a shard remains of


class Stack(nn.Module):
    """Linear layers of one width with tanh; the last one shares its weight with the first."""

    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=torch.float64) for _ in range(layers))
        self.layers[-1].weight = self.layers[0].weight

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

    def blocks(self):
        """The parameters of each layer; the shared weight belongs to the first one only."""
        shared = self.layers[0].weight
        return [
            [p for p in layer.parameters() if number == 0 or p is not shared]
            for number, layer in enumerate(self.layers)
        ]


def stack_with(weights):
    """A Stack with the given parameters: {name: array}."""
    biases = [array for name, array in weights.items() if name.endswith("bias")]
    stack = Stack(len(biases), len(biases[0]))
    for name, parameter in stack.named_parameters():
        parameter.detach().copy_(torch.from_numpy(weights[name]))
    return stack


def stack_loss(stack, x):
    """The mean over the samples of a sum over the outputs."""
    return stack(x).square().sum(1).mean()


def zero2(zero2_step, weights, batches, rate):
    """One step of plain gradient descent; return what the student's step gave to `update`, the state, and bytes.

    batches  a list of micro-batches {"arrays": one per rank}
    """
    given, alive_at_update, asked = [], [], []
    with AliveBytes() as alive:
        stack = stack_with(weights)
        before = alive.restart()

        def update(number, weights, gradient):
            alive_at_update.append(alive.now() - before if not given else 0)
            given.append({"block": number, **values([("weights", weights), ("gradient", gradient)])})
            weights -= rate * gradient

        def loss_of(number, x):
            asked.append(number)
            return stack_loss(stack, x)

        losses = [functools.partial(loss_of, number, mine(batch)) for number, batch in enumerate(batches)]
        with case("step"):
            zero2_step(stack.blocks(), losses, update)
        peak, after = alive.peak - before, alive.now() - before
    return {
        "given": given,
        "asked": asked,
        "state": values(stack.named_parameters()),
        "peak": peak,
        "at_update": alive_at_update[:1],
        "after": after,
        "gradients_left": [name for name, p in stack.named_parameters() if p.grad is not None],
        "hooks": sum(len(p._post_accumulate_grad_hooks or ()) for p in stack.parameters()),
    }


# q4: layers that are whole only while they compute


class Twice(nn.Module):
    """Two linear layers with one shared weight, and a way round them."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Linear(width, width, dtype=torch.float64) for _ in range(2))
        self.second.weight = self.first.weight

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


def twice_with(weights):
    """A Twice with the given parameters: {name: array}."""
    layer = Twice(len(weights["first.bias"]))
    for name, parameter in layer.named_parameters():
        parameter.detach().copy_(torch.from_numpy(weights[name]))
    return layer


def sharded_layers(ShardedLayer, weights, batch):
    """Forward and backward through wrapped layers; return outputs, gradients, and bytes at every stage.

    weights  for each layer {name: array}
    batch    {"arrays": one per rank}
    """
    with AliveBytes() as alive:
        layers = [ShardedLayer(twice_with(each)) for each in weights]
        parameters = [[list(p.shape) for p in layer.parameters()] for layer in layers]
        x = mine(batch).requires_grad_()
        seen = {"resting": alive.restart()}
        with case("forward"):
            outputs = x
            for layer in layers:
                outputs = layer(outputs)
        seen |= {"forward": alive.peak, "between": alive.restart()}
        with case("backward"):
            outputs.square().sum(1).mean().backward()
        seen |= {"backward": alive.peak, "after": alive.now()}
    shards = [p for layer in layers for p in layer.parameters()]
    return {
        "parameters": parameters,
        "outputs": outputs,
        "input_gradient": x.grad,
        "shards": shards,
        "gradients": [p.grad for p in shards],
        "bytes": seen,
    }


# q5: prefetch


class Sharded:
    """A layer for the student's prefetch: `shard`, `elements`, and compute(weights, x) = tanh(weights · x)."""

    def __init__(self, number, shard, width, calls):
        self.shard, self.elements = shard, width * width
        self._number, self._width, self._calls = number, width, calls

    def compute(self, weights, x):
        self._calls.append(self._number)
        with span("compute", layer=self._number):
            return torch.tanh(weights.view(self._width, self._width) @ x)


def prefetch(forward_with_prefetch, layers, x):
    """Run the layers, a list of {"arrays": one shard per rank}, on x; return output, order and peak bytes."""
    calls = []
    with AliveBytes() as alive:
        stack = [Sharded(number, mine(layer), len(x), calls) for number, layer in enumerate(layers)]
        before = alive.restart()
        with case("forward"):
            output = forward_with_prefetch(stack, torch.from_numpy(x))
        return {"output": output, "order": calls, "peak": alive.peak - before}


# q6: activations


class GptLayer(nn.Module):
    """A layer of GPT-2 with every tensor written out: x of shape (b, s, h), `heads` heads, dropout, a 4h MLP.

    Its dropout keeps one byte per element, as kernels on a GPU do. `nn.Dropout` on a CPU keeps as much as for a number.
    """

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.project = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = x + dropout(self.project(self.attention(self.norm_1(x))))
        return x + dropout(self.down(nn.functional.gelu(self.up(self.norm_2(x)))))

    def attention(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return (dropout(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2)


def dropout(x):
    """Half of the elements, doubled; the others zero."""
    return x * (torch.rand_like(x) < 0.5) * 2


def saved(saved_bytes, _formula, which, size):
    """What the student's counter says about a small computation, by name; `size` is a list of whole numbers.

    Returns the bytes, how often it ran the computation, and whether it left gradients.
    """
    forward, exclude = SAVING[which](*size)
    runs = []

    def counted():
        runs.append(None)
        return forward()

    n_bytes = saved_bytes(counted, exclude)
    return {"bytes": n_bytes, "runs": len(runs), "gradients": any(tensor.grad is not None for tensor in exclude)}


def _gpt_layer(b, s, hidden, heads):
    layer = GptLayer(hidden, heads).to(torch.bfloat16)
    x = torch.randn(b, s, hidden, dtype=torch.bfloat16)
    return lambda: layer(x), [*layer.parameters()]


def _linear(rows, columns, outputs):
    layer, x = nn.Linear(columns, outputs), torch.randn(rows, columns, requires_grad=True)
    return lambda: layer(x), [*layer.parameters()]


def _shared(rows, columns, _):
    x = torch.randn(rows, columns, requires_grad=True)
    return lambda: x.sin() + x.cos() + x * x, []


def _view(rows, columns, _):
    x = torch.randn(rows, columns, requires_grad=True)
    return lambda: x[:1].sin() + x.view(-1)[:columns].cos(), []


def _mask(rows, columns, _):
    x = torch.randn(rows, columns, dtype=torch.bfloat16, requires_grad=True)
    return lambda: dropout(x).sin(), []


SAVING = {
    "linear": _linear,
    "shared": _shared,
    "view": _view,
    "mask": _mask,
    "gpt_layer": _gpt_layer,
}
