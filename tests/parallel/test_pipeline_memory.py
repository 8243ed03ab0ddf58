"""Bytes alive during a schedule: on real ranks what the simulator says, on paper the same."""
import pytest
import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.activations import recompute, saved_bytes
from utils.parallel.model import LanguageModel
from utils.parallel.pipeline import Pipeline
from utils.parallel.pipeline_memory import LiveActivations
from utils.parallel.pipeline_paper import memory_on_paper
from utils.parallel.stages import language_chunks
from utils.theory.models import Transformer
from utils.theory.pipeline import Action, Schedule, build, simulate

P, M, MICRO_BATCH = 4, 8, 2
NAMES = ["gpipe", "1f1b", "interleaved 1f1b", "zb-v"]
CONFIG = Transformer(layers=8, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=19, sequence=6, activation="swiglu", tied=False)


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def counts(names, what):
    """For each schedule (peak bytes, bytes left, bytes of one micro-batch on a block) of this rank."""
    found = {}
    for name in names:
        schedule = build(name, P, M)
        model = recompute(LanguageModel(CONFIG, dtype=torch.float64), what)
        chunks = language_chunks(model, schedule, dist.get_rank())
        tokens = torch.zeros(M, MICRO_BATCH, CONFIG.sequence, dtype=torch.long)
        x = torch.zeros(MICRO_BATCH, CONFIG.sequence, CONFIG.hidden, dtype=torch.float64, requires_grad=True)
        pipeline = Pipeline(schedule, chunks, cross_entropy, x)
        block = next(iter(chunks[0].layers.values()))
        one_block = saved_bytes(lambda block=block, x=x: block(x), exclude=block)
        with LiveActivations(exclude=[*chunks, tokens]) as live:
            pipeline.step(tokens, tokens)
        found[name] = live.peak_bytes, live.live_bytes(), one_block
    return found


@pytest.mark.parametrize("what", ["none", "full"])
def test_peak_is_micro_batches_in_flight_times_their_bytes(what):
    run = launch(counts, NAMES, what, world_size=P, echo=False)
    for name in NAMES:
        schedule = build(name, P, M)
        in_flight = simulate(schedule).peak_in_flight
        for rank in (1, 2):  # a middle rank has blocks and nothing else
            peak, left, one_block = run.results[rank][name]
            assert left == 0
            expected = in_flight[rank] * one_block * CONFIG.layers / P
            if what == "full":
                assert peak == expected == in_flight[rank] * CONFIG.layers / P * MICRO_BATCH * 6 * 16 * 8
            else:  # the block's input is kept by two of its operators, and by the block before
                assert peak == pytest.approx(expected, rel=0.02)


def one_rank(row):
    schedule = Schedule("by hand", (tuple(row),), 2)
    chunks = language_chunks(LanguageModel(CONFIG, dtype=torch.float64), schedule, 0)
    tokens = torch.zeros(2, MICRO_BATCH, CONFIG.sequence, dtype=torch.long)
    pipeline = Pipeline(schedule, chunks, cross_entropy, torch.empty(0))
    with LiveActivations(exclude=[*chunks, tokens]) as live:
        pipeline.step(tokens, tokens)
    return live.peak_bytes


def test_weights_that_wait_hold_their_inputs():
    at_once = [Action(kind, i) for i in (0, 1) for kind in ("F", "B", "W")]
    waiting = [Action(*action) for action in (("F", 0), ("B", 0), ("F", 1), ("B", 1), ("W", 0), ("W", 1))]
    peaks = [launch(one_rank, row, world_size=1, echo=False).results[0] for row in (at_once, waiting)]
    assert 1.2 * peaks[0] < peaks[1] < 2 * peaks[0]


def test_on_paper_as_on_ranks():
    run = launch(counts, NAMES, "none", world_size=P, echo=False)
    for name in NAMES:
        schedule = build(name, P, M)
        paper = memory_on_paper(schedule, CONFIG, MICRO_BATCH, dtype=torch.float64)
        assert [paper[rank].activation_bytes for rank in range(P)] == [result[name][0] for result in run.results]
        assert sum(paper[rank].parameters for rank in range(P)) == CONFIG.parameters


def test_a_large_model_on_paper_and_the_recomputed_one():
    shape = Transformer(layers=4, hidden=4096, heads=32, activation="swiglu", ffn=11008, vocab=32000, sequence=2048, tied=False)
    schedule = build("1f1b", 4, 4)
    kept, again = (memory_on_paper(schedule, shape, recompute=what, ranks=[1])[1] for what in ("none", "full"))
    assert kept.parameters == again.parameters > 2e8
    assert again.activation_bytes == 3 * 2048 * 4096 * 2
    assert kept.activation_bytes > 10 * again.activation_bytes


def test_exclude_takes_modules_and_tensors_only():
    with pytest.raises(TypeError, match="exclude takes tensors and modules, but 3 was given"):
        LiveActivations(exclude=[3])
