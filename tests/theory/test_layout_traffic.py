"""What a rank of a layout sends and holds, by formula; tests/parallel/test_mesh.py holds it against real ranks."""
import pytest

from utils.theory.layout import Layout
from utils.theory.layout_traffic import rank_elements, rank_parameters
from utils.theory.models import Transformer
from utils.theory.papers.narayanan import table_1_runs
from utils.theory.presets import MODELS

GPT = Transformer(layers=8, hidden=64, heads=8, vocab=128, sequence=32)
LLAMA = Transformer(layers=8, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=128, sequence=32, activation="swiglu", tied=False)


def test_one_rank_sends_nothing():
    assert set(rank_elements(GPT, Layout(), 8, 0, GPT.parameters).values()) == {0}


def test_a_middle_rank_sends_both_ways_and_the_ends_one():
    layout = Layout(pipeline=4)
    sent = [rank_elements(LLAMA, layout, 8, rank, 1)["pipeline"] / (8 * 32 * 64) for rank in range(4)]
    assert sent == [1, 2, 2, 1]


@pytest.mark.parametrize("schedule, chunks, messages", [
    ("interleaved 1f1b", 2, [3, 3]), ("zb-v", 1, [2, 2]), ("gpipe", 1, [1, 1])])
def test_messages_of_looped_and_folded_stages(schedule, chunks, messages):
    """Interleaved: stages 0 to 3 on ranks 0, 1, 0, 1 have three boundaries; in V order 0, 1, 1, 0 the middle one is free."""
    layout = Layout(pipeline=2, schedule=schedule, chunks=chunks)
    sent = [rank_elements(LLAMA, layout, 8, rank, 1)["pipeline"] / (8 * 32 * 64) for rank in range(2)]
    assert sent == messages


def test_scatter_gather_and_sequence_parallelism_divide_a_message_by_t():
    layout = Layout(tensor=4, pipeline=2)
    whole = rank_elements(LLAMA, layout, 8, 0, 1)["pipeline"]
    assert rank_elements(LLAMA, layout, 8, 0, 1, scatter_gather=True)["pipeline"] == whole / 4
    assert rank_elements(LLAMA, layout.replace(sequence_parallel=True), 8, 0, 1)["pipeline"] == whole / 4


def test_recomputation_meets_half_as_often_again():
    layout = Layout(tensor=2, pipeline=4)
    none, full = (rank_elements(LLAMA, layout.replace(recomputation=each), 8, 1, 1)["tensor"] for each in ("none", "full"))
    assert full == 1.5 * none


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["tied GPT", "Llama"])
def test_all_parameters_are_on_some_rank(model):
    assert rank_parameters(model, Layout(), 0) == model.parameters
    held = sum(rank_parameters(model, Layout(pipeline=4), rank) for rank in range(4))
    second_copy = model.vocab * model.hidden if model.tied else 0
    assert held == model.parameters + second_copy


def test_the_largest_run_of_narayanan_talks_most_along_tensor():
    run = table_1_runs()[-1]
    parameters = rank_parameters(run.model, run.layout, 1)
    sent = rank_elements(run.model, run.layout, run.batch, 1, parameters, scatter_gather=True)
    assert max(sent, key=sent.get) == "tensor"
    assert parameters * run.layout.tensor * run.layout.pipeline == pytest.approx(MODELS["narayanan-1008b"].parameters, rel=0.01)


@pytest.mark.parametrize("layout, rank, sentence", [
    (Layout(context=2), 0, "no context, no experts, no DualPipe"),
    (Layout(pipeline=2, schedule="dualpipe"), 0, "no context, no experts, no DualPipe"),
    (Layout(tensor=16), 0, "at most the 8 key-value heads"),
    (Layout(pipeline=2), 2, "pipeline_rank must be .*1"),
])
def test_what_is_not_counted_says_so(layout, rank, sentence):
    with pytest.raises(ValueError, match=sentence):
        rank_elements(GPT, layout, 8, rank, 1)
    with pytest.raises(ValueError, match=sentence):
        rank_parameters(GPT, layout, rank)
