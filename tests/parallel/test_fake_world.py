"""PyTorch's own sharding without ranks: bytes and traffic against the theory, slices against the whole model."""

import dataclasses

import pytest
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from utils.parallel import fake_world
from utils.parallel.activations import saved_bytes
from utils.parallel.fake_world import shard_on_paper
from utils.parallel.model import LanguageModel
from utils.ranks import RankError, launch
from utils.theory.memory import training_state
from utils.theory.models import Transformer
from utils.theory.presets import MODELS
from utils.theory.traffic import zero_elements_per_step

GPT = Transformer(layers=6, hidden=64, heads=4, vocab=128, sequence=32)
LLAMA = Transformer(6, 64, 4, kv_heads=2, ffn=96, vocab=128, sequence=32, activation="swiglu", tied=False)


@pytest.mark.slow
def test_zeros_table_1_by_pytorchs_own_code():
    """7.5B parameters on 64 ranks: 1.88 GB at stage 3 in the paper; its stage 2 and baseline have fp16 gradients."""
    shape = MODELS["narayanan-7.5b"]
    psi = shape.parameters
    for stage in (3, 2, 0):
        paper = shard_on_paper(shape, world_size=64, stage=stage, fused=True)
        theory = training_state(psi, "mixed adam" if stage == 3 else "mixed adam, fp32 gradients", stage, 64)
        tensors = 16 * shape.layers + 4  # for each of which AdamW counts its steps, in fp32
        assert paper.state_bytes == theory.total_bytes + 4 * tensors
        share = 64 if stage else 1
        assert paper.parameter_bytes == paper.gradient_bytes == 4 * psi / share
        assert paper.gathered_bytes == (0 if stage == 3 else 2 * psi)
        assert paper.moved_elements == zero_elements_per_step(psi, stage)
        # Weights travel in bf16 and gradients in fp32; without shards only gradients do.
        gathers, reductions = {3: (2, 1), 2: (1, 1), 0: (0, 2)}[stage]
        assert paper.sent_bytes == (2 * gathers + 4 * reductions) * psi * 63 / 64
        blocks = shape.layers + 1
        calls = {"all_reduce": blocks} if stage == 0 else {"all_gather": gathers * blocks, "reduce_scatter": blocks}
        assert paper.calls == calls and paper.measured_layers == (3, 4)
        assert paper.peak_bytes > paper.parameter_bytes + paper.optimizer_bytes + paper.activation_bytes


@pytest.mark.parametrize(
    "shape, options",
    [
        (GPT, dict(stage=3, world_size=8)),
        (GPT, dict(stage=2, world_size=4, dropout=0.1, recompute="selective", batch=2)),
        (LLAMA, dict(stage=0, world_size=8, sequence=64)),
        (LLAMA, dict(stage=3, world_size=3, recompute="full", mixed=False)),
    ],
)
def test_slices_say_what_the_whole_model_says(shape, options):
    line, whole = (shard_on_paper(shape, layers=layers, **options) for layers in (4, None))
    assert line.measured_layers == (3, 4) and whole.measured_layers == (6,)
    assert dataclasses.replace(line, measured_layers=()) == dataclasses.replace(whole, measured_layers=())
    assert sum(whole.peak.values()) == whole.peak_bytes


@pytest.mark.parametrize("what", ["none", "selective", "full"])
def test_activations_are_those_of_the_model_alone(what):
    """Sharding does not change what a rank's own sequences keep."""
    paper = shard_on_paper(GPT, world_size=4, recompute=what, mixed=False, layers=None)
    with FakeTensorMode():
        model = fake_world.make_recompute(LanguageModel(GPT), what)
        tokens = fake_world.no_tokens(1, GPT)
        kept = saved_bytes(lambda: model.loss(tokens, tokens), exclude=(model, tokens))
    assert paper.activation_bytes == kept + 4  # and the loss itself


def test_uneven_shards_are_rounded_up():
    """fully_shard cuts the first dimension: 64 rows on 5 ranks are 13 rows on the first."""
    paper = shard_on_paper(GPT, world_size=5, layers=None)
    rows = [(p.shape[0], p.numel()) for p in LanguageModel(GPT).parameters()]
    assert paper.parameter_bytes == sum(4 * -(-n // 5) * (numel // n) for n, numel in rows)
    assert paper.moved_elements == 3 * sum(5 * -(-n // 5) * (numel // n) for n, numel in rows)
    assert paper.moved_per_parameter > 3


def test_one_rank_sends_nothing():
    paper = shard_on_paper(GPT, world_size=1, layers=None)
    assert paper.sent_bytes == 0 and paper.parameter_bytes == 4 * GPT.parameters


def test_a_wrong_mode_is_seen(monkeypatch):
    """The count comes from the calls: with the wrong reshard_after_forward stage 2 would send as much as stage 3."""
    shard = fake_world._shard
    monkeypatch.setattr(fake_world, "_shard", lambda model, mesh, stage, mixed: shard(model, mesh, 3, mixed))
    paper = shard_on_paper(GPT, world_size=4, stage=2, layers=2)
    assert paper.moved_per_parameter == 3 and paper.gathered_bytes == 0


def test_the_fake_world_leaves_nothing_behind():
    with pytest.raises(ValueError, match="stages 3 and 2"):
        shard_on_paper(GPT, stage=1)
    with pytest.raises(ValueError, match="slices of at least 1 and 2 layers"):
        shard_on_paper(GPT, layers=1)
    with pytest.raises(ValueError, match="recompute takes none, selective or full"):
        shard_on_paper(GPT, recompute="some")
    assert not dist.is_initialized()
    with pytest.raises(RankError, match=r"Call this outside of launch\(\)"):
        launch(lambda: shard_on_paper(GPT), world_size=1)
