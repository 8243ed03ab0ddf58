"""What tensor parallelism sends, counted by the recorder: so many calls, of so many elements, and no more."""

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from utils.parallel import tensor
from utils.parallel.model import LanguageModel
from utils.ranks import launch
from utils.theory.models import Transformer
from utils.theory.traffic import (
    tensor_all_reduces_per_layer,
    tensor_elements_per_layer,
    vocabulary_loss_elements,
)

LLAMA = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=4, ffn=48, vocab=65, sequence=8, activation="swiglu", tied=False
)
GROUPED = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=66, sequence=8, activation="swiglu", tied=True
)
GPT = Transformer(layers=2, hidden=32, heads=4, kv_heads=4, vocab=65, sequence=8)
BATCH = 3


def one_block(config, sequence_parallel):
    """Forward and backward of one block, a barrier between them."""
    block = tensor.ParallelBlock(LanguageModel(config).layers[0], sequence_parallel=sequence_parallel)
    length = config.sequence // (dist.get_world_size() if sequence_parallel else 1)
    x = torch.ones(BATCH, length, config.hidden, requires_grad=True)
    y = block(x)
    dist.barrier()
    y.sum().backward()


def forward_and_backward(run):
    calls = run.calls().query("rank == 0")
    ops, elements = calls.op.tolist(), calls.elements.tolist()
    middle = ops.index("barrier")
    return list(zip(ops, elements))[:middle], list(zip(ops, elements))[middle + 1 :]


def test_a_block_exchanges_two_tensors_forward_and_two_backward():
    config, bsh = LLAMA, BATCH * LLAMA.sequence * LLAMA.hidden
    run = launch(one_block, config, False, world_size=4)
    forward, backward = forward_and_backward(run)
    assert forward == backward == [("all_reduce", bsh)] * 2
    assert len(forward + backward) == tensor_all_reduces_per_layer()
    assert run.sent_bytes() == [4 * tensor_elements_per_layer(config, BATCH, tensor=4)] * 4

    run = launch(one_block, config, True, world_size=4)
    forward, backward = forward_and_backward(run)
    assert forward == [("all_gather", bsh), ("reduce_scatter", bsh)] * 2
    large = [call for call in backward if call[0] != "all_reduce"]
    assert large == [("all_gather", bsh), ("reduce_scatter", bsh)] * 2
    assert [call for call in backward if call[0] == "all_reduce"] == [("all_reduce", config.hidden)] * 2  # the norms
    sent = run.calls().query("rank == 0 and op != 'all_reduce'").sent_bytes.sum()
    assert sent == 4 * tensor_elements_per_layer(config, BATCH, tensor=4)


def test_shared_key_value_heads_cost_one_small_all_reduce_each():
    forward, backward = forward_and_backward(launch(one_block, GROUPED, False, world_size=4))
    bsh, weight = BATCH * GROUPED.sequence * GROUPED.hidden, GROUPED.kv_hidden * GROUPED.hidden
    assert forward == [("all_reduce", bsh)] * 2
    assert sorted(backward) == sorted([("all_reduce", bsh)] * 2 + [("all_reduce", weight)] * 2)


def test_logits_stay_cut():
    """The loss exchanges three numbers per token, not V of them."""

    def worker():
        tokens, targets = torch.randint(LLAMA.vocab, (2, BATCH, LLAMA.sequence))
        model = tensor.ParallelLanguageModel(LanguageModel(LLAMA))
        logits = model(tokens)
        dist.barrier()
        tensor.vocab_parallel_cross_entropy(logits, targets, LLAMA.vocab).backward()
        return logits.shape[-1]

    run = launch(worker, world_size=2)
    assert run.results == [33, 32]
    forward, after = forward_and_backward(run)
    tokens = vocabulary_loss_elements(LLAMA, BATCH)
    assert after[:3] == [("all_reduce", tokens)] * 3
    bsh = tokens * LLAMA.hidden
    assert forward == [("all_reduce", bsh)] * (1 + 2 * LLAMA.layers)
    assert after[3:] == [("all_reduce", bsh)] * (1 + 2 * LLAMA.layers)
    assert run.comm().query("op != 'all_reduce' and op != 'barrier'").empty
    assert run.calls().elements.max() == bsh < tokens * LLAMA.vocab


@pytest.mark.parametrize("config", [LLAMA, GPT])
@pytest.mark.parametrize("reentrant", [True, False])
def test_full_recomputation_repeats_the_two_of_the_forward_pass(config, reentrant):
    """Six all-reduces as the papers count; five when PyTorch stops recomputing as soon as it has what it needs."""

    def worker(early_stop):
        block = tensor.ParallelBlock(LanguageModel(config).layers[0])
        x = torch.ones(BATCH, config.sequence, config.hidden, requires_grad=True)
        with set_checkpoint_early_stop(early_stop):
            y = checkpoint(block, x, use_reentrant=reentrant)
        dist.barrier()
        y.sum().backward()

    bsh = BATCH * config.sequence * config.hidden
    for early_stop in (False, True):
        forward, backward = forward_and_backward(launch(worker, early_stop, world_size=2))
        assert forward == [("all_reduce", bsh)] * 2
        skipped = 1 if early_stop and not reentrant else 0
        assert backward == [("all_reduce", bsh)] * (4 - skipped)
        assert len(forward + backward) == tensor_all_reduces_per_layer("full") - skipped
