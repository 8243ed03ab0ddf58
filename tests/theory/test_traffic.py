"""How much each kind of parallelism sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.collectives import (
    all_gather_elements_sent,
    all_reduce_elements_sent,
    all_to_all_elements_sent,
)
from utils.theory.models import Transformer
from utils.theory.presets import MODELS
from utils.theory.traffic import (
    context_elements_per_layer,
    expert_capacity,
    expert_elements_per_layer,
    fsdp_cross_host_bytes,
    megatron_sp_elements_per_layer,
    pipeline_elements_per_boundary,
    ring_attention_min_block,
    tensor_all_reduces_per_layer,
    tensor_elements_per_layer,
    ulysses_elements_per_layer,
    vocabulary_loss_elements,
    zero_elements_per_step,
)

TINY = Transformer(2, 64, 8, kv_heads=4, sequence=32, activation="swiglu", experts=4, experts_per_token=2)


def test_zero_sends_2_2_2_3():
    assert [zero_elements_per_step(1, stage) for stage in range(4)] == [2, 2, 2, 3]
    assert [zero_elements_per_step(64, stage, 64) for stage in range(4)] == [126, 126, 126, 189]
    # Accumulating over 4 micro-batches costs stages 2 and 3 more.
    assert [zero_elements_per_step(1, stage, micro_batches=4) for stage in range(4)] == [2, 2, 5, 12]


@given(st.integers(1, 64), st.integers(1, 100))
def test_zero_sends_what_its_collectives_send(n, per_rank):
    count = n * per_rank
    assert zero_elements_per_step(count, 1, n) == pytest.approx(all_reduce_elements_sent("ring", count, n)[0])
    gather = all_gather_elements_sent("ring", count, n)[0]
    assert zero_elements_per_step(count, 3, n) == pytest.approx(3 * gather)


def test_fsdp_between_hosts():
    assert fsdp_cross_host_bytes("replicate", 64, 64, 8) == 126
    assert fsdp_cross_host_bytes("full shard", 64, 64, 8) == 189
    assert fsdp_cross_host_bytes("hybrid", 64, 64, 8) == 126 / 8


def test_tensor_parallel_layers():
    t, b, s, h = 4, 3, TINY.sequence, TINY.hidden
    assert tensor_elements_per_layer(TINY, b, t) == 8 * b * s * h * (t - 1) / t
    assert tensor_elements_per_layer(TINY, b, t, "full") == 12 * b * s * h * (t - 1) / t
    each = all_reduce_elements_sent("ring", b * s * h, t)[0]
    assert tensor_elements_per_layer(TINY, b, t) == tensor_all_reduces_per_layer() * each
    assert vocabulary_loss_elements(TINY, b) * TINY.vocab == vocabulary_loss_elements(TINY, b, parallel=False)


def test_pipeline_boundaries():
    assert pipeline_elements_per_boundary(TINY, 2) == 2 * 32 * 64
    assert pipeline_elements_per_boundary(TINY, 2, tensor=4, scatter_gather=True) == 2 * 32 * 64 / 4


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_sequence_and_context_parallelism(ranks):
    b, s, h, kv = 2, TINY.sequence, TINY.hidden, TINY.kv_hidden
    shard = b * s // ranks
    sent = sum(all_to_all_elements_sent(shard * width, ranks)[0] for width in (h, kv, kv, h))
    assert ulysses_elements_per_layer(TINY, b, ranks) == sent
    gathered = all_gather_elements_sent("ring", 2 * b * s * kv, ranks)[0]
    assert context_elements_per_layer(TINY, b, ranks) == gathered
    assert megatron_sp_elements_per_layer(TINY, b, ranks) == 4 * b * s * h * (ranks - 1) / ranks


def test_ulysses_sends_p_times_less_than_megatron():
    gpt = MODELS["gpt3-175b"]
    for ranks in (2, 8, 32):
        ratio = megatron_sp_elements_per_layer(gpt, 1, ranks) / ulysses_elements_per_layer(gpt, 1, ranks)
        assert ratio == pytest.approx(ranks)


def test_experts():
    b, e = 2, 4
    tokens = b * TINY.sequence * 2
    assert expert_elements_per_layer(TINY, b, e) == 2 * all_to_all_elements_sent(tokens * TINY.hidden, e)[0]
    assert expert_elements_per_layer(TINY, b, 1) == 0
    assert expert_capacity(1024, 8, 1.25) == 160


def test_ring_attention_block():
    assert ring_attention_min_block(312e12, 300e9) == 1040


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: zero_elements_per_step(1, 5), ["stage", "5"]),
        (lambda: zero_elements_per_step(-1, 1), ["parameters", "-1"]),
        (lambda: fsdp_cross_host_bytes("shard", 1, 8, 8), ["strategy", "'shard'", "'full shard'"]),
        (lambda: ulysses_elements_per_layer(TINY, 1, 3), ["ranks", "3", "heads", "8"]),
        (lambda: tensor_elements_per_layer(TINY, 1, 0), ["tensor", "0"]),
        (lambda: ring_attention_min_block(1e12, 0), ["bytes_per_second", "0"]),
        (lambda: expert_capacity(10, 2, -1), ["capacity_factor", "-1"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
