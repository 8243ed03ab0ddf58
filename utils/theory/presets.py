"""The models and clusters of the papers, by name: MODELS["gpt3-175b"]."""

from math import log

from .arguments import positive, whole_number
from .models import Transformer

# name: layers, hidden, heads
_NARAYANAN = {
    "1.7b": (24, 2304, 24),
    "3.6b": (30, 3072, 32),
    "7.5b": (36, 4096, 32),
    "18.4b": (40, 6144, 48),
    "39.1b": (48, 8192, 64),
    "76.1b": (60, 10240, 80),
    "145.6b": (80, 12288, 96),
    "310.1b": (96, 16384, 128),
    "529.6b": (105, 20480, 128),
    "1008b": (128, 25600, 160),
    "162.2b": (32, 20480, 128),
    "5.9b": (32, 3840, 32),
    "91b": (32, 15360, 128),
}
_MEGATRON_2019 = {
    "1.2b": (40, 1536, 16),
    "2.5b": (54, 1920, 20),
    "4.2b": (64, 2304, 24),
    "8.3b": (72, 3072, 32),
}
_MEGATRON_2020 = {
    "1.2b": (24, 1920, 15),
    "2.0b": (30, 2304, 18),
    "4.2b": (36, 3072, 24),
    "8.7b": (42, 4096, 32),
}
_MEGATRON_H100 = {
    "1.7b": (24, 2048, 16),
    "7.1b": (30, 4096, 32),
    "16b": (48, 6144, 48),
    "32b": (48, 7168, 56),
    "70b": (84, 8192, 64),
    "119b": (92, 10240, 80),
    "177b": (96, 12288, 96),
    "314b": (96, 16384, 128),
    "462b": (112, 18432, 144),
}
_ZERO_BUBBLE = {
    "1.5b": (22, 2304, 24),
    "6.2b": (30, 4096, 32),
    "14.6b": (46, 5120, 40),
    "28.3b": (62, 6144, 48),
}
_GPIPE_LAYERS = (3, 13, 103, 415, 1663)
_LLAMA3 = {"8b": (32, 4096, 32, 14336), "70b": (80, 8192, 64, 28672), "405b": (126, 16384, 128, 53248)}


def _gpt(rows, prefix, **fields):
    return {
        f"{prefix}-{name}": Transformer(layers, hidden, heads, **fields)
        for name, (layers, hidden, heads) in rows.items()
    }


MODELS = {
    "gpt2-1.5b": Transformer(48, 1600, 25, vocab=50257, sequence=1024),
    "gpt3-175b": Transformer(96, 12288, 96),
    "korthikanti-22b": Transformer(48, 6144, 64),
    "mt-nlg-530b": Transformer(105, 20480, 128),
    **_gpt(_NARAYANAN, "narayanan"),
    **_gpt(_MEGATRON_2019, "megatron2019", sequence=1024),
    **_gpt(_MEGATRON_2020, "megatron2020", sequence=1024),
    **_gpt(_MEGATRON_H100, "megatron-h100", sequence=4096),
    **_gpt(_ZERO_BUBBLE, "zero-bubble", sequence=1024),
    **{
        f"gpipe-{layers}": Transformer(
            layers, 2048, 32, vocab=32000, sequence=1024, tied=False, learned_positions=False
        )
        for layers in _GPIPE_LAYERS
    },
    "llama2-7b": Transformer(
        32, 4096, 32, ffn=11008, vocab=32000, sequence=4096, activation="swiglu", tied=False
    ),
    **{
        f"llama3-{name}": Transformer(
            layers,
            hidden,
            heads,
            kv_heads=8,
            ffn=ffn,
            vocab=128256,
            sequence=8192,
            activation="swiglu",
            tied=False,
        )
        for name, (layers, hidden, heads, ffn) in _LLAMA3.items()
    },
    "mixtral-8x7b": Transformer(
        32,
        4096,
        32,
        kv_heads=8,
        ffn=14336,
        vocab=32000,
        sequence=4096,
        activation="swiglu",
        tied=False,
        experts=8,
        experts_per_token=2,
    ),
}
"""Transformers of the papers' tables, by "paper-size"; Llama 3 and Mixtral for today's shapes."""


def model(name):
    """The preset `name`; raises ValueError with the known names when there is none."""
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, but {name!r} was given.")
    return MODELS[name]


_HEAD_WIDTH = 128


def gpt_with_layers(layers, sequence=2048):
    """A GPT of GPT-3's proportions: L heads of width 128, so that h = 128·L. For L = 96 it is GPT-3 itself.

    The papers' models are near: Narayanan et al. 2021 have h/L from 96 (1.7B) to 200 (1T).
    """
    layers = whole_number("layers", layers)
    return Transformer(layers, _HEAD_WIDTH * layers, layers, sequence=sequence)


def gpt_of_size(parameters, sequence=2048):
    """The `gpt_with_layers` whose number of parameters is nearest to `parameters`, by ratio.

    >>> gpt_of_size(175e9) == MODELS["gpt3-175b"]
    True
    """
    positive("parameters", parameters)
    guess = round((parameters / (12 * _HEAD_WIDTH**2)) ** (1 / 3))  # Ψ is about 12Lh²
    # The embedding only adds to Ψ, so the guess is at most too deep; at the small end by many layers.
    candidates = [gpt_with_layers(layers, sequence) for layers in range(max(1, guess - 8), guess + 2)]
    return min(candidates, key=lambda model: abs(log(model.parameters / parameters)))
