"""Lab 05, q3: a step on t · d · p ranks against one process: groups, gradients, tied tables, loss, calls of each group."""

import math

import numpy as np
import torch

from utils.checks.probes.layout import WEIGHTS, mean_loss
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong
from utils.theory.grid import coordinates, groups

_VOCAB, _HIDDEN, _INNER, _SEQUENCE, _MICRO_BATCH = 7, 4, 6, 3, 2
_CASES = {  # sizes, innermost first, and m, micro-batches of each pipeline
    "2 × 2 × 2": ({"tensor": 2, "data": 2, "pipeline": 2}, 3),
    "three stages": ({"tensor": 1, "data": 2, "pipeline": 3}, 4),
}
_SMALL = 2  # a message with so few elements carries a loss, not a gradient
_OPS = ("all_reduce", "broadcast", "send", "recv")
_CLOSE = 1e-9  # fp64; parts of the batch are added up in another order
_FP32 = 1e-6  # a loss that went through torch.tensor(…) is one in single precision


def close(came, expected):
    came, expected = np.asarray(came), np.asarray(expected)
    return came.shape == expected.shape and came.dtype.kind == "f" and bool(np.allclose(came, expected, _CLOSE, _CLOSE))


class Case:
    """Sizes, whole weights, batch, and what each rank holds of them; `expected` are one process's results."""

    def __init__(self, name, seed):
        self.sizes, self.micro_batches = _CASES[name]
        self.ranks = int(np.prod(list(self.sizes.values())))
        self.data, self.stages = self.sizes["data"], self.sizes["pipeline"]
        rng = np.random.default_rng([seed, 73, self.ranks])
        self.table = rng.standard_normal((_VOCAB, _HIDDEN))
        shapes = ((_HIDDEN,), (_HIDDEN,), (_HIDDEN, _INNER), (_INNER, _HIDDEN))
        self.layers = [[rng.standard_normal(shape) for shape in shapes] for _ in range(self.stages)]
        batch = self.data * self.micro_batches * _MICRO_BATCH
        self.tokens, self.targets = rng.integers(0, _VOCAB, (2, batch, _SEQUENCE))
        self.given = "t = {tensor}, d = {data}, p = {pipeline}, ".format(**self.sizes) + (
            f"a batch of {batch} sequences in micro-batches of {_MICRO_BATCH}"
        )

    def place(self, rank):
        return coordinates(rank, self.sizes)

    def has_table(self, rank):
        return self.place(rank)["pipeline"] in (0, self.stages - 1)

    def of_rank(self, rank, table, layers):
        """{weight: the part of this rank} of whole weights, or of their gradients."""
        place = self.place(rank)
        scale, shift, a, b = layers[place["pipeline"]]
        cut = [np.array_split(whole, self.sizes["tensor"], axis)[place["tensor"]] for whole, axis in ((a, 1), (b, 0))]
        return dict(zip(WEIGHTS, [table if self.has_table(rank) else None, scale, shift, *cut], strict=True))

    def arguments(self):
        weights = [list(self.of_rank(rank, self.table, self.layers).values()) for rank in range(self.ranks)]
        return {
            "sizes": self.sizes, "weights": {"arrays": weights}, "tokens": self.tokens, "targets": self.targets,
            "micro_batch": _MICRO_BATCH,
        }  # fmt: skip

    def members(self):
        """For each name the group of each rank; None where a rank is in none."""
        made = {name: groups(name, self.sizes) for name in self.sizes}
        made["embedding"] = [[pipeline[0], pipeline[-1]] for pipeline in made["pipeline"]]
        return {
            name: [next((group for group in lists if rank in group), None) for rank in range(self.ranks)]
            for name, lists in made.items()
        }

    def one_process(self, part=None):
        """Loss and gradients (embedding, head, layers) on the whole batch, or on the share of one data rank."""
        tokens, targets = (torch.from_numpy(each) for each in (self.tokens, self.targets))
        if part is not None:
            tokens, targets = (each.chunk(self.data)[part] for each in (tokens, targets))
        embedding, head = (torch.tensor(self.table, requires_grad=True) for _ in range(2))
        layers = [[torch.tensor(array, requires_grad=True) for array in layer] for layer in self.layers]
        x = embedding[tokens]
        for scale, shift, a, b in layers:
            x = x + torch.tanh((x * scale + shift) @ a) @ b
        loss = mean_loss(x @ head.T, targets)
        loss.backward()
        gradients = [[weight.grad.numpy() for weight in layer] for layer in layers]
        return loss.item(), embedding.grad.numpy(), head.grad.numpy(), gradients


def _run(call, seed, name):
    case = Case(name, seed)
    outputs = outputs_of(call, "layout.step", case.ranks, case.given, **case.arguments())
    calls_only_in(outputs, ("groups", "step"), case.given)
    return outputs, case


def _groups(name):
    """Every rank holds the right four groups."""

    def check(call, seed):
        outputs, case = _run(call, seed, name)
        for group, right in case.members().items():
            for rank, expected in enumerate(right):
                came = outputs["results"][rank]["members"][group]
                if came == expected:
                    continue
                look_at = None
                if group == "embedding":
                    look_at = "the first and the last stage of one pipeline; stages between have no table, and None"
                elif group == "tensor":
                    look_at = "tensor is innermost: neighbouring ranks share a layer"
                sentence = f"Rank {rank} has a wrong {group} group."
                raise wrong(sentence, case.given, str(came), str(expected), look_at)

    return check


def _gradients(name):
    """The gradients of everything but the table."""

    def check(call, seed):
        outputs, case = _run(call, seed, name)
        expected = case.one_process()[3]
        alone = [case.one_process(part)[3] for part in range(case.data)]
        for rank, result in enumerate(outputs["results"]):
            if result["gradients"]["shift"] is not None:
                raise wrong(f"Rank {rank}'s frozen shift has a gradient.", case.given, look_at="requires_grad is False")
            right, own = (case.of_rank(rank, None, layers) for layers in (expected, alone[case.place(rank)["data"]]))
            for weight in ("scale", "a", "b"):
                came = result["gradients"][weight]
                if came is None:
                    raise wrong(f"Rank {rank}'s {weight} has no gradient.", case.given)
                if not close(came, right[weight]):
                    raise wrong(
                        f"Rank {rank}'s gradient of {weight} is not that of one process.", case.given, came, right[weight],
                        _look_at(came, right[weight], own[weight], case),
                    )  # fmt: skip

    return check


def _check_share(rank, inputs, case):
    """The pipeline ran once, on the sequences of this data rank."""
    if len(inputs) != 1:
        raise wrong(f"Rank {rank} called run_pipeline {len(inputs)} times; a step runs it once.", case.given)
    share = np.array_split(case.tokens, case.data)[case.place(rank)["data"]]
    if not np.array_equal(inputs[0], share):
        raise wrong(
            f"Rank {rank} takes other sequences than its share.", case.given, inputs[0], share,
            "data rank 0 takes the first B/d sequences, data rank 1 the next ones, in their order",
        )  # fmt: skip


def _look_at(came, right, own, case):
    if close(came, own):
        return "it is that of this rank's own share of the batch: average over the data group"
    if close(came, case.data * right):
        return f"{case.data} times too large: the mean over the data group, not the sum, and nothing over other groups"
    if close(came * case.ranks, case.data * right):
        return "divided by the number of all ranks; only d of them hold this weight"
    return "which ranks hold the same weight and saw other sequences? The data group, and no other"


def _tables(name):
    """Both copies of the table have the sum of the two gradients."""

    def check(call, seed):
        outputs, case = _run(call, seed, name)
        _, embedding, head, _ = case.one_process()
        right = embedding + head
        for rank, result in enumerate(outputs["results"]):
            if not case.has_table(rank):
                continue
            came = result["gradients"]["table"]
            own = embedding if case.place(rank)["pipeline"] == 0 else head
            if came is not None and close(came, right):
                continue
            look_at = None
            if came is None or close(came, own):
                look_at = "it is that of this copy alone: add the gradients of both copies, over the embedding group"
            elif close(2 * came, right):
                look_at = "half: the copies stand for one weight that is used twice, so their gradients are added"
            elif close(came, case.data * right):
                look_at = f"{case.data} times too large: over the data ranks the table's gradient is averaged, too"
            else:
                alone = case.one_process(case.place(rank)["data"])
                if close(came, alone[1] + alone[2]):
                    look_at = "it is that of this rank's own share of the batch: average over the data group, too"
            raise wrong(
                f"Rank {rank}'s gradient of the tied table is not that of one process.", case.given,
                "None" if came is None else came, right, look_at,
            )  # fmt: skip

    return check


def _loss(name):
    """The mean over the whole batch, on every rank."""

    def check(call, seed):
        outputs, case = _run(call, seed, name)
        right = case.one_process()[0]
        alone = [case.one_process(part)[0] for part in range(case.data)]
        for rank, result in enumerate(outputs["results"]):
            came = result["loss"]
            if came is None:
                raise wrong(f"Rank {rank} returned no loss.", case.given, "None", right, "only the last stage knows it first")
            if math.isclose(came, right, rel_tol=_FP32):
                continue
            look_at = None
            for factor in {case.sizes["tensor"], case.data, case.sizes["tensor"] * case.data} - {1}:
                if math.isclose(came, factor * right, rel_tol=_FP32):
                    look_at = f"{factor} times too large: t · d ranks know a loss, and t of them the same one"
            if any(math.isclose(came, each, rel_tol=_FP32) for each in alone):
                look_at = "it is that of one share of the batch: the mean is over all data ranks"
            raise wrong(f"Rank {rank} returned a wrong loss.", case.given, came, right, look_at)

    return check


def _calls(name):
    """What each group carries: the stage's sums, the pipeline's messages, each gradient once, the table once, and losses."""

    def check(call, seed):
        outputs, case = _run(call, seed, name)
        members = case.members()
        for rank, calls in enumerate(outputs["calls"]):
            made = [each for each in calls if each["case"] == "step" and len(each["ranks"]) > 1]
            for each in made:
                if each["op"] not in _OPS:
                    raise wrong(f"Rank {rank} called {each['op']}; all_reduce and broadcast are enough.", case.given)
            of_rank = {group: right[rank] for group, right in members.items()}
            _count(rank, made, of_rank, case)
            _check_share(rank, outputs["results"][rank]["inputs"], case)

    return check


def _count(rank, made, of_rank, case):
    """Compare one rank's calls, group by group. An embedding group can have the ranks of a pipeline group."""
    messages = [each for each in made if each["op"] in ("send", "recv")]
    sums = [each for each in made if each["op"] not in ("send", "recv") and each["elements"] > _SMALL]
    ends, m = (case.place(rank)["pipeline"] in (0, case.stages - 1)), case.micro_batches
    sent = sum(each["op"] == "send" for each in messages)
    expected = m * (1 if ends else 2)
    if sent != expected:
        raise wrong(
            f"Rank {rank} sends {sent} messages to its neighbours in the pipeline.", case.given, sent, expected,
            "each data rank takes its share of the batch, B/d sequences, in micro-batches of micro_batch",
        )  # fmt: skip
    right = case.of_rank(rank, case.table, case.layers)
    trained = sum(right[weight].size for weight in WEIGHTS if weight != "shift" and right[weight] is not None)
    tensor = 2 * m * _MICRO_BATCH * _SEQUENCE * _HIDDEN if case.sizes["tensor"] > 1 else 0
    wanted = {"tensor": tensor, "data": trained, "embedding": case.table.size if case.has_table(rank) else 0}
    for group, elements in wanted.items():
        came = sum(each["elements"] for each in sums if sorted(each["ranks"]) == of_rank[group])
        if not elements <= came <= elements + _SMALL:
            raise wrong(
                f"Over its {group} group rank {rank} sums up {came} elements.", case.given, came, elements,
                _LOOK_AT[group],
            )  # fmt: skip
    known = [ranks for group, ranks in of_rank.items() if group in wanted]
    for each in sums:
        if sorted(each["ranks"]) not in known:
            raise wrong(
                f"Rank {rank} sends {each['elements']} elements over the ranks {each['ranks']}.", case.given,
                look_at="gradients travel over the data group, the table's also over the embedding group",
            )  # fmt: skip


_LOOK_AT = {
    "tensor": "the stage's own sums are enough: nothing has to be added for its weights' gradients",
    "data": "every trained weight of this rank, once; a frozen one has no gradient",
    "embedding": "the table's gradient, once, and only where there is a table",
}

_THREE = "three stages"


def _three_stages(call, seed):
    """With a stage in the middle: gradients, tables, loss and calls again."""
    for make in (_groups, _gradients, _tables, _loss, _calls):
        make(_THREE)(call, seed)


_TWO = "2 × 2 × 2"

QUESTIONS = {
    "q3": (
        SubCheck("the groups of every rank", _groups(_TWO)),
        SubCheck("the gradients of one process", _gradients(_TWO)),
        SubCheck("the tied table", _tables(_TWO)),
        SubCheck("the loss, on every rank", _loss(_TWO)),
        SubCheck("what each group carries", _calls(_TWO)),
        SubCheck("three stages, the ends tied", _three_stages),
    ),
}
