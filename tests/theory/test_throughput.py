"""The throughput model: its parts, its two constants, and what it was not fitted on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.collectives import all_reduce_seconds
from utils.theory.grid import Layout
from utils.theory.hardware import Link, eos, selene
from utils.theory.layout import rank_bytes
from utils.theory.papers import korthikanti, narayanan
from utils.theory.presets import MODELS
from utils.theory.throughput import (
    RATES,
    Rates,
    layer_seconds,
    layers_per_rank,
    micro_batches,
    parameters_per_rank,
    step_time,
)

ONE_T = MODELS["narayanan-1008b"], selene(3072), Layout(tensor=8, pipeline=64, data=6), 3072


def test_the_parts_add_up():
    step = step_time(*ONE_T)
    assert step.seconds == sum(step.parts.values())
    assert set(step.parts) == {
        "matmul",
        "attention",
        "element-wise",
        "tensor all-reduce",
        "logits",
        "pipeline messages",
        "bubble",
        "gradient all-reduce",
        "embedding all-reduce",
        "optimizer",
    }
    assert all(seconds > 0 for seconds in step.parts.values())


def test_the_parts_by_hand():
    model, cluster, layout, batch = ONE_T
    parts = step_time(*ONE_T).parts
    tokens = batch // 6 * model.sequence
    matmul = 4 * 24 * tokens * model.hidden**2 * 2 / 8 / (312e12 * RATES.matmul_efficiency)
    assert parts["matmul"] == pytest.approx(matmul)
    attention = 4 * 4 * tokens * model.sequence * model.hidden * 2 / 8 / (312e12 * RATES.attention_efficiency)
    assert parts["attention"] == pytest.approx(attention)
    per_micro_batch = sum(
        parts[name] for name in ("matmul", "attention", "element-wise", "tensor all-reduce")
    )
    bubble = 63 / 512 * (per_micro_batch + parts["pipeline messages"])
    assert parts["bubble"] == pytest.approx(bubble)
    shard_bytes = 2 * parameters_per_rank(model, layout)
    inter = Link(0, 25e9 * RATES.inter_share)
    assert parts["gradient all-reduce"] == pytest.approx(all_reduce_seconds("ring", shard_bytes, 6, inter))
    reduced_bytes = 2 * model.sequence * model.hidden
    intra = Link(0, 230e9)
    each = all_reduce_seconds("ring", reduced_bytes, 8, intra) + RATES.collective_seconds
    assert parts["tensor all-reduce"] == pytest.approx(6 * 2 * 512 * each)


def test_one_trillion_parameters_reach_about_half_the_peak_and_39_percent_without_recomputation():
    step = step_time(*ONE_T)
    assert step.hfu == pytest.approx(0.52, abs=0.03)
    assert step.mfu == pytest.approx(0.39, abs=0.02)
    assert step.flops_per_second_per_gpu * 3072 / 1e15 == pytest.approx(502, rel=0.05)


def test_two_constants_predict_rows_that_they_have_not_seen():
    errors = np.abs(narayanan.leave_one_out_errors())
    assert errors.mean() <= 0.03
    assert errors.max() <= 0.06
    baseline = np.abs(narayanan.log_linear_leave_one_out_errors())
    assert baseline.mean() == pytest.approx(0.042, abs=0.003)
    assert errors.mean() < baseline.mean() and errors.max() < baseline.max()


def test_the_default_rates_are_those_of_the_fit():
    fitted = narayanan.fit_table_1()
    assert fitted.matmul_efficiency == pytest.approx(RATES.matmul_efficiency, abs=0.005)
    assert fitted.attention_efficiency == pytest.approx(RATES.attention_efficiency, abs=0.02)
    frozen = replace(
        fitted, matmul_efficiency=RATES.matmul_efficiency, attention_efficiency=RATES.attention_efficiency
    )
    assert frozen == RATES


def test_frozen_constants_predict_table_2():
    runs = narayanan.table_2_runs("PTD")
    errors = [run.predict() / run.tflops - 1 for run in runs]
    assert max(map(abs, errors)) <= 0.08
    # More GPUs for the same batch: each does less.
    for trio in (runs[:3], runs[3:]):
        assert trio[0].predict() > trio[1].predict() > trio[2].predict()


def test_zero_3_falls_behind_as_gpus_are_added():
    three_d, sharded = narayanan.table_2_runs("PTD"), narayanan.table_2_runs("ZeRO-3")
    ratios = [a.predict() / b.predict(narayanan.ZERO_3_RATES) for a, b in zip(three_d[:3], sharded[:3])]
    assert ratios[0] < ratios[1] < ratios[2]
    assert ratios == pytest.approx([1.06, 1.7, 3.2], rel=0.12)


def test_one_refitted_constant_predicts_korthikanti():
    rates, runs = korthikanti.refit(), list(korthikanti.table_5_layouts())
    errors = [step_time(*run[2:6], rates).seconds / float(run[6]) - 1 for run in runs]
    assert len(errors) == 8
    assert np.mean(np.abs(errors)) <= 0.04
    assert np.max(np.abs(errors)) <= 0.06
    frozen = [step_time(*run[2:6]).seconds / float(run[6]) - 1 for run in runs]
    assert np.max(np.abs(frozen)) <= 0.12


def test_selective_recomputation_with_sequence_parallelism_gains_a_third():
    by_name = {}
    for name, technique, *run, _ in korthikanti.table_5_layouts():
        by_name[name, technique] = step_time(*run).seconds
    for name in ("22B", "175B", "530B", "1T"):
        assert 1.25 <= by_name[name, "full"] / by_name[name, "present"] <= 1.40


def test_more_recomputation_costs_more_time():
    model, cluster, layout, batch = ONE_T
    times = [
        step_time(model, cluster, layout.replace(recomputation=each), batch).seconds
        for each in ("none", "selective", "full")
    ]
    assert times == sorted(times) and len(set(times)) == 3


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.booleans())
def test_a_better_network_is_never_slower(tensor, pipeline, overlap):
    model = MODELS["narayanan-7.5b"]
    slow, fast = selene(64), replace(selene(64), inter=Link(5e-6, 50e9))
    data = 64 // (tensor * pipeline)
    layout = Layout(tensor=tensor, pipeline=pipeline, data=data, overlap_gradients=overlap)
    assert step_time(model, fast, layout, 512).seconds <= step_time(model, slow, layout, 512).seconds


def test_tensor_parallelism_across_servers_is_slower():
    model, cluster = MODELS["narayanan-162.2b"], selene(64)
    inside = step_time(model, cluster, Layout(tensor=8, pipeline=8, schedule="1f1b"), 128).seconds
    across = step_time(model, cluster, Layout(tensor=32, pipeline=2, schedule="1f1b"), 128).seconds
    assert inside < across


def test_context_parallelism_divides_the_work_and_adds_its_messages():
    model, cluster = MODELS["llama3-8b"], eos(8)
    one = layer_seconds(model, cluster, Layout(recomputation="none"))
    four = layer_seconds(model, cluster, Layout(context=4, recomputation="none"))
    for part in ("matmul", "attention", "element-wise"):
        assert sum(four[part]) == pytest.approx(sum(one[part]) / 4)
    assert "context all-gather" not in one and sum(four["context all-gather"]) > 0


def test_expert_parallelism_adds_all_to_alls():
    model, cluster = MODELS["mixtral-8x7b"], eos(8)
    step = step_time(model, cluster, Layout(data=8, expert=8, recomputation="none"), 64)
    assert step.parts["expert all-to-all"] > 0
    fewer = parameters_per_rank(model, Layout(data=8, expert=8))
    assert parameters_per_rank(model, Layout(data=8)) - fewer == pytest.approx(
        model.layers * 7 / 8 * model.mlp_parameters, rel=1e-3
    )


def test_llama_3_gives_one_layer_less_to_both_ends():
    assert layers_per_rank(MODELS["llama3-405b"], Layout(pipeline=16)) == 8
    assert layers_per_rank(MODELS["gpt3-175b"], Layout(pipeline=16)) == 6


def test_m_is_the_batch_over_d_b():
    assert micro_batches(Layout(data=6, micro_batch=2), 96) == 8


@pytest.mark.parametrize(
    ("changes", "batch", "words"),
    [
        ({"data": 5}, 3072, ["batch", "multiple of data", "3072"]),
        ({"pipeline": 50}, 3072, ["pipeline", "layers", "50"]),
        ({"tensor": 7}, 3072, ["tensor", "7", "heads", "160"]),
        ({"data": 12}, 3072, ["3072 GPUs", "6144 ranks"]),
        ({"context": 3, "data": 2}, 3072, ["context", "3", "sequence"]),
        ({"expert": 2}, 3072, ["expert", "2", "experts"]),
        ({}, -6, ["batch", "-6"]),
    ],
)
def test_a_layout_that_does_not_fit_gets_a_sentence(changes, batch, words):
    model, cluster, layout, _ = ONE_T
    with pytest.raises(ValueError) as error:
        step_time(model, cluster, layout.replace(**changes), batch)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("field", ["matmul_efficiency", "memory_share", "intra_share", "gather_share"])
@pytest.mark.parametrize("value", [0, 1.2, -1])
def test_a_share_is_above_0_and_at_most_1(field, value):
    with pytest.raises(ValueError, match=f"{field} must be"):
        Rates(**{field: value})


def test_zero_2_reduces_gradients_in_every_micro_batch():
    model, cluster = MODELS["narayanan-1.7b"], selene(64)
    parts = [
        step_time(model, cluster, Layout(data=64, micro_batch=2, zero_stage=stage), 64 * 2 * 5).parts
        for stage in (0, 1, 2)
    ]
    once, sharded, every = (part["gradient all-reduce"] for part in parts)
    assert once == sharded
    assert every == pytest.approx(once * (5 + 1) / 2)
    assert parts[0]["optimizer"] == pytest.approx(64 * parts[1]["optimizer"])


def test_flash_attention_writes_no_scores():
    model, cluster = MODELS["llama3-8b"], eos(8)
    plain = Layout(recomputation="none")
    flash = plain.replace(flash_attention=True)
    before, after = (layer_seconds(model, cluster, layout) for layout in (plain, flash))
    scores = model.heads * model.sequence**2
    bandwidth = cluster.chip.memory_bytes_per_second * RATES.memory_share
    saved = (sum(before["element-wise"]) - sum(after["element-wise"])) * bandwidth
    assert saved == pytest.approx(10 * scores)  # softmax: 4 bytes forward and 6 backward; no dropout
    assert sum(after["attention"]) == pytest.approx(3.5 / 3 * sum(before["attention"]))
    kept, freed = (rank_bytes(model, layout, 1).activations for layout in (plain, flash))
    assert kept - freed == pytest.approx(model.layers * 2 * scores)
