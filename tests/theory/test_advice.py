"""The decision guide: each branch is reached by the models and machines that it is meant for, and says its numbers."""

import re

import pytest

from utils.theory.advice import TECHNIQUES, TOLERANCE, advise, technique_of
from utils.theory.grid import Layout
from utils.theory.hardware import CHIPS, LINKS, Cluster, eos, selene
from utils.theory.layout import plan
from utils.theory.papers.narayanan import ZERO_3_RATES
from utils.theory.presets import MODELS
from utils.theory.throughput import RATES

ONE_A100 = Cluster(1, 1, CHIPS["A100-80GB"], LINKS["nvlink3"], LINKS["infiniband hdr"])
TWO_T4 = Cluster(1, 2, CHIPS["T4"], LINKS["pcie3 x16"], LINKS["ethernet 10"])


@pytest.mark.parametrize("layout, technique", [
    (Layout(), "data parallelism"),
    (Layout(data=8), "data parallelism"),
    (Layout(data=8, zero_stage=1), "sharded data parallelism"),
    (Layout(data=8, tensor=2, zero_stage=1), "tensor and data parallelism"),
    (Layout(pipeline=4), "pipeline and data parallelism"),
    (Layout(tensor=2, pipeline=4, data=2), "tensor, pipeline and data parallelism"),
])
def test_every_layout_has_one_technique(layout, technique):
    assert technique_of(layout) == technique and technique in TECHNIQUES


@pytest.mark.parametrize("name, cluster, batch, technique", [
    ("gpt2-1.5b", ONE_A100, 32, "one GPU"),
    ("gpt2-1.5b", selene(8), 64, "data parallelism"),                           # fits one GPU
    ("llama3-8b", eos(8), 64, "sharded data parallelism"),                      # the state does not fit
    ("narayanan-18.4b", selene(256), 1024, "sharded data parallelism"),
    ("gpt3-175b", selene(1024), 1536, "tensor, pipeline and data parallelism"),
    ("narayanan-1008b", selene(3072), 3072, "tensor, pipeline and data parallelism"),
    ("llama3-405b", eos(8192), 2048, "tensor, pipeline and data parallelism"),
    ("llama3-70b", selene(8), 8, "none"),
])
def test_training(name, cluster, batch, technique):
    assert advise(MODELS[name], cluster, batch).technique == technique


@pytest.mark.parametrize("name, cluster, technique", [
    ("llama3-8b", ONE_A100, "LoRA"),
    ("llama3-70b", ONE_A100, "QLoRA"),
    ("llama3-8b", TWO_T4, "QLoRA"),
    ("narayanan-1008b", selene(3072), "tensor, pipeline and data parallelism"),  # even in 4 bits too large for one GPU
])
def test_fine_tuning_asks_first_for_a_few_added_parameters(name, cluster, technique):
    assert advise(MODELS[name], cluster, batch=3072, fine_tune=True).technique == technique


def test_the_layout_fills_the_cluster_and_fits():
    cluster = selene(1024)
    advice = advise(MODELS["gpt3-175b"], cluster, 1536)
    assert advice.planned.layout.world_size == cluster.gpus
    assert advice.planned.memory.total_bytes <= 0.95 * cluster.chip.memory_bytes


def test_no_simpler_technique_is_within_the_tolerance():
    model, cluster, batch = MODELS["gpt3-175b"], selene(1024), 1536
    advice = advise(model, cluster, batch)
    simpler = TECHNIQUES[: TECHNIQUES.index(advice.technique)]
    assert len(simpler) == 4
    found = plan(model, cluster, batch, flash_attention=True, rates=ZERO_3_RATES).ranked
    times = [each.step.seconds for each in found if technique_of(each.layout) in simpler]
    assert times and min(times) > (1 + TOLERANCE) * found[0].step.seconds


def test_slower_gathers_favour_what_does_not_gather():
    model, cluster, batch = MODELS["llama3-70b"], eos(64), 128
    assert advise(model, cluster, batch, rates=RATES).technique == "sharded data parallelism"
    assert advise(model, cluster, batch).technique == "tensor and data parallelism"


@pytest.mark.parametrize("settings, said", [
    (dict(model=MODELS["llama3-8b"], cluster=eos(8), batch=64),
     r"8\.0 billion parameters on 8 H100-80GB: use sharded data parallelism \(d = 8, .*ZeRO-\d.* since data parallelism does not "
     r"fit in the 81\.6 GB"),
    (dict(model=MODELS["gpt3-175b"], cluster=selene(1024), batch=1536), "cannot share 1,536 sequences among 1,024 ranks"),
    (dict(model=MODELS["gpt2-1.5b"], cluster=selene(8), batch=9), "does not divide the model's heads"),
    (dict(model=MODELS["llama3-70b"], cluster=selene(8), batch=8), "nothing fits .* memory .* so take more GPUs"),
    (dict(model=MODELS["gpt2-1.5b"], cluster=ONE_A100, batch=32), "on one A100-80GB: use one GPU"),
    (dict(model=MODELS["llama3-8b"], cluster=eos(8), batch=64, fine_tune=True), "begin with LoRA.*the 8 GPUs share the batch"),
])
def test_it_is_one_sentence(settings, said):
    sentence = advise(**settings).sentence
    assert re.search(said, sentence), sentence
    assert sentence.endswith(".") and ". " not in sentence
