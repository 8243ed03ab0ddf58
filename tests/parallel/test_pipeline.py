"""Any schedule leaves the gradients of one process, and holds as many micro-batches as the theory says."""
import pytest
import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.model import LanguageModel
from utils.parallel.pipeline import Pipeline
from utils.parallel.stages import (
    LanguageStage,
    add_tied_gradients,
    language_chunks,
    layers_of_stage,
    sleeping_chunks,
)
from utils.theory.models import Transformer
from utils.theory.pipeline import SCHEDULES, Action, Costs, Schedule, build, in_flight_micro_batches, simulate

P, M, MICRO_BATCH = 4, 8, 2
RUNS = ["naive", "gpipe", "1f1b", "interleaved 1f1b", "looped bfs", "zb-h1", "zb-h2", "zb-v"]


def tiny(tied=False, layers=8, **others):
    return Transformer(layers=layers, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=19, sequence=6, activation="swiglu",
                       tied=tied, **others)


def batch(config, m=M):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab, (m, MICRO_BATCH, config.sequence + 1), generator=generator)
    return tokens[..., :-1], tokens[..., 1:]


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_one_process(config):
    """(loss, {parameter: gradient}) of the whole batch."""
    model = LanguageModel(config, dtype=torch.float64)
    inputs, targets = batch(config)
    loss = model.loss(inputs.flatten(0, 1), targets.flatten(0, 1))
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def runs_schedules(names, config):
    """For each schedule (loss, gradients, peak in flight) of this rank."""
    found = {}
    for name in names:
        schedule, rank = build(name, P, M), dist.get_rank()
        chunks = language_chunks(LanguageModel(config, dtype=torch.float64), schedule, rank)
        boundary = torch.empty(MICRO_BATCH, config.sequence, config.hidden, dtype=torch.float64)
        pipeline = Pipeline(schedule, chunks, cross_entropy, boundary)
        report = pipeline.step(*batch(config))
        add_tied_gradients(chunks, schedule)
        gradients = [(key, parameter.grad) for chunk in chunks for key, parameter in chunk.named_parameters()]
        found[name] = report.loss, gradients, report.peak_in_flight
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def every_schedule(request):
    config = tiny(tied=request.param)
    return config, in_one_process(config), launch(runs_schedules, RUNS, config, world_size=P, echo=False)


@pytest.mark.parametrize("name", RUNS)
def test_loss_and_gradients_of_one_process(every_schedule, name):
    config, (loss, gradients), run = every_schedule
    losses = [result[name][0] for result in run.results]
    assert [value for value in losses if value is not None] == [pytest.approx(loss, rel=1e-12)]
    seen = set()
    for result in run.results:
        for key, gradient in result[name][1]:
            whole = gradients["tok_embeddings.weight" if config.tied and key == "output.weight" else key]
            assert torch.allclose(gradient, whole, rtol=1e-11, atol=1e-14), (name, key)
            seen.add(key)
    assert seen == set(gradients) | {"output.weight"}


@pytest.mark.parametrize("name", RUNS)
def test_micro_batches_in_flight_as_the_theory_says(every_schedule, name):
    schedule = build(name, P, M)
    counted = [result[name][2] for result in every_schedule[2].results]
    assert counted == list(simulate(schedule).peak_in_flight)
    if name not in ("zb-v", "looped bfs"):
        assert counted == [in_flight_micro_batches(name, P, M, rank, schedule.chunks) for rank in range(P)]


def test_each_boundary_is_crossed_once_each_way_by_every_micro_batch(every_schedule):
    config, _, run = every_schedule
    calls = run.calls().query("op == 'send'")
    size = MICRO_BATCH * config.sequence * config.hidden
    boundaries = sum(schedule.stages - 1 - (schedule.placement == "v") for schedule in (build(name, P, M) for name in RUNS))
    assert len(calls[calls.elements == size]) == 2 * M * boundaries
    tables = calls[calls.elements == config.vocab * config.hidden]  # one each way, but where both ends are one rank's
    assert len(tables) == (2 * (len(RUNS) - 1) if config.tied else 0)


def weights_wait(m):
    """What ZB-H1's ranks hold of `grad` between B and W: nothing before the W."""
    schedule = Schedule("b then w", ((Action("F", 0), Action("B", 0), Action("W", 0)),), 1)
    config = tiny(layers=1)
    chunks = language_chunks(LanguageModel(config, dtype=torch.float64), schedule, 0)
    pipeline = Pipeline(schedule, chunks, cross_entropy, torch.empty(0))
    states = []
    now = pipeline.weight_gradients.now
    def look(*name):
        states.append(chunks[0].layers["0"].attention.wq.weight.grad is None)
        now(*name)
        states.append(chunks[0].layers["0"].attention.wq.weight.grad is None)
    pipeline.weight_gradients.now = look
    pipeline.step(*batch(config, 1))
    return states


def test_b_leaves_the_weights_to_w():
    assert launch(weights_wait, 1, world_size=1, echo=False).results == [[True, False]]


def sleeps(names, costs, unit):
    found = {}
    for name in names:
        schedule = build(name, dist.get_world_size(), 4)
        pipeline = Pipeline(schedule, sleeping_chunks(costs, schedule, dist.get_rank(), unit), lambda out, target: out.sum(),
                            torch.empty(1, dtype=torch.float64))
        data = [torch.full((1,), float(i + 1), dtype=torch.float64) for i in range(4)]
        pipeline.step(data, data)
        found[name] = [chunk.weight.grad.item() for chunk in pipeline.chunks]
    return found


def test_sleeping_stages_have_gradients_too():
    run = launch(sleeps, ["1f1b", "zb-h1", "zb-v"], Costs(), 1e-3, world_size=2, echo=False)
    for result in run.results:
        assert all(gradients == [2.5] * len(gradients) for gradients in result.values())
    spans = run.spans()
    assert (spans.end - spans.start).min() >= 0.5e-3
    assert set(spans.name) == {"F", "BW", "B", "W"}


def test_layers_are_shared_out():
    for layers, stages in ((8, 4), (7, 3), (3, 3)):
        parts = [layers_of_stage(layers, stage, stages) for stage in range(stages)]
        assert [i for part in parts for i in part] == list(range(layers))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ValueError, match="2 layers cannot be shared out among 3 stages"):
        layers_of_stage(2, 0, 3)


def misuse(what):
    schedule = build("1f1b", 2, 4)
    stage = LanguageStage(LanguageModel(tiny(layers=2)), dist.get_rank(), 2)
    boundary = torch.empty(MICRO_BATCH, 6, 16)
    if what == "ranks":
        Pipeline(build("1f1b", 3, 4), [stage], cross_entropy, boundary)
    if what == "chunks":
        Pipeline(schedule, [stage, stage], cross_entropy, boundary)
    if what == "dualpipe":
        Pipeline(build("dualpipe", 2, 4), [stage, stage], cross_entropy, boundary)
    if what == "incomplete":
        Pipeline(Schedule("short", (schedule.ranks[0], schedule.ranks[1][:-1]), 4), [stage], cross_entropy, boundary)
    if what == "inputs":
        Pipeline(schedule, [stage], cross_entropy, boundary).step()
    if what == "w first":
        row = (Action("F", 0), Action("W", 0), Action("B", 0))
        early = Schedule("w first", (row, row), 1)
        Pipeline(early, [stage], cross_entropy, boundary).step(*batch(tiny(layers=2), 1))
    if what == "order":
        turned = Schedule("turned", (schedule.ranks[0], schedule.ranks[1][1:] + schedule.ranks[1][:1]), 4)
        Pipeline(turned, [stage], cross_entropy, boundary).step(*batch(tiny(layers=2), 4))


@pytest.mark.parametrize("what, sentence", [
    ("ranks", "The schedule is for 3 ranks, but there are 2"),
    ("chunks", "1 chunks on each rank, but 2 modules"),
    ("dualpipe", "DualPipe feeds micro-batches in at both ends"),
    ("incomplete", "exactly one B"),
    ("inputs", "needs the (inputs|targets) of 4 micro-batches, but got none"),
    ("w first", "Rank [01] shall do W0 before the B of micro-batch 0"),
    ("order", "Rank 1 shall do BW0 before the forward of micro-batch 0"),
])
def test_misuse_gets_a_sentence(what, sentence):
    with pytest.raises(Exception, match=sentence):
        launch(misuse, what, world_size=2, echo=False)


def test_every_schedule_runs_or_says_why_not():
    assert set(SCHEDULES) - set(RUNS) == {"dualpipe", "dualpipe-v"}
