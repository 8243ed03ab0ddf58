"""Parameters against torch modules on the meta device; operations against the papers' equations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.models import (
    Transformer,
    flops_utilization,
    hardware_flops,
    model_flops,
    training_days,
    training_days_estimate,
)
from utils.theory.presets import MODELS, model

GPT_NAMES = [name for name, preset in MODELS.items() if preset.tied and preset.gpt_style]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def torch_gpt_parts(config, nn):
    """The parts of a GPT, built of torch's own modules."""
    layer = nn.TransformerEncoderLayer(config.hidden, config.heads, config.ffn)
    attention = count(layer.self_attn)
    mlp = count(layer.linear1) + count(layer.linear2)
    norms = count(layer.norm1) + count(layer.norm2)
    return {
        "embedding": count(nn.Embedding(config.vocab, config.hidden)),
        "positions": count(nn.Embedding(config.sequence, config.hidden)),
        "attention": config.layers * attention,
        "mlp": config.layers * mlp,
        "norms": config.layers * norms,
        "final_norm": count(nn.LayerNorm(config.hidden)),
        "head": 0,
    }


@pytest.mark.parametrize("name", ["gpt2-1.5b", "narayanan-1.7b", "gpt3-175b", "narayanan-1008b"])
def test_gpt_parts_equal_torch_modules(name):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        assert MODELS[name].parameters_by_part() == torch_gpt_parts(MODELS[name], torch.nn)


@pytest.mark.parametrize("name", ["llama2-7b", "llama3-8b", "llama3-405b", "mixtral-8x7b"])
def test_llama_parts_equal_torch_modules(name):
    torch = pytest.importorskip("torch")
    config = MODELS[name]
    h, head = config.hidden, config.hidden // config.heads

    def linear(inputs, outputs):
        return torch.nn.Linear(inputs, outputs, bias=False)

    with torch.device("meta"):
        attention = [
            linear(h, h),
            linear(h, head * config.kv_heads),
            linear(h, head * config.kv_heads),
            linear(h, h),
        ]
        expert = [linear(h, config.ffn), linear(h, config.ffn), linear(config.ffn, h)]
        router = [linear(h, config.experts)] if config.experts > 1 else []
        mlp = config.experts * sum(map(count, expert)) + sum(map(count, router))
        norm = count(torch.nn.RMSNorm(h))
        assert config.parameters_by_part() == {
            "embedding": count(torch.nn.Embedding(config.vocab, h)),
            "positions": 0,
            "attention": config.layers * sum(map(count, attention)),
            "mlp": config.layers * mlp,
            "norms": config.layers * 2 * norm,
            "final_norm": norm,
            "head": count(linear(h, config.vocab)),
        }


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-1.5b", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_of_published_checkpoints(name, parameters):
    assert model(name).parameters == parameters


@given(
    st.integers(1, 200),
    st.integers(1, 64),
    st.integers(1, 32),
    st.integers(1, 100_000),
    st.integers(1, 10_000),
)
def test_gpt_parameters_are_equation_2(layers, heads, head_width, vocab, sequence):
    h = heads * head_width
    config = Transformer(layers, h, heads, vocab=vocab, sequence=sequence)
    equation_2 = 12 * layers * h * h + 13 * layers * h + (vocab + sequence) * h
    assert config.parameters == equation_2 + 2 * h
    assert config.layer_parameters == 12 * h * h + 13 * h


@pytest.mark.parametrize("name", GPT_NAMES)
def test_flops_are_the_published_equations(name):
    config, batch = MODELS[name], 24
    h, s, layers, vocab = config.hidden, config.sequence, config.layers, config.vocab
    eq_3 = 96 * batch * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    eq_7 = 72 * batch * layers * s * h * h * (1 + s / (6 * h) + vocab / (12 * h * layers))
    eq_8 = 72 * batch * layers * s * h * h * (1 + s / (3 * h) + vocab / (12 * h * layers))
    assert hardware_flops(config, batch, "full") == pytest.approx(eq_3)
    assert model_flops(config, batch) == pytest.approx(eq_7)
    assert hardware_flops(config, batch, "selective") == pytest.approx(eq_8)


def test_flops_of_a_llama_are_about_six_per_parameter_and_token():
    config = MODELS["llama3-405b"]
    tokens = config.sequence
    weights = config.parameters - config.vocab * config.hidden
    assert model_flops(config, 1) == pytest.approx(
        6 * weights * tokens + 12 * config.layers * tokens**2 * config.hidden, rel=1e-4
    )


def test_a_mixture_computes_with_its_chosen_experts_only():
    dense = Transformer(4, 64, 4, activation="swiglu", experts=1)
    mixture = Transformer(4, 64, 4, activation="swiglu", experts=8, experts_per_token=2)
    per_token = 4 * 3 * 64 * 256 * 2 * 3 * dense.sequence
    assert model_flops(mixture, 1) - model_flops(dense, 1) == per_token
    assert mixture.mlp_parameters == 8 * dense.mlp_parameters + 8 * 64


def test_days_of_training():
    gpt3 = MODELS["gpt3-175b"]
    seconds = hardware_flops(gpt3, 1536) / (1024 * 140e12)
    steps = 300e9 / (1536 * 2048)
    assert training_days(gpt3, 300e9, 1536, 1024, 140e12) == pytest.approx(steps * seconds / 86400)
    assert training_days_estimate(175e9, 300e9, 1024, 140e12) == pytest.approx(33.9, abs=0.05)
    assert flops_utilization(312e12 * 4, 2, 8, 312e12) == 0.25


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layers": 0}, ["layers", "0", "at least 1"]),
        ({"layers": -3}, ["layers", "-3"]),
        ({"hidden": 100, "heads": 3}, ["heads", "hidden", "3", "100"]),
        ({"heads": 4, "kv_heads": 3}, ["kv_heads", "heads", "3"]),
        ({"activation": "silu"}, ["activation", "'silu'", "'swiglu'"]),
        ({"experts": 2, "experts_per_token": 3}, ["experts_per_token", "3", "at most 2"]),
        ({"vocab": 3.5}, ["vocab", "3.5"]),
        ({"ffn": -1}, ["ffn", "-1"]),
    ],
)
def test_a_wrong_field_gets_a_sentence(fields, words):
    with pytest.raises(ValueError) as error:
        Transformer(**{"layers": 2, "hidden": 64, "heads": 4, **fields})
    for word in words:
        assert word in str(error.value)


def test_wrong_arguments_get_a_sentence():
    tiny = Transformer(2, 64, 4)
    with pytest.raises(ValueError, match="batch must be at least 1, but -1"):
        model_flops(tiny, -1)
    with pytest.raises(ValueError, match="recomputation must be one of 'none', 'selective', 'full'"):
        hardware_flops(tiny, 1, "all")
    with pytest.raises(ValueError, match="model must be one of .*gpt3-175b"):
        model("gpt5")
    with pytest.raises(ValueError, match="gpus"):
        training_days(tiny, 1e9, 1, 0, 1e12)
