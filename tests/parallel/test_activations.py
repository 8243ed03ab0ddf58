import contextlib
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from utils.parallel.activations import Saved, flops_of, recompute, saved_bytes, saved_tensors, saved_terms
from utils.parallel.model import Block, LanguageModel, default_dtype
from utils.parallel.resnet import resnet18
from utils.theory.activations import layer_activation_bytes, layer_activation_terms
from utils.theory.models import Transformer, hardware_flops, layer_attention_flops, model_flops
from utils.theory.presets import MODELS
from utils.theory.resnet import resnet18_saved_bytes

NORM_STATISTICS = 2 * 4_800 * 4  # a mean and an inverse deviation in fp32 for each of ResNet-18's 4,800 normalised channels


def test_a_linear_layer_keeps_its_input():
    layer, x = nn.Linear(3, 5), torch.randn(2, 3)
    assert saved_tensors(lambda: layer(x), exclude=layer) == [Saved((2, 3), torch.float32, 24)]


def test_inputs_can_be_left_out():
    layer, x = nn.Linear(3, 5), torch.randn(2, 3)
    assert saved_bytes(lambda: layer(x), exclude=(layer, x)) == 0


def test_parameters_count_unless_left_out():
    x, weight = torch.randn(2, 3, requires_grad=True), nn.Parameter(torch.randn(3, 5))
    assert saved_bytes(lambda: x @ weight) == 24 + 60
    assert saved_bytes(lambda: x @ weight, exclude=weight) == 24


def test_a_tensor_that_several_operators_keep_counts_once():
    x = torch.randn(4, 4, requires_grad=True)
    assert saved_bytes(lambda: x.sin() + x.cos() + x * x) == 64


def test_a_view_keeps_its_whole_storage():
    x = torch.randn(10, 4, requires_grad=True)
    assert saved_bytes(lambda: x[:2].sin()) == 160


def test_relu_in_place_shares_memory_with_the_next_layer():
    x = torch.randn(8, 16)
    shared = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
    assert saved_bytes(lambda: shared(x), exclude=(shared, x)) == 8 * 16 * 4


def test_gelu_keeps_input_and_output():
    x = torch.randn(8, 16)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
    assert saved_bytes(lambda: model(x), exclude=(model, x)) == 2 * 8 * 16 * 4


def test_sixteen_bit_tensors_count_half():
    x = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)
    assert saved_bytes(lambda: x.sin()) == 256


def test_nothing_is_kept_without_gradients():
    x = torch.randn(8, 16)
    with torch.no_grad():
        assert saved_bytes(lambda: nn.Linear(16, 16)(x)) == 0


def test_freed_memory_is_not_mistaken_for_a_later_tensor():
    x = torch.randn(1000, requires_grad=True)

    def forward():
        for _ in range(3):
            (x * 2).exp().sum()  # the graph of each round is dropped before the next one starts
    assert saved_bytes(forward) == 3 * 4000


def test_gradients_are_unchanged():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 1)), torch.randn(4, 6)
    losses = []
    saved_bytes(lambda: losses.append(model(x).sum()))
    losses[0].backward()
    watched = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(watched, model.parameters(), strict=True))


def test_checkpointing_keeps_only_the_input():
    model, x = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]), torch.randn(8, 16, requires_grad=True)
    assert saved_bytes(lambda: model(x), exclude=model) == 4 * 512
    assert saved_bytes(lambda: checkpoint(model, x, use_reentrant=False), exclude=model) == 512


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_resnet18_keeps_what_theory_says(batch):
    model, x = resnet18(), torch.randn(batch, 3, 224, 224)
    assert saved_bytes(lambda: model(x), exclude=model) == resnet18_saved_bytes(batch) + NORM_STATISTICS


def test_resnet18_with_loss_and_without_images():
    model, x, y = resnet18(), torch.randn(2, 3, 224, 224), torch.tensor([1, 2])
    images, log_probabilities, labels, total_weight = x.nbytes, 2 * 1000 * 4, y.nbytes, 4
    expected = resnet18_saved_bytes(2) + NORM_STATISTICS - images + log_probabilities + labels + total_weight
    assert saved_bytes(lambda: F.cross_entropy(model(x), y), exclude=(model, x)) == expected


def test_fake_tensors_give_the_same_bytes_without_memory():
    with FakeTensorMode():
        model, x = resnet18(), torch.randn(512, 3, 224, 224)
        found = saved_bytes(lambda: model(x), exclude=model)
    assert found == resnet18_saved_bytes(512) + NORM_STATISTICS == 11_356_116_480


def test_of_a_sharded_tensor_the_local_part_counts():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        x = distribute_tensor(torch.randn(8, 16), init_device_mesh("cpu", (4,)), [Shard(0)]).requires_grad_()
        assert saved_bytes(lambda: x.sin()) == 2 * 16 * 4
    finally:
        dist.destroy_process_group()


def test_exclude_says_what_it_takes():
    with pytest.raises(TypeError) as error:
        saved_bytes(lambda: None, exclude=3)
    assert str(error.value) == "exclude takes tensors and modules, but 3 was given. Pass for example exclude=(model, x)."


# A transformer block, tensor by tensor

GPT = Transformer(layers=3, hidden=64, heads=4, vocab=65, sequence=32)
LLAMA = Transformer(3, 64, 4, kv_heads=2, ffn=96, vocab=65, sequence=32, activation="swiglu", tied=False)
BATCH = 2


def half_block(config, dropout=0.0, fused=None):
    """A block and its input in bf16."""
    with default_dtype(torch.bfloat16):
        return Block(config, dropout, fused), torch.randn(BATCH, config.sequence, config.hidden)


def bytes_by_name(block, x):
    return {term.name: term.n_bytes for term in saved_terms(block, x)}


@pytest.mark.parametrize("config", [GPT, dataclasses.replace(GPT, heads=8, kv_heads=8, sequence=48), MODELS["gpt3-175b"]])
def test_a_gpt_block_keeps_sbh_34_plus_5as_over_h(config):
    """Every tensor of Korthikanti et al., section 4.1, and beside them the norms' statistics and the causal mask."""
    with FakeTensorMode() if config.hidden > 1000 else contextlib.nullcontext():
        kept = bytes_by_name(*half_block(config, dropout=0.1))
    theory = layer_activation_terms(config, BATCH)
    assert {name: kept.pop(name) for name in theory} == theory
    tokens = BATCH * config.sequence
    statistics = 2 * 2 * tokens  # a mean and an inverse deviation of 16 bits
    assert kept == {
        "statistics of attention_norm": statistics,
        "statistics of ffn_norm": statistics,
        "output of attention.future": config.sequence**2,
    }
    sbh = tokens * config.hidden
    assert sum(theory.values()) == sbh * (34 + 5 * config.heads * config.sequence / config.hidden)


@pytest.mark.parametrize("config", [GPT, LLAMA])
@pytest.mark.parametrize("dropout, fused", [(0.1, False), (0.0, False), (0.0, True)])
def test_terms_are_all_that_is_saved(config, dropout, fused):
    block, x = half_block(config, dropout, fused)
    x.requires_grad_()
    terms = saved_terms(block, x)
    assert sum(term.n_bytes for term in terms) == saved_bytes(lambda: block(x), exclude=block)
    assert len({term.name for term in terms}) == len(terms)
    assert sum(term.count for term in terms) == len(saved_tensors(lambda: block(x), exclude=block))


def test_a_fused_kernel_keeps_no_scores():
    """Of the core it keeps queries, keys, values and its output, which wo keeps anyway, and one fp32 number per row."""
    scores, fused = (bytes_by_name(*half_block(GPT, fused=fused)) for fused in (False, True))
    gone = {name: n for name, n in scores.items() if name not in fused}
    new = {name: n for name, n in fused.items() if name not in scores}
    sbh2, rows = 2 * BATCH * GPT.sequence * GPT.hidden, BATCH * GPT.heads * GPT.sequence
    assert gone == {
        "output of attention.softmax": 2 * rows * GPT.sequence,
        "output of attention.future": GPT.sequence**2,
        "input of attention.wo": sbh2,
    }
    assert new == {"output of attention.scaled_dot_product_attention": sbh2, "statistics of attention": 4 * rows}


def test_what_a_llama_block_keeps_beyond_the_theory():
    """SwiGLU keeps silu(w1 x) too; keys and values are repeated to all heads; RMSNorm in pieces keeps fp32 copies."""
    kept, theory = bytes_by_name(*half_block(LLAMA, fused=False)), layer_activation_terms(LLAMA, BATCH)
    for name in ("input of attention.wq", "input of attention.wo", "output of attention.softmax",
                 "output of feed_forward.w1", "output of feed_forward.w3", "input of feed_forward.w2"):
        assert kept[name] == theory[name]
    assert kept["output of feed_forward.silu"] == theory["output of feed_forward.w1"]
    assert kept["output of attention.rotate"] == 2 * theory["output of attention.wq"]
    assert kept["output of attention.wv"] == LLAMA.heads / LLAMA.kv_heads * theory["output of attention.wv"]
    for norm in ("attention_norm", "ffn_norm"):
        assert kept[f"input of {norm}"] == kept[f"output of {norm}.mul"] == 2 * theory[f"input of {norm}"]


def test_recomputation_forgets_what_the_theory_says():
    block, x = half_block(GPT, dropout=0.1)
    everything = bytes_by_name(block, x)
    for what in ("selective", "full"):
        kept = bytes_by_name(recompute(block, what), x)
        extras = sum(n for name, n in kept.items() if name.startswith("statistics"))
        assert sum(kept.values()) - extras == layer_activation_bytes(GPT, BATCH, recomputation=what)
    assert kept == {"input of the module": 2 * BATCH * GPT.sequence * GPT.hidden}
    assert bytes_by_name(recompute(block, "none"), x) == everything


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputation_changes_no_gradient(dropout):
    tokens = torch.randint(65, (2, BATCH, GPT.sequence), generator=torch.Generator().manual_seed(0))

    def gradients(what):
        model = recompute(LanguageModel(GPT, dropout=dropout, dtype=torch.float64), what)
        torch.manual_seed(1)  # the same dropout
        model.loss(*tokens).backward()
        return [p.grad for p in model.parameters()]
    plain = gradients("none")
    for what in ("selective", "full"):
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(what), strict=True))


def test_flops_are_those_of_the_theory():
    """Exactly, if the whole block is computed again. By itself PyTorch stops early: it leaves out each block's last product."""
    tokens = torch.zeros(BATCH, GPT.sequence, dtype=torch.long)
    model = LanguageModel(GPT)

    def flops(what, early_stop):
        recompute(model, what, early_stop)
        return flops_of(lambda: model.loss(tokens, tokens).backward())
    once = model_flops(GPT, BATCH)
    core = GPT.layers * layer_attention_flops(GPT, BATCH)
    assert flops("none", False) == once
    assert flops("full", False) == hardware_flops(GPT, BATCH, "full")
    assert flops("selective", False) == once + core  # eq. (8) of the paper, as printed, adds three times as much
    w2 = GPT.layers * 2 * BATCH * GPT.sequence * GPT.ffn * GPT.hidden
    assert flops("full", True) == hardware_flops(GPT, BATCH, "full") - w2
    assert flops("selective", True) == once + core / 2


def test_flops_of_the_fused_kernel_count_its_scores_twice():
    tokens = torch.zeros(BATCH, LLAMA.sequence, dtype=torch.long)
    model = LanguageModel(LLAMA)
    again = LLAMA.layers * layer_attention_flops(LLAMA, BATCH) / 2
    assert flops_of(lambda: model.loss(tokens, tokens).backward()) == model_flops(LLAMA, BATCH) + again


def test_recompute_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="takes none, selective or full, but 'some' was given"):
        recompute(LanguageModel(GPT), "some")
    with pytest.raises(ValueError, match="Build it with fused=False"):
        recompute(LanguageModel(LLAMA), "selective")
