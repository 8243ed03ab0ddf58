"""Every public function of `utils.theory` answers a wrong number, a wrong name or a missing list with a sentence."""

import dataclasses
import importlib
import inspect
import math
import pkgutil

import pytest

import utils.theory
from utils.theory.grid import Layout
from utils.theory.hardware import selene
from utils.theory.link import Link
from utils.theory.pipeline import build
from utils.theory.presets import MODELS

LINK = Link(1e-6, 1e9)
#: A valid value for each argument that has no default, by its name.
VALID = {
    "model": MODELS["gpt3-175b"], "cluster": selene(64), "layout": Layout(tensor=8, pipeline=8, micro_batch=1),
    "link": LINK, "intra": LINK, "inter": LINK, "schedule": build("1f1b", 4, 8), "algorithm": "ring",
    "collective": "all_reduce", "strategy": "full shard", "name": "1f1b", "dimension": "tensor", "cut_a": "columns",
    "cut_b": "rows", "optimizer": "adam", "parts": [1e9], "sizes": {"tensor": 2, "data": 4}, "batch": 64,
    "elements": 1000, "world_size": 8, "n_bytes": 1e6, "seconds": 1.0, "gpus": 8, "peak_flops_per_second": 1e12,
    "flops": 1e12, "tokens": 1e9, "flops_per_second_per_gpu": 1e12, "parameters": 1e9, "pipeline": 4, "micro_batches": 8,
    "tensor": 2, "micro_batch": 1, "gpus_per_node": 8, "nodes": 2, "workers": 4, "model_bytes": 1e9, "gpus_per_host": 8,
    "ranks": 8, "context": 2, "flops_per_second": 1e12, "bytes_per_second": 1e9, "experts": 8, "expert": 2, "rank": 0,
    "hidden": 12288, "heads": 96, "layers": 96, "layer_input_bytes": 1e6, "layer_inner_bytes": 1e7, "memory_bytes": 80e9,
    "activation_bytes_per_sample": 1e6, "base_parameters": 1e9, "adapter_parameters": 1e6, "largest_block": 1e8,
    "largest_parameter": 1e7, "largest_layer_parameters": 1e8, "y_elements": 100, "z_elements": 100, "pipeline_rank": 0,
}  # fmt: skip
#: What is no number, no name and no list; a list is wrong where a number is wanted.
WRONG = [math.nan, math.inf, -1, "no such", [], 10**400, object()]
#: Arguments that are objects of the package, tables that only the package fills, or switches that any value turns.
NOT_ASKED = {"model", "cluster", "layout", "link", "intra", "inter", "schedule", "rates", "costs", "sizes"}
SWITCHES = {
    "sequence_parallel", "flash_attention", "recompute", "extras", "fine_tune", "scatter_gather", "parallel",
    "cpu_optimizer", "offload_parameters", "offload_optimizer", "sharded_construction", "overlap_gradients", "nvme",
}  # fmt: skip


def public_functions():
    for _, module, _ in pkgutil.iter_modules(utils.theory.__path__, "utils.theory."):
        if module.rpartition(".")[2] in ("papers", "arguments"):
            continue
        for name, value in vars(importlib.import_module(module)).items():
            if inspect.isfunction(value) and value.__module__ == module and not name.startswith("_"):
                yield pytest.param(value, id=f"{module.rpartition('.')[2]}.{name}")


def arguments_of(function):
    """Valid arguments, and the names of those to try; None if `VALID` lacks one."""
    parameters = inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    needed = [each.name for each in named if each.default is each.empty]
    if not set(needed) <= set(VALID):
        return None
    return {name: VALID[name] for name in needed}, [each for each in named if each.name not in NOT_ASKED | SWITCHES]


@pytest.mark.parametrize("function", list(public_functions()))
def test_a_wrong_argument_is_a_sentence(function):
    if (found := arguments_of(function)) is None:
        pytest.skip("an argument without a valid example")
    valid, asked = found
    try:
        function(**valid)
    except ValueError:
        pytest.skip("the examples do not fit together")
    for argument in asked:
        for wrong in WRONG:
            try:
                came = function(**{**valid, argument.name: wrong})
            except ValueError as refused:
                assert str(refused).rstrip(".)") and len(str(refused)) > 20, (argument.name, wrong)
            else:
                assert wrong not in ("no such",) and wrong == wrong, (argument.name, wrong)
                assert not isinstance(came, float) or math.isfinite(came), (argument.name, wrong)


def test_dataclasses_refuse_them_too():
    for kind, valid in ((Layout, {}), (Link, {"alpha_seconds": 1e-6, "bandwidth_bytes_per_second": 1e9})):
        for field in dataclasses.fields(kind):
            if field.name in SWITCHES:
                continue
            for wrong in (math.nan, -1, "no such", 10**400):
                with pytest.raises(ValueError, match="must"):
                    kind(**{**valid, field.name: wrong})
