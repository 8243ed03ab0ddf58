"""Rows that are published elsewhere than in the papers of `utils.theory.papers`, computed from the printed shapes."""

import pytest

from utils.theory.activations import layer_activation_bytes
from utils.theory.memory import training_state_bytes
from utils.theory.models import (
    Transformer,
    flops_utilization,
    hardware_flops,
    layer_attention_flops,
    model_flops,
    training_days_estimate,
)
from utils.theory.presets import MODELS
from utils.theory.units import GiB

TIB, A100_FLOPS = 1024 * GiB, 312e12


def llama(layers, hidden, heads, ffn, kv_heads=None, vocab=32000, tied=False):
    return Transformer(layers, hidden, heads, kv_heads, ffn, vocab, activation="swiglu", tied=tied)


def opt(layers, hidden, heads):
    """OPT's tables: 50,272 words, 2,048 positions and 2 that its padding takes."""
    return Transformer(layers, hidden, heads, vocab=50272, sequence=2050, activation="relu")


# (name of the published checkpoint, its model, its number of parameters)
CHECKPOINTS = [
    ("GPT-2 small", Transformer(12, 768, 12, vocab=50257, sequence=1024), 124_439_808),
    ("GPT-2 medium", Transformer(24, 1024, 16, vocab=50257, sequence=1024), 354_823_168),
    ("GPT-2 large", Transformer(36, 1280, 20, vocab=50257, sequence=1024), 774_030_080),
    ("GPT-2 XL", MODELS["gpt2-1.5b"], 1_557_611_200),
    ("OPT 125M", opt(12, 768, 12), 125_239_296),
    ("OPT 1.3B", opt(24, 2048, 32), 1_315_758_080),
    ("OPT 6.7B", opt(32, 4096, 32), 6_658_473_984),
    ("OPT 13B", opt(40, 5120, 40), 12_853_473_280),
    ("OPT 30B", opt(48, 7168, 56), 29_974_540_288),
    ("GPT-NeoX 20B", Transformer(44, 6144, 64, vocab=50432, tied=False, learned_positions=False), 20_554_567_680),
    ("Llama 7B", llama(32, 4096, 32, 11008), 6_738_415_616),
    ("Llama 13B", llama(40, 5120, 40, 13824), 13_015_864_320),
    ("Llama 33B", llama(60, 6656, 52, 17920), 32_528_943_616),
    ("Llama 65B", llama(80, 8192, 64, 22016), 65_285_660_672),
    ("Llama 2 70B", llama(80, 8192, 64, 28672, kv_heads=8), 68_976_648_192),
    ("Llama 3 8B", MODELS["llama3-8b"], 8_030_261_248),
    ("Llama 3 70B", MODELS["llama3-70b"], 70_553_706_496),
    ("Llama 3 405B", MODELS["llama3-405b"], 405_853_388_800),
    ("Llama 3.2 1B", llama(16, 2048, 32, 8192, kv_heads=8, vocab=128256, tied=True), 1_235_814_400),
    ("Llama 3.2 3B", llama(28, 3072, 24, 8192, kv_heads=8, vocab=128256, tied=True), 3_212_749_824),
    ("Mistral 7B", llama(32, 4096, 32, 14336, kv_heads=8), 7_241_732_096),
    ("Mixtral 8x7B", MODELS["mixtral-8x7b"], 46_702_792_704),
]


@pytest.mark.parametrize("model, parameters", [row[1:] for row in CHECKPOINTS], ids=[row[0] for row in CHECKPOINTS])
def test_checkpoints_have_these_parameters_exactly(model, parameters):
    assert model.parameters == parameters


@pytest.mark.parametrize("layers, hidden, heads, parameters", [(70, 14336, 112, 176_247_271_424), (30, 4096, 32, 7_069_016_064)])
def test_bloom_has_one_norm_more_and_no_positions(layers, hidden, heads, parameters):
    """Scao et al. 2022, section 3.2: ALiBi, and a LayerNorm behind the embedding."""
    model = Transformer(layers, hidden, heads, vocab=250880, learned_positions=False)
    assert model.parameters + model.norm_parameters == parameters


# Brown et al. 2020, table 2.1: n_params in the order of the columns; printed with two digits, some of them rounded freely
GPT3 = [
    (12, 768, 12, 125e6), (24, 1024, 16, 350e6), (24, 1536, 16, 760e6), (24, 2048, 16, 1.3e9),
    (32, 2560, 32, 2.7e9), (32, 4096, 32, 6.7e9), (40, 5120, 40, 13e9), (96, 12288, 96, 175e9),
]  # fmt: skip


@pytest.mark.parametrize("layers, hidden, heads, printed", GPT3)
def test_gpt3_table_2_1(layers, hidden, heads, printed):
    assert Transformer(layers, hidden, heads, vocab=50257).parameters == pytest.approx(printed, rel=0.02)


# Rajbhandari et al. 2021 (ZeRO-Infinity), figure 2a: trillions of parameters, layers, hidden size, and TB of model states
# and of activation checkpoints for 32 sequences of 1,024 tokens; its TB are 2⁴⁰ bytes
ZERO_INFINITY = [
    (0.10, 80, 10 * 1024, 1.83, 0.05), (0.50, 100, 20 * 1024, 9.16, 0.12), (1.01, 128, 25 * 1024, 18.31, 0.20),
    (10.05, 195, 64 * 1024, 182.81, 0.76), (101.47, 315, 160 * 1024, 1845.70, 3.08),
]  # fmt: skip


@pytest.mark.parametrize("trillions, layers, hidden, states, checkpoints", ZERO_INFINITY)
def test_zero_infinity_figure_2a(trillions, layers, hidden, states, checkpoints):
    parameters = 12 * layers * hidden**2
    assert round(parameters / 1e12, 2) == trillions
    state_bytes = training_state_bytes(parameters, "mixed adam, both gradients")
    assert state_bytes / TIB == pytest.approx(states, abs=0.03 * states**0.5)
    model = Transformer(layers, hidden, 128, sequence=1024)
    assert round(layers * layer_activation_bytes(model, 32, recomputation="full") / TIB, 2) == checkpoints


@pytest.mark.parametrize("nodes, seconds, tflops", [(280, 60.1, 126), (350, 50.2, 121), (420, 44.4, 113)])
def test_mt_nlg_step_times_give_the_printed_rates(nodes, seconds, tflops):
    """Smith et al. 2022, section 2.3: a batch of 1,920 on nodes of 8 A100s, with full recomputation."""
    gpus = 8 * nodes
    rate = hardware_flops(MODELS["mt-nlg-530b"], 1920) / seconds / gpus / 1e12
    assert rate == pytest.approx(tflops, abs=0.6)


def test_palm_table_3():
    """Chowdhery et al. 2022, table 3: MFU of MT-NLG 530B, 30.2 %; and of PaLM itself, 46.2 % at 238,300 tokens/s.

    PaLM's heads are narrower together than h (48 of 256), so its attention is counted by a model of that width.
    """
    mt_nlg = MODELS["mt-nlg-530b"]
    assert flops_utilization(model_flops(mt_nlg, 1920), 60.1, 2240, A100_FLOPS) == pytest.approx(0.302, abs=5e-4)
    heads = Transformer(118, 48 * 256, 48, sequence=2048)
    per_token = 6 * 540.35e9 + 3 * heads.layers * layer_attention_flops(heads, 1) / heads.sequence
    assert flops_utilization(per_token * 238.3e3, 1, 6144, 275e12) == pytest.approx(0.462, abs=5e-4)


@pytest.mark.parametrize(
    "parameters, tokens, gpus, flops, days", [(175e9, 300e9, 1024, 140e12, 34), (1e12, 450e9, 3072, 163e12, 84)]
)
def test_days_of_training(parameters, tokens, gpus, flops, days):
    """Narayanan et al. 2021, section 5.1: GPT-3 takes 34 days on 1,024 GPUs, 1T parameters 84 days (they round up) on 3,072."""
    assert training_days_estimate(parameters, tokens, gpus, flops) == pytest.approx(days, abs=1)
