"""Training state, what fits, fine-tuning, offload, and ResNet-18's accounting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.hardware import CHIPS, Chip
from utils.theory.memory import (
    NF4_BYTES_PER_PARAMETER,
    RECIPES,
    Recipe,
    as_gib,
    checkpoint_file_bytes,
    copies_of_parameters,
    data_parallel_bytes,
    fused_buffer_bytes,
    largest_model,
    lora_parameters,
    lora_state,
    parameter_server_worker_bytes,
    peak_training_state,
    smallest_stage_that_fits,
    training_state,
    training_state_bytes,
    zero2_offload,
    zero3_offload,
)
from utils.theory.presets import MODELS
from utils.theory.resnet import (
    resnet18_convolutions,
    resnet18_output_bytes,
    resnet18_parameters,
    resnet18_saved_bytes,
    resnet18_summary_bytes,
)
from utils.theory.units import GB, GiB

recipes = st.sampled_from(sorted(RECIPES))
parameters = st.floats(1, 1e13)


@given(parameters, recipes, st.integers(0, 3), st.integers(1, 4096), st.integers(1, 4096))
def test_memory_never_rises_with_more_shards_or_a_higher_stage(count, recipe, stage, n, more):
    here = training_state_bytes(count, recipe, stage, n)
    assert training_state_bytes(count, recipe, stage, n + more) <= here
    if stage < 3:
        assert training_state_bytes(count, recipe, stage + 1, n) <= here


@given(parameters, recipes, st.integers(1, 4096))
def test_stage_3_is_everything_over_n_and_stage_0_is_everything(count, recipe, n):
    whole = RECIPES[recipe].bytes_per_parameter * count
    assert training_state_bytes(count, recipe, 0, n) == pytest.approx(whole)
    assert training_state_bytes(count, recipe, 3, n) == pytest.approx(whole / n)


@given(st.floats(1e9, 1e12), recipes, st.integers(0, 3), st.integers(1, 4096))
def test_the_largest_model_just_fits(memory_bytes, recipe, stage, n):
    largest = largest_model(memory_bytes, recipe, stage, n)
    assert training_state_bytes(largest, recipe, stage, n) == pytest.approx(memory_bytes)


def test_bytes_per_parameter_of_each_recipe():
    each = {name: recipe.bytes_per_parameter for name, recipe in RECIPES.items()}
    assert each == {
        "fp32 sgd": 8,
        "fp32 momentum": 12,
        "fp32 adam": 16,
        "mixed adam": 16,
        "mixed adam, fp32 gradients": 18,
        "mixed adam, both gradients": 20,
    }


def test_seven_billion_parameters_on_eight_gpus():
    per_stage = [training_state_bytes(7e9, stage=stage, world_size=8) / GB for stage in range(4)]
    assert per_stage == [112, 38.5, 26.25, 14]


def test_parts_are_sharded_one_stage_after_the_other():
    state = training_state(16, stage=2, world_size=4)
    assert (state.parameters, state.gradients, state.optimizer) == (32, 8, 48)
    assert state.total_bytes == 88


def test_an_own_recipe():
    assert training_state_bytes(10, Recipe(1, 2, 3), stage=1, world_size=3) == 10 + 20 + 10


def test_the_lowest_stage_that_fits():
    assert smallest_stage_that_fits(1e9, 80 * GB, 8) == 0
    assert smallest_stage_that_fits(7e9, 80 * GB, 8) == 1
    assert smallest_stage_that_fits(7e9, 30 * GB, 8) == 2
    assert smallest_stage_that_fits(7e9, 14 * GB, 8) == 3
    assert smallest_stage_that_fits(7e9, 13 * GB, 8) is None


def test_gpt3_does_not_fit_by_data_parallelism():
    assert 4 * 175e9 == 700 * GB
    assert training_state_bytes(175e9, "fp32 adam") == 2800 * GB
    assert training_state_bytes(175e9, "mixed adam, fp32 gradients") == 3150 * GB
    assert training_state_bytes(175e9, "mixed adam, both gradients") == 3500 * GB


def test_data_parallel_memory_falls_only_by_its_activations():
    assert [copies_of_parameters(optimizer) for optimizer in ("sgd", "momentum", "adam")] == [2, 3, 4]
    assert data_parallel_bytes(100, 10, batch=64, world_size=8) == 4 * 4 * 100 + 8 * 10
    assert data_parallel_bytes(100, 10, batch=65, world_size=8, optimizer="sgd") == 2 * 4 * 100 + 9 * 10
    assert parameter_server_worker_bytes(100) == 800


def test_buffers_and_checkpoints():
    assert fused_buffer_bytes(1.5e9) == 6 * GB
    assert fused_buffer_bytes(3e9) == 12 * GB
    assert checkpoint_file_bytes(1.008e12) == pytest.approx(13.8e12, rel=0.03)


def test_peaks_are_shards_and_one_part_whole():
    layers = [30, 10, 20]
    resting = training_state(60, stage=3, world_size=4)
    peak = peak_training_state(layers, stage=3, world_size=4)
    assert peak.parameters == resting.parameters + 2 * 30
    assert peak.gradients == resting.gradients + 2 * 30
    assert peak.optimizer == resting.optimizer
    packed = peak_training_state(layers, stage=2, world_size=4, gradient_copies=2)
    assert packed.parameters == 2 * 60
    assert packed.gradients == 2 * 60 / 4 + 2 * 2 * 30
    for stage in (0, 1):
        assert peak_training_state(layers, stage=stage, world_size=4) == training_state(60, stage=stage, world_size=4)
    with pytest.raises(ValueError, match="at least one item"):
        peak_training_state([])


def test_lora_and_qlora():
    llama = MODELS["llama2-7b"]
    assert lora_parameters(llama, rank=8) == 4_194_304
    assert lora_parameters(llama, rank=8, targets=("query", "key", "value", "output", "mlp")) == 19_988_480
    assert pytest.approx(4.127 / 8, abs=1e-4) == NF4_BYTES_PER_PARAMETER
    state = lora_state(7e9, 4e6)
    assert state.total_bytes == 2 * 7e9 + 16 * 4e6
    assert lora_state(7e9, 4e6, NF4_BYTES_PER_PARAMETER).total_bytes < 4 * GB


def test_lora_counts_the_real_matrices():
    torch = pytest.importorskip("torch")
    llama = MODELS["llama3-8b"]
    kv, rank = llama.kv_hidden, 16
    with torch.device("meta"):
        adapters = [
            torch.nn.Linear(inputs, rank, bias=False).weight.numel()
            + torch.nn.Linear(rank, outputs, bias=False).weight.numel()
            for inputs, outputs in ((llama.hidden, kv), (llama.hidden, llama.hidden))
        ]
    assert lora_parameters(llama, rank, ("key", "output")) == llama.layers * sum(adapters)


def test_deepspeeds_estimators():
    # T5-3B, one node of 8 GPUs: the example of DeepSpeed's documentation, in GiB per CPU and GPU.
    count, layer = 2851e6, 32e6
    printed = {(True, True): (71.7, 0.12), (False, True): (63.7, 0.78), (False, False): (1.43, 6.09)}
    for (parameters_too, optimizer), (cpu, gpu) in printed.items():
        result = zero3_offload(
            count, layer, 8, offload_parameters=parameters_too, offload_optimizer=optimizer
        )
        assert as_gib(result.cpu_bytes) == pytest.approx(cpu, abs=0.05)
        assert as_gib(result.gpu_bytes) == pytest.approx(gpu, abs=0.011)
        built_whole = zero3_offload(
            count,
            layer,
            8,
            offload_parameters=parameters_too,
            offload_optimizer=optimizer,
            sharded_construction=False,
        )
        assert as_gib(built_whole.cpu_bytes) == pytest.approx(127.45, abs=0.05)
    assert as_gib(zero2_offload(count, 8).gpu_bytes) == pytest.approx(5.31, abs=0.005)
    assert as_gib(zero2_offload(count, 8).cpu_bytes) == pytest.approx(127.45, abs=0.005)
    assert zero2_offload(count, 2).cpu_bytes == 1.5 * 16 * count
    assert as_gib(zero2_offload(count, 8, cpu_optimizer=False).gpu_bytes) == pytest.approx(15.93, abs=0.005)


def test_nvme_takes_what_main_memory_would():
    on_cpu = zero3_offload(1e12, 1e9, 8, nodes=4)
    on_nvme = zero3_offload(1e12, 1e9, 8, nodes=4, nvme=True)
    assert on_nvme.nvme_bytes == 18e12 / 4
    assert on_nvme.gpu_bytes == on_cpu.gpu_bytes
    assert on_nvme.cpu_bytes < on_cpu.cpu_bytes


# ResNet-18


def torch_resnet18(nn):
    """The convolutions and norms of ResNet-18, and its linear layer."""
    parts = []
    for layer in resnet18_convolutions():
        padding = layer.kernel // 2
        parts += [nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, padding, bias=False)]
        parts += [nn.BatchNorm2d(layer.outputs)]
    return nn.ModuleList([*parts, nn.Linear(512, 1000)])


def test_resnet18_has_the_published_parameters():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        net = torch_resnet18(torch.nn)
    assert sum(each.numel() for each in net.parameters()) == resnet18_parameters() == 11_689_512
    assert len(resnet18_convolutions()) == 20


def test_every_convolutions_size_follows_from_its_input():
    torch = pytest.importorskip("torch")
    for layer in resnet18_convolutions():
        padding = layer.kernel // 2
        with torch.device("meta"):
            convolution = torch.nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, padding)
            rows = layer.size * layer.stride
            output = convolution(torch.empty(1, layer.inputs, rows, rows))
        assert output.numel() == layer.output_elements


def test_resnet18_activations_as_quoted_and_as_kept():
    assert 2 * resnet18_output_bytes() / 1e6 == pytest.approx(39.75, abs=0.005)
    assert resnet18_summary_bytes(512) / GB == pytest.approx(20.85, abs=0.005)
    assert resnet18_saved_bytes() / 1e6 == pytest.approx(22.2, abs=0.05)
    assert resnet18_saved_bytes(512) == 512 * resnet18_saved_bytes()
    assert resnet18_saved_bytes(512) / GB == pytest.approx(11.4, abs=0.05)
    assert 4 * 4 * resnet18_parameters() / 1e6 == pytest.approx(187, abs=0.5)


def test_resnet18_saved_tensors_are_those_that_autograd_keeps():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    size, batch = 64, 2
    convolutions = resnet18_convolutions(size)
    shapes = [(each.outputs, each.inputs, each.kernel, each.kernel) for each in convolutions]
    kernels = [torch.randn(shape, requires_grad=True) for shape in shapes]
    scales = [torch.ones(shape[0], requires_grad=True) for shape in shapes]
    head = torch.randn(1000, 512, requires_grad=True)
    parameter_storages = {each.untyped_storage().data_ptr() for each in (*kernels, *scales, head)}
    saved, kept = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        # One number per channel (the norms' statistics) is not an activation.
        if tensor.dim() > 1 and storage.data_ptr() not in parameter_storages:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    def block(index, x):
        layer, scale = convolutions[index], scales[index]
        x = functional.conv2d(x, kernels[index], stride=layer.stride, padding=layer.kernel // 2)
        return functional.batch_norm(x, None, None, scale, torch.zeros_like(scale), training=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x = functional.relu_(block(0, torch.randn(batch, 3, size, size)))
        x = functional.max_pool2d(x, 3, 2, 1)
        index = 1
        while index < len(convolutions):
            shrinks = convolutions[index].stride == 2
            out = block(index + 1, functional.relu_(block(index, x)))
            shortcut = block(index + 2, x) if shrinks else x
            x = functional.relu_(out + shortcut)
            index += 3 if shrinks else 2
        functional.linear(x.mean(dim=(2, 3)), head)
    assert sum(saved.values()) == resnet18_saved_bytes(batch, size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: training_state_bytes(-7e9), ["parameters", "-7000000000.0"]),
        (lambda: training_state_bytes(7e9, stage=4), ["stage", "4", "0, 1, 2, 3"]),
        (lambda: training_state_bytes(7e9, "fp64 adam"), ["recipe", "'fp64 adam'", "'mixed adam'"]),
        (lambda: training_state_bytes(7e9, stage=1, world_size=0), ["world_size", "0"]),
        (lambda: largest_model(80), ["memory_bytes", "80", "GB", "GiB"]),
        (lambda: smallest_stage_that_fits(7e9, 80, 8), ["memory_bytes", "80", "GiB"]),
        (lambda: Chip("mine", 80, 2e12, {"fp16": 1e12}), ["memory_bytes", "80", "80 * GiB"]),
        (lambda: CHIPS["V100-32GB"].peak("fp8"), ["dtype", "'fp8'", "'fp16'"]),
        (lambda: copies_of_parameters("lion"), ["optimizer", "'lion'", "'adam'"]),
        (lambda: data_parallel_bytes(1e6, -1, 8, 2), ["activation_bytes_per_sample", "-1"]),
        (lambda: lora_parameters(MODELS["llama2-7b"], 8, ("q",)), ["targets", "'q'", "'query'"]),
        (lambda: lora_parameters(MODELS["llama2-7b"], 0), ["rank", "0"]),
        (lambda: zero3_offload(1e9, 2e9, 8), ["largest_layer_parameters", "at most parameters"]),
        (lambda: zero3_offload(1e9, 1e8, 8, offload_optimizer=False), ["offload_parameters", "False"]),
        (lambda: resnet18_parameters() and resnet18_output_bytes(1, 100), ["image_size", "100", "32"]),
        (lambda: Recipe(0, 1, 1), ["parameters", "0"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_80_gib_is_7_percent_more_than_80_gb():
    assert 80 * GiB / (80 * GB) == pytest.approx(1.074, abs=0.001)
