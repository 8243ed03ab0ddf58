import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from utils.parallel.activations import Saved, saved_bytes, saved_tensors
from utils.parallel.resnet import resnet18
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
