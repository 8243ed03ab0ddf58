"""The language model against the theory's numbers and PyTorch's own attention."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from utils.parallel import model as models
from utils.parallel.model import LanguageModel
from utils.theory.models import Transformer
from utils.theory.presets import MODELS

LLAMA = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=65, sequence=16, activation="swiglu", tied=False
)
GPT = Transformer(layers=2, hidden=32, heads=4, vocab=65, sequence=16)
CONFIGS = [
    LLAMA,
    GPT,
    Transformer(layers=1, hidden=16, heads=2, vocab=10, sequence=8, activation="relu", gpt_style=False),
    Transformer(layers=1, hidden=16, heads=4, kv_heads=1, vocab=10, sequence=8, learned_positions=False),
    Transformer(layers=3, hidden=24, heads=2, vocab=11, sequence=8, activation="swiglu", tied=True, gpt_style=True),
]


def tokens_of(config, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab, (2, batch, config.sequence), generator=generator)


def part(name):
    """The part of `Transformer.parameters_by_part` that a parameter belongs to."""
    first, *rest = name.split(".")
    if first == "layers":
        return {"attention": "attention", "feed_forward": "mlp"}.get(rest[1], "norms")
    return {"tok_embeddings": "embedding", "pos_embeddings": "positions", "norm": "final_norm", "output": "head"}[first]


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_are_those_of_the_theory_part_by_part(config):
    counted = dict.fromkeys(config.parameters_by_part(), 0)
    for name, parameter in LanguageModel(config).named_parameters():
        counted[part(name)] += parameter.numel()
    assert counted == config.parameters_by_part()


@pytest.mark.parametrize("config", CONFIGS)
def test_no_token_sees_the_future(config):
    model = LanguageModel(config, dtype=torch.float64)
    tokens = tokens_of(config)[0]
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % config.vocab
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amin(dim=(0, 1)).max() > 0
    assert before.shape == (2, config.sequence, config.vocab) and before.dtype == torch.float64


def test_fused_attention_equals_attention_written_out():
    tokens = tokens_of(LLAMA)[0]
    fused, written_out = (LanguageModel(LLAMA, fused=fused, dtype=torch.float64) for fused in (True, False))
    torch.testing.assert_close(fused(tokens), written_out(tokens), rtol=0, atol=1e-14)


def test_rotary_scores_depend_on_the_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 12, 8)
    scores = (models.rotate(q) @ models.rotate(k).transpose(-2, -1))[0, 0]
    torch.testing.assert_close(scores[3:, 3:], scores[:-3, :-3], rtol=0, atol=1e-13)
    assert (scores[0, 0] - scores[0, 5]).abs() > 1e-3
    torch.testing.assert_close(models.rotate(q).norm(dim=-1), q.norm(dim=-1))


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = LanguageModel(LLAMA, seed=3).state_dict()
    torch.manual_seed(2)
    again, other = LanguageModel(LLAMA, seed=3).state_dict(), LanguageModel(LLAMA, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["output.weight"], other["output.weight"])
    wide = LanguageModel(Transformer(layers=2, hidden=256, heads=4, vocab=500)).state_dict()
    assert wide["layers.0.attention.wq.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert wide["layers.0.feed_forward.w2.weight"].std().item() == pytest.approx(0.01, rel=0.02)


def test_loss_leaves_out_what_does_not_count():
    model = LanguageModel(LLAMA, dtype=torch.float64)
    tokens, targets = tokens_of(LLAMA)
    targets[:, 4:] = -100
    expected = F.cross_entropy(model(tokens)[:, :4].flatten(0, 1), targets[:, :4].flatten())
    torch.testing.assert_close(model.loss(tokens, targets), expected)


def test_dropout_keeps_one_byte_per_element():
    x, kept = torch.ones(1000, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        y = models.Dropout(0.25)(x)
    assert kept == [1000]
    assert set(y.tolist()) == {0.0, torch.tensor(1 / 0.75).item()} and 650 < y.count_nonzero() < 850
    assert models.Dropout(0.25).eval()(x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["narayanan-7.5b", "llama2-7b"])
def test_a_model_of_any_size_without_memory(name, dtype):
    """Fake and meta tensors have shapes and dtypes only, and go through forward and backward."""
    config = dataclasses.replace(MODELS[name], layers=2)
    for where in (FakeTensorMode(), torch.device("meta")):
        with where:
            model = LanguageModel(config, dtype=dtype)
            tokens = torch.zeros(1, config.sequence, dtype=torch.long)
            model.loss(tokens, tokens).backward()
        assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
        for parameter in model.parameters():
            assert parameter.dtype == parameter.grad.dtype == dtype and parameter.grad.shape == parameter.shape
    assert torch.get_default_dtype() == torch.float32


def test_the_default_dtype_comes_back_after_an_error():
    with pytest.raises(ValueError, match="no"), models.default_dtype(torch.float64):
        raise ValueError("no")
    assert torch.get_default_dtype() == torch.float32


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match="a config with 4 experts was given"):
        LanguageModel(Transformer(layers=1, hidden=8, heads=2, vocab=8, experts=4))
    odd = Transformer(layers=1, hidden=6, heads=2, vocab=8, activation="swiglu")
    with pytest.raises(ValueError, match="a head has 3"):
        LanguageModel(odd)(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="16 learned positions, but sequences of 17"):
        LanguageModel(GPT)(torch.zeros(1, 17, dtype=torch.long))
