import math

import pytest
import torch
from torch import nn

from utils.parallel.resnet import resnet18
from utils.theory.resnet import resnet18_convolutions, resnet18_parameters


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return resnet18()


def test_parameter_count_is_the_published_one(model):
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 == resnet18_parameters()


def test_each_stage_has_its_parameters(model):
    counts = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    assert counts == {"conv1": 9_408, "bn1": 128, "relu": 0, "maxpool": 0, "layer1": 147_968, "layer2": 525_568,
                      "layer3": 2_099_712, "layer4": 8_393_728, "avgpool": 0, "fc": 513_000}


def test_names_are_those_of_torchvision(model):
    names = set(model.state_dict())
    assert len(names) == 122
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
            "layer2.0.downsample.1.num_batches_tracked", "layer4.1.bn2.bias", "fc.weight", "fc.bias"} <= names
    assert not any(name.startswith("layer1.0.downsample") for name in names)


def test_convolutions_are_those_of_the_table(model):
    made = [(c.in_channels, c.out_channels, c.kernel_size[0], c.stride[0]) for c in model.modules() if isinstance(c, nn.Conv2d)]
    assert made == [(c.inputs, c.outputs, c.kernel, c.stride) for c in resnet18_convolutions()]


@pytest.mark.parametrize("size, classes", [(224, 1000), (64, 10), (33, 3)])
def test_images_become_logits(size, classes):
    assert resnet18(classes)(torch.randn(2, 3, size, size)).shape == (2, classes)


def test_sizes_inside_halve_as_in_the_paper(model):
    seen = {}
    handles = [child.register_forward_hook(lambda module, args, out, name=name: seen.__setitem__(name, tuple(out.shape)))
               for name, child in model.named_children() if name not in ("relu",)]
    model(torch.randn(1, 3, 224, 224))
    for handle in handles:
        handle.remove()
    assert seen["conv1"] == (1, 64, 112, 112)
    assert [seen[f"layer{i}"] for i in (1, 2, 3, 4)] == [(1, 64, 56, 56), (1, 128, 28, 28), (1, 256, 14, 14), (1, 512, 7, 7)]


def test_convolutions_start_with_fan_out_variance(model):
    weight = model.layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-4)


def test_norms_start_as_the_identity(model):
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        assert torch.equal(norm.weight, torch.ones_like(norm.weight)) and torch.equal(norm.bias, torch.zeros_like(norm.bias))


def test_every_relu_works_in_place(model):
    assert all(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))


def test_every_parameter_gets_a_gradient():
    model = resnet18(classes=4)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
