"""Activations of transformer layers, against the papers' formulas and against what autograd keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.activations import (
    attention_core_share,
    best_checkpoints,
    extra_activation_bytes,
    first_stage_activation_bytes,
    gpipe_activation_units,
    interleaving_factor,
    layer_activation_bytes,
    saved_output_bytes,
    zero_style_activation_elements,
)
from utils.theory.models import Transformer
from utils.theory.presets import MODELS
from utils.theory.units import GB, GiB

shapes = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.integers(1, 16), st.integers(1, 64))


@given(shapes, st.integers(1, 16))
def test_the_six_formulas_of_korthikanti(shape, b):
    t, heads_per_rank, head_width, tokens_per_rank = shape
    a, s = t * heads_per_rank, t * tokens_per_rank
    h = a * head_width
    model = Transformer(4, h, a, sequence=s)
    sbh, core = s * b * h, 5 * a * s / h
    expected = {
        (1, False, "none"): 34 + core,
        (t, False, "none"): 10 + 24 / t + core / t,
        (t, True, "none"): 34 / t + core / t,
        (t, False, "selective"): 10 + 24 / t,
        (t, True, "selective"): 34 / t,
        (t, False, "full"): 2,
        (t, True, "full"): 2,
    }
    for (tensor, sequence_parallel, recomputation), factor in expected.items():
        n_bytes = layer_activation_bytes(model, b, tensor, sequence_parallel, recomputation)
        assert n_bytes == pytest.approx(sbh * factor)


@given(st.sampled_from(["none", "selective", "full"]), st.booleans(), st.integers(0, 5))
def test_activations_never_rise_with_more_tensor_ranks(recomputation, sequence_parallel, power):
    model = MODELS["narayanan-39.1b"]
    more = layer_activation_bytes(model, 2, 2 ** (power + 1), sequence_parallel, recomputation)
    assert more <= layer_activation_bytes(model, 2, 2**power, sequence_parallel, recomputation)


@given(st.sampled_from([1, 2, 4, 8, 16]))
def test_context_parallelism_divides_everything(context):
    model = MODELS["llama3-8b"]
    whole = layer_activation_bytes(model, 1)
    assert layer_activation_bytes(model, 1, context=context) == pytest.approx(whole / context)


def test_first_stages_of_korthikanti_in_gib():
    rows = {
        "korthikanti-22b": ((8, 1, 1, 4), (59.25, 39.56, 9.56, 4.50)),
        "gpt3-175b": ((8, 8, 3, 1), (66.84, 41.41, 12.35, 5.81)),
        "mt-nlg-530b": ((8, 35, 3, 1), (114.02, 66.51, 23.08, 10.86)),
        "narayanan-1008b": ((8, 64, 1, 1), (131.25, 76.56, 26.56, 12.50)),
    }
    techniques = ((False, "none"), (True, "none"), (True, "selective"), (False, "full"))
    for name, ((t, p, v, b), printed) in rows.items():
        for (sequence_parallel, recomputation), gib in zip(techniques, printed):
            n_bytes = first_stage_activation_bytes(MODELS[name], b, t, p, v, sequence_parallel, recomputation)
            assert n_bytes / GiB == pytest.approx(gib, abs=0.0051)


def test_what_is_outside_the_layers_is_small_but_not_below_a_hundredth_of_a_percent():
    model = MODELS["korthikanti-22b"]
    extra = extra_activation_bytes(model, 4, 8, 1)
    whole = first_stage_activation_bytes(model, 4, 8, sequence_parallel=True)
    assert extra / whole == pytest.approx(0.0057, abs=0.0001)
    assert first_stage_activation_bytes(model, 4, 8, sequence_parallel=True, extras=True) == whole + extra
    assert saved_output_bytes(MODELS["mt-nlg-530b"], 1, 35) / GiB == pytest.approx(2.734, abs=0.001)


def test_the_attention_core_of_gpt3_and_mt_nlg():
    assert attention_core_share(MODELS["gpt3-175b"]) == 80
    assert attention_core_share(MODELS["mt-nlg-530b"]) == 64


def test_interleaving_costs_memory():
    assert interleaving_factor(8, 1) == 1
    assert interleaving_factor(8, 3) == pytest.approx(1 + 7 / 24)


def test_other_rules_of_thumb():
    gpt2 = Transformer(48, 1600, 25, sequence=1024)
    assert 2 * zero_style_activation_elements(gpt2, 32) / GB == pytest.approx(60.4, abs=0.05)
    assert best_checkpoints(64, 2.0, 32.0) == 32
    assert gpipe_activation_units(128, 32, 24, 4) == 128 + 6 * 4
    assert gpipe_activation_units(128, 32, 24, 4, recompute=False) == 128 * 24


def autograd_bytes(build, *inputs):
    """Bytes of the distinct storages that a layer keeps, its parameters left out."""
    torch = pytest.importorskip("torch")
    saved, kept = {}, []
    layer, forward = build()
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        # One number per token (the norms' statistics) is left out, as in the paper.
        if storage.data_ptr() not in own and tensor.dim() > 1 and tensor.shape[-1] > 1:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(*inputs)
    return sum(saved.values())


def test_autograd_keeps_what_the_formula_says_for_a_layer_without_dropout():
    torch = pytest.importorskip("torch")
    s, b, h, a = 32, 2, 64, 4
    functional = torch.nn.functional

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)
            self.qkv, self.out = torch.nn.Linear(h, 3 * h), torch.nn.Linear(h, h)
            self.up, self.down = torch.nn.Linear(h, 4 * h), torch.nn.Linear(4 * h, h)

    def build():
        layer = Layer().bfloat16()

        def forward(x):
            q, k, v = (
                part.reshape(b, s, a, h // a).transpose(1, 2).contiguous()
                for part in layer.qkv(layer.norm1(x)).chunk(3, -1)
            )
            scores = q @ k.transpose(-1, -2)
            context = torch.softmax(scores, -1) @ v
            y = x + layer.out(context.transpose(1, 2).reshape(b, s, h))
            return y + layer.down(functional.gelu(layer.up(layer.norm2(y))))

        return layer, forward

    x = torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    # Without dropout: no masks (2 · sbh and 1 · as²b bytes), and no dropped-out scores (2 · as²b bytes).
    formula = layer_activation_bytes(Transformer(1, h, a, sequence=s), b)
    assert autograd_bytes(build, x) == formula - 2 * s * b * h - 3 * a * s * s * b


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: layer_activation_bytes(m, 1, tensor=7), ["tensor", "7", "heads", "96"]),
        (lambda m: layer_activation_bytes(m, 1, tensor=64), ["tensor", "64", "heads"]),
        (lambda m: layer_activation_bytes(m, 0), ["micro_batch", "0"]),
        (lambda m: layer_activation_bytes(m, 1, recomputation="some"), ["recomputation", "'some'"]),
        (lambda m: layer_activation_bytes(m, 1, context=3), ["context", "3", "sequence", "2048"]),
        (lambda m: interleaving_factor(0, 2), ["pipeline", "0"]),
        (lambda m: best_checkpoints(4, 0, 1), ["layer_input_bytes", "0"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call(MODELS["gpt3-175b"])
    for word in words:
        assert word in str(error.value)


def test_fewer_key_heads_than_ranks_are_replicated_but_must_fit():
    llama = MODELS["llama3-8b"]  # 32 heads, 8 key heads
    head, per_sixteenth = 128, 2 * 4096 + 3 * 14336
    at_16 = layer_activation_bytes(llama, 1, 16, recomputation="selective")
    # Per token, 2 bytes each: inputs of norms and blocks; one whole key and value head; 1/16 of the rest.
    assert at_16 == 8192 * 2 * (4 * 4096 + 2 * head + per_sixteenth / 16)
    odd = Transformer(2, 96, 12, kv_heads=3, activation="swiglu")
    with pytest.raises(ValueError, match="tensor must divide kv_heads or be a multiple"):
        layer_activation_bytes(odd, 1, 4)
    assert layer_activation_bytes(odd, 1, 6) > 0
