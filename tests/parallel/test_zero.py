"""ZeRO stages 1 to 3 on real ranks: the result of one process, the bytes and the elements that theory counts."""

import functools
import gc

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn

from utils.parallel import zero_shards
from utils.parallel.collectives import ring_all_reduce, ring_reduce_scatter
from utils.parallel.data import shard_batch, share_of_batch
from utils.parallel.zero import Zero1, Zero2, Zero3
from utils.parallel.zero_bytes import PeakBytes, alive_bytes, state_bytes
from utils.parallel.zero_shards import Adam
from utils.ranks import RankError, launch
from utils.theory.collectives import all_gather_elements_sent, reduce_scatter_elements_sent
from utils.theory.memory import training_state
from utils.theory.ring import chunk_sizes
from utils.theory.traffic import zero_elements_per_step

STEPS = 10
# Only the order of additions differs, so gradients differ in their last bit (1e-16). Adam divides a gradient by its
# own size: an update of lr = 0.01 is off by lr times the gradient's relative error, 1e-18 and, for a sum that lost
# two digits, 1e-16. Ten of them and the weight's own rounding stay below 1e-15; a digit is for other machines.
CLOSE = 1e-14
ADAM = dict(lr=0.01, weight_decay=0.1)
STAGES = {
    "1": Zero1,
    "2": Zero2,
    "3": Zero3,
    "3 kept": functools.partial(Zero3, reshard_after_forward=False),
    "3 prefetch": functools.partial(Zero3, prefetch=True),
}
SENT_AS = {"1": 1, "2": 2, "3": 3, "3 kept": 2, "3 prefetch": 3}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(5), nn.Linear(5, 7), nn.Linear(7, 5)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Nasty(nn.Module):
    """An embedding tied to the head, a frozen part in a trainable layer, a parameter that nobody uses."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 5), nn.Linear(5, 11, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.unused = nn.Linear(2, 1)
        self.head.weight = self.embed.weight
        self.layers[1].up.requires_grad_(False)
        self.recompute = None

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            if layer is self.recompute:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(x)


def nasty(dtype=torch.float64):
    torch.manual_seed(0)
    return Nasty().to(dtype)


def batch(step, size=12):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(11, (size,), generator=generator), torch.randint(11, (size,), generator=generator)


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def state(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def whole_state(zero):
    if not isinstance(zero, Zero3):
        return state(zero.model)
    with zero.gathered() as model:
        return state(model)


def train(zero, sizes=(12,) * STEPS):
    for step, size in enumerate(sizes):
        x, y = (shard_batch(part) for part in batch(step, size))
        zero.backward(loss_of(zero, x, y), share_of_batch(len(x), size))
        zero.step()


def one_process(make_optimizer, sizes=(12,) * STEPS):
    model = nasty()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters)
    for step, size in enumerate(sizes):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)  # so that decay reaches what is unused
        loss_of(model, *batch(step, size)).backward()
        optimizer.step()
    return state(model)


def differences(actual, expected):
    """The largest difference between two states, NaN if there is a NaN in either."""
    return torch.stack([(actual[name] - expected[name]).abs().max() for name in expected]).max().item()


def groups(model, stage):
    """The parameters that are flattened together, written down by hand."""
    parameters = list(model.parameters())
    own = [[*model.embed.parameters(), *model.unused.parameters()], *(list(layer.parameters()) for layer in model.layers)]
    return [parameters] if stage == "1" else own


def elements(model, stage):
    """Elements of each group: those that are trained, and those that are frozen."""
    return [
        [sum(p.numel() for p in group if p.requires_grad == wanted) for group in groups(model, stage)]
        for wanted in (True, False)
    ]


def largest_gradients(model):
    return [max(p.numel() for p in group if p.requires_grad) for group in groups(model, "2")]


# Ten steps


def mixed_one_process(world_size, stage, steps):
    """Mixed precision in one process: each rank's bf16 gradient in turn, added in the order of the ring."""
    model = nasty(torch.bfloat16)
    flats = [[p for p in group if p.requires_grad] for group in groups(model, stage)]
    masters = [torch.cat([p.detach().reshape(-1) for p in flat]).float() for flat in flats]
    optimizer = torch.optim.AdamW(masters, **ADAM)
    for step in range(steps):
        gradients = []  # of each rank, of each flat
        for rank in range(world_size):
            model.zero_grad()
            x, y = (part.tensor_split(world_size)[rank] for part in batch(step))
            (loss_of(model, x, y) * (len(x) / 12)).backward()
            gradients.append(
                [
                    torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in flat])
                    for flat in flats
                ]
            )
        for number, master in enumerate(masters):
            chunks = [gradients[rank][number].tensor_split(world_size) for rank in range(world_size)]
            total = []
            for chunk in range(world_size):
                first, *others = [(chunk + step) % world_size for step in range(world_size)]
                total.append(sum((chunks[rank][chunk] for rank in others), chunks[first][chunk]))
            master.grad = torch.cat(total).float()
        optimizer.step()
        for flat, master in zip(flats, masters):
            for p, part in zip(flat, master.split([p.numel() for p in flat])):
                p.data.copy_(part.view(p.shape))
    return state(model)


OPTIMIZERS = {
    "adam": functools.partial(Adam, **ADAM),
    "torch": functools.partial(torch.optim.AdamW, **ADAM),
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),  # sees a wrong scale, which Adam hides
}
# The world sizes share the combinations; unequal parts need the weights that SGD sees.
COMBINATIONS = {
    2: [("1", "torch"), ("2", "torch"), ("3 kept", "torch"), ("1", "mixed"), ("3 prefetch", "mixed")],
    3: [("1", "sgd"), ("2", "sgd"), ("3", "sgd"), ("2", "mixed")],
    4: [("2", "adam"), ("3 prefetch", "adam"), ("3", "mixed")],
}


def ten_steps(combinations):
    torch.set_num_threads(1)  # LayerNorm's backward pass adds up by threads
    finals, alone = {}, {}
    for stage, name in combinations:
        if name == "mixed":
            zero = STAGES[stage](nasty(torch.bfloat16), OPTIMIZERS["torch"])
            train(zero)
            alone[stage] = mixed_one_process(dist.get_world_size(), stage, STEPS) if dist.get_rank() == 0 else None
        else:
            zero = STAGES[stage](nasty(), OPTIMIZERS[name])
            train(zero, (10,) * STEPS)
        finals[stage, name] = whole_state(zero)
    return finals, alone


@pytest.mark.parametrize("world_size", COMBINATIONS)
def test_ten_steps_equal_one_process(world_size):
    """Ten samples are unequal parts on 3 and 4 ranks; mixed precision is bitwise what one process computes."""
    run = launch(ten_steps, COMBINATIONS[world_size], world_size=world_size)
    finals, alone = run.results[0]
    for (stage, name), final in finals.items():
        for replica, _ in run.results[1:]:
            assert differences(replica[stage, name], final) == 0
        if name == "mixed":
            assert differences(final, alone[stage]) == 0, stage
        else:
            assert differences(final, one_process(OPTIMIZERS[name], (10,) * STEPS)) <= CLOSE, (stage, name)


# Bytes and elements


def bytes_and_elements(stages):
    gc.freeze()  # what torch brought along need not be looked through each time
    counted = {}
    for stage in stages:
        before = alive_bytes()
        zero = STAGES[stage](nasty(torch.bfloat16), Adam)
        train(zero, [12])
        resting, alive = state_bytes(zero), alive_bytes() - before
        x, y = (shard_batch(part) for part in batch(0))
        dist.barrier()
        zero.backward(loss_of(zero, x, y))
        zero.step()
        dist.barrier()
        zero.backward(loss_of(zero, x, y) / 2)
        zero.backward(loss_of(zero, x, y) / 2)
        zero.step()
        dist.barrier()
        with PeakBytes(zero) as peak:
            zero.backward(loss_of(zero, x, y))
        with PeakBytes(zero) as peak_of_step:
            zero.step()
        counted[stage] = resting, alive, peak.most, peak_of_step.most
        del zero, peak, peak_of_step
    return counted


def sent_between_barriers(record):
    stretches = [0]
    for call in record.calls:
        if call.op == "barrier":
            stretches.append(0)
        elif call.op == "send":
            stretches[-1] += call.elements
    return stretches


@pytest.mark.parametrize("world_size, stages", [(2, list(STAGES)), (3, ["1", "2", "3"]), (4, ["1", "2", "3 prefetch"])])
def test_bytes_and_elements(world_size, stages):
    run = launch(bytes_and_elements, stages, world_size=world_size)
    model = nasty()
    trainable, frozen = (sum(part) for part in elements(model, "1"))
    for number, stage in enumerate(stages):
        psi, ice = elements(model, stage)
        number_of_stage = int(stage[0])
        for rank in range(world_size):
            own = sum(chunk_sizes(n, world_size)[(rank + 1) % world_size] for n in psi)
            own_frozen = sum(chunk_sizes(n, world_size)[(rank + 1) % world_size] for n in ice)
            resting, alive, peak, peak_of_step = run.results[rank][stage]
            assert resting.optimizer == 12 * own
            assert resting.gradients == 2 * (trainable if stage == "1" else own)
            assert resting.parameters == 2 * (own + own_frozen if stage[0] == "3" else trainable + frozen)
            # Nothing else is alive than a NaN for each freed flat
            assert 0 <= alive - resting.total_bytes <= 2 * 2 * len(psi), (stage, alive, resting)

            # In backward one block's gradient is whole, and beside it the parameter's that has just come.
            arriving = max(n + largest for n, largest in zip(psi, largest_gradients(model)))
            assert peak.gradients == resting.gradients + (0 if stage == "1" else 2 * arriving), stage
            # In the step the optimizer reads the shard's gradient in fp32.
            assert peak_of_step.gradients == resting.gradients + 4 * own, stage
            if stage[0] == "3":
                layers = [a + b for a, b in zip(psi, ice)][1:]  # the model's own block is whole all the time
                at_once = {"3": 1, "3 prefetch": 2, "3 kept": 3}[stage]
                assert peak.parameters == resting.parameters + 2 * (psi[0] + sum(layers[:at_once])), stage
            else:
                assert peak.parameters == resting.parameters

            reduce = sum(reduce_scatter_elements_sent("ring", n, world_size)[rank] for n in psi)
            ring = sum(all_gather_elements_sent("ring", n, world_size)[rank] for n in psi)
            gather = (world_size - 1) * (own + own_frozen)
            once, twice = {
                "1": (reduce + ring, reduce + ring),
                "2": (reduce + ring, 2 * reduce + ring),
                "3 kept": (gather + reduce, 2 * (gather + reduce)),
            }.get(stage, (2 * gather + reduce, 2 * (2 * gather + reduce)))
            stretches = sent_between_barriers(run.records[rank])
            assert stretches[3 * number + 1] == once, stage
            assert stretches[3 * number + 2] == twice, stage

        total = sum(sent_between_barriers(record)[3 * number + 1] for record in run.records)
        ice_total = (SENT_AS[stage] - 1) * frozen * (world_size - 1) if stage[0] == "3" else 0
        assert total == round(world_size * zero_elements_per_step(trainable, SENT_AS[stage], world_size)) + ice_total
        predicted = training_state(trainable, "mixed adam", number_of_stage, world_size)
        mean = sum(run.results[rank][stage][0].total_bytes for rank in range(world_size)) / world_size
        assert mean == pytest.approx(predicted.total_bytes + 2 * frozen / (world_size if stage[0] == "3" else 1))


def test_gloos_reduce_scatter_costs_an_all_reduce_on_the_wire():
    elements = 400_000

    def worker(by_hand):
        gradients = torch.ones(elements)
        if by_hand:
            ring_reduce_scatter(gradients)
        else:
            dist.reduce_scatter(torch.empty(elements // 4), list(gradients.tensor_split(4)))
        dist.barrier()

    for by_hand, shares in [(True, 3 / 4), (False, 2 * 3 / 4)]:
        run = launch(worker, by_hand, world_size=4)
        assert set(run.sent_bytes()) == {4 * elements * 3 / 4}
        wire = run.wire()
        if wire.isna().any(axis=None):
            pytest.skip("Only Linux counts the bytes on the wire.")
        assert wire.sum(axis=1).tolist() == pytest.approx([4 * elements * shares] * 4, rel=0.02)


# Everything else a stage promises


def edge_cases():
    zero = Zero3(nasty(), prefetch=True)
    weight = zero.model.layers[0].down.weight
    freed = weight.shape == (5, 7) and bool(weight.isnan().all())
    with torch.no_grad():
        evaluated = zero(batch(0)[0])
    freed = freed and bool(weight.isnan().all())

    def recompute_inside(layer):
        plain = layer.forward
        layer.forward = lambda x: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)

    model = nasty()
    model.recompute = model.layers[0]  # one called through checkpoint, one that calls it
    recompute_inside(model.layers[1])
    recomputed = Zero3(model, OPTIMIZERS["torch"], blocks=model.layers, prefetch=dist.get_world_size() == 1)
    train(recomputed, [12, 1])  # one rank has no samples in the second
    return freed, evaluated, whole_state(recomputed)


@pytest.mark.parametrize("world_size", [1, 2])
def test_freed_weights_are_nan_and_recomputation_works(world_size):
    freed, evaluated, recomputed = launch(edge_cases, world_size=world_size).results[-1]
    assert freed
    assert torch.equal(evaluated, nasty()(batch(0)[0]))
    assert differences(recomputed, one_process(OPTIMIZERS["torch"], [12, 1])) <= CLOSE


def test_mistakes_get_a_sentence():
    def backward_alone(make):
        zero = make(nasty())
        loss_of(zero, *batch(0)).backward()

    def zero_grad():
        zero = Zero1(nasty())
        zero.model.zero_grad()
        zero.backward(loss_of(zero, *batch(0)))
        zero.step()

    for make in (Zero2, Zero3):
        with pytest.raises(RankError, match=r"Call zero\.backward\(loss\)"):
            launch(backward_alone, make, world_size=1)
    with pytest.raises(RankError, match=r"leave out zero_grad\(\)"):
        launch(zero_grad, world_size=1)


def test_everything_stays_in_its_group():
    def worker():
        pair = dist.new_group([2, 1])
        if dist.get_rank() == 0:
            return None
        zeros = [make(nasty(), group=pair) for make in (Zero1, Zero2, functools.partial(Zero3, prefetch=True))]
        for zero in zeros:
            zero.backward(loss_of(zero, *(shard_batch(part, pair) for part in batch(0))))
            zero.step()
        return [whole_state(zero) for zero in zeros]

    run = launch(worker, world_size=3)
    calls = run.comm()
    assert set(calls["rank"]) == {1, 2}  # nobody asked rank 0
    assert set(calls["group"]) == {"1,2"} and set(calls["op"]) == {"send", "recv"}
    _, one, other = run.results
    expected = one_process(Adam, [12])
    for replica, same in zip(one, other):
        assert differences(replica, same) == 0
        assert differences(replica, expected) <= CLOSE


# Mutants: each check can fail


def mutants():
    """Each classical mistake, and the number by which its check sees it."""
    seen = {}
    makers = {stage: functools.partial(STAGES[stage], optimizer=OPTIMIZERS["sgd"]) for stage in "123"}

    zero = makers["2"](nasty())
    for step in range(2):
        x, y = (shard_batch(part) for part in batch(step))
        zero.backward(loss_of(zero, x, y), 1 / 4)
        zero.step()
    seen["averaged twice"] = whole_state(zero)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.parallel.zero.ring_all_gather", lambda tensor, group=None: tensor)
        zero = makers["1"](nasty())
        train(zero, [12, 12])
    seen["no all-gather"] = whole_state(zero)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_shards.Flat, "own_chunk", lambda self, flat: flat)
        seen["state not sharded"] = state_bytes(Zero1(nasty(torch.bfloat16))).optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_shards.Flat, "free", lambda self: None)
        seen["never freed"] = state_bytes(Zero3(nasty(torch.bfloat16))).parameters

    del zero
    kept, free, before = [], zero_shards.Flat.free, alive_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_shards.Flat, "free", lambda self: (kept.append(self.weights), free(self)))
        zero = Zero3(nasty(torch.bfloat16))
    seen["kept elsewhere"] = alive_bytes() - before - state_bytes(zero).total_bytes
    return seen


def test_mutants_are_seen():
    run = launch(mutants, world_size=2)
    one, other = run.results
    expected = one_process(OPTIMIZERS["sgd"], [12, 12])
    parameters = sum(p.numel() for p in nasty().parameters())
    trainable = sum(elements(nasty(), "1")[0])
    assert differences(one["averaged twice"], expected) > 1e-3
    assert differences(one["no all-gather"], other["no all-gather"]) > 1e-3
    assert one["state not sharded"] == 12 * trainable
    assert one["never freed"] >= 2 * parameters
    assert one["kept elsewhere"] >= 2 * parameters


def wrong_counts():
    """Mistakes that leave the weights as they should be, and send or keep more than the stage promises."""
    finals = {}

    def step_of(name, make, attribute, replacement):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attribute, replacement)
            zero = make(nasty(), OPTIMIZERS["sgd"])
            dist.barrier()
            train(zero, [12])
            dist.barrier()
            finals[name] = whole_state(zero)

    def reduce_everywhere(tensor, group=None):
        ring_all_reduce(tensor, group)
        return tensor.tensor_split(2)[(dist.get_rank(group) + 1) % 2]

    def gather_twice(flat):
        if not flat.is_whole:
            gather(flat)
            flat.free()
            gather(flat)

    gather = zero_shards.Flat.gather
    same = ("1", Zero1), ("2", Zero2), ("3", Zero3)
    for stage, make in same:
        step_of(stage, make, "utils.parallel.zero.ring_reduce_scatter", ring_reduce_scatter)
    for stage, make in same:
        step_of(f"{stage}, all-reduce", make, "utils.parallel.zero.ring_reduce_scatter", reduce_everywhere)
    step_of("3, gathered twice", Zero3, "utils.parallel.zero_shards.Flat.gather", gather_twice)
    step_of("3, not resharded", Zero3, "utils.parallel.zero.Zero3.free", lambda zero, block: None)
    return finals


def test_wrong_element_counts_are_seen():
    """Each gives the right weights, so that only the count of elements can tell: none equals the theory's."""
    run = launch(wrong_counts, world_size=2)
    expected = one_process(OPTIMIZERS["sgd"], [12])
    psi, frozen = (sum(part) for part in elements(nasty(), "1"))
    sent = dict.fromkeys(run.results[0], 0)
    for record in run.records:
        for name, elements_sent in zip(sent, sent_between_barriers(record)[1::2], strict=True):
            sent[name] += elements_sent
    for name, weights in run.results[0].items():
        assert differences(weights, expected) <= CLOSE, name
    for stage, times in (("1", 2), ("2", 2), ("3", 3)):
        right = round(2 * zero_elements_per_step(psi, int(stage), 2)) + (2 * frozen if stage == "3" else 0)
        assert right == times * psi + (2 * frozen if stage == "3" else 0)
        for name in (name for name in sent if name.startswith(stage)):
            assert (sent[name] == right) == (name == stage), (name, sent[name], right)
    assert sent["3, not resharded"] == 2 * psi + frozen
