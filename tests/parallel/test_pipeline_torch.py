"""PyTorch's schedules are ours: the same tables, the same gradients; a schedule of ours runs in its runtime."""
import pytest
import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.model import LanguageModel
from utils.parallel.pipeline import Pipeline
from utils.parallel.pipeline_torch import (
    TORCH_NAMES,
    as_text,
    printed_table,
    run_text,
    run_torch,
    stages_of_rank,
    torch_schedule,
)
from utils.parallel.stages import LanguageStage, language_chunks
from utils.theory.models import Transformer
from utils.theory.pipeline import build, check_complete, simulate

P, M, MICRO_BATCH = 4, 8, 2
CONFIG = Transformer(layers=8, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=19, sequence=6, activation="swiglu", tied=False)


@pytest.mark.parametrize("name, ours", TORCH_NAMES.items())
@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 12)])
def test_tables(name, ours, p, m):
    schedule = torch_schedule(name, p, m)
    check_complete(schedule)
    assert simulate(schedule).total_time > 0
    if ours:
        assert schedule.ranks == build(ours, p, m).ranks
    assert [schedule.stage(1, chunk) for chunk in range(schedule.chunks)] == stages_of_rank(name, p, 1)


def test_the_printed_table_of_1f1b_has_a_fault_that_we_repair():
    last = printed_table("1F1B", 4, 8)[-1]
    assert last[0] == "3F1" and last[-2] == "3F8", "PyTorch has repaired its table; say so in the lesson."


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch():
    tokens = torch.randint(CONFIG.vocab, (M, MICRO_BATCH, CONFIG.sequence + 1), generator=torch.Generator().manual_seed(1))
    return tokens[..., :-1], tokens[..., 1:]


def new_model():
    return LanguageModel(CONFIG, dtype=torch.float64)


def gradients(chunks):
    return {name: p.grad for chunk in chunks for name, p in chunk.named_parameters()}


def run_all():
    rank, p, found = dist.get_rank(), dist.get_world_size(), {}
    for name in TORCH_NAMES:
        stages = stages_of_rank(name, p, rank)
        chunks = [LanguageStage(new_model(), stage, len(stages) * p) for stage in stages]
        found[name] = run_torch(name, chunks, cross_entropy, *batch()), gradients(chunks)
    chunk = LanguageStage(new_model(), rank, p)
    found["text"] = run_text(as_text(build("zb-h1", p, M)), chunk, cross_entropy, *batch()), gradients([chunk])
    for name in ("1f1b", "zb-v"):
        schedule = build(name, p, M)
        chunks = language_chunks(new_model(), schedule, rank)
        boundary = torch.empty(MICRO_BATCH, CONFIG.sequence, CONFIG.hidden, dtype=torch.float64)
        report = Pipeline(schedule, chunks, cross_entropy, boundary).step(*batch())
        found[name] = report.loss, gradients(chunks)
    return found


@pytest.fixture(scope="module")
def everything():
    return launch(run_all, world_size=P, timeout=240, echo=False)


@pytest.mark.parametrize("name", [*TORCH_NAMES, "text"])
def test_gradients_and_loss_are_ours(everything, name):
    def whole(name):
        return {key: value for result in everything.results for key, value in result[name][1].items()}

    theirs, ours = whole(name), whole("1f1b")
    assert theirs.keys() == ours.keys() == dict(new_model().named_parameters()).keys()
    for key, gradient in ours.items():
        assert torch.allclose(theirs[key], gradient, rtol=1e-11, atol=1e-14), key
    losses = [[result[which][0] for result in everything.results] for which in (name, "1f1b")]
    assert [x for x in losses[0] if x is not None] == [pytest.approx(losses[1][-1], rel=1e-12)]


def test_an_unknown_name_is_a_sentence():
    with pytest.raises(ValueError, match="PyTorch has the schedules GPipe, 1F1B"):
        printed_table("gpipe", 2, 4)
