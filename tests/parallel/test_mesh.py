"""A 2×2×2 world trains the language model as one process does; each dimension sends what the formulas say."""
import pytest
import torch
import torch.distributed as dist

from utils import launch
from utils.parallel.mesh import Training3D, make_mesh, shard_with_tensor_parallel
from utils.parallel.model import LanguageModel
from utils.theory.layout import Layout, coordinates, groups
from utils.theory.layout_traffic import rank_elements, rank_parameters
from utils.theory.models import Transformer

BATCH, STEPS, VOCAB = 8, 10, 20
CUBE = Layout(tensor=2, pipeline=2, data=2, micro_batch=1)


def tiny(**others):
    settings = dict(layers=4, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=VOCAB, sequence=6, activation="swiglu", tied=False)
    return Transformer(**settings | others)


def batches(config):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(config.vocab, (BATCH, config.sequence + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3)  # a large eps: near 0, g/|g| would enlarge rounding


def in_one_process(config):
    model = LanguageModel(config, dtype=torch.float64)
    optimizer = adam(model.parameters())
    losses = []
    for tokens, targets in batches(config):
        loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def trains(config, layout):
    training = Training3D(config, layout, BATCH, adam, dtype=torch.float64)
    losses = [training.step(*batch) for batch in batches(config)]
    weights = {name: parameter.detach().clone() for chunk in training.chunks for name, parameter in chunk.named_parameters()}
    return losses, weights


def same_weights(weights, whole, tensor, rank_in_tensor):
    """Each parameter is the whole one, or its part along the one dimension that is shorter."""
    for name, mine in weights.items():
        expected = whole[name] if name in whole else whole["tok_embeddings.weight"]
        for dim, (small, large) in enumerate(zip(mine.shape, expected.shape)):
            if small < large:
                expected = expected.chunk(tensor, dim)[rank_in_tensor]
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("layout, settings", [
    (CUBE, {}),
    (CUBE, dict(tied=True)),
    (CUBE.replace(sequence_parallel=True, zero_stage=1), {}),
    (CUBE.replace(schedule="zb-h1"), {}),
    (Layout(tensor=2, pipeline=2, data=2, schedule="interleaved 1f1b", chunks=2, zero_stage=1), dict(tied=True)),
    (CUBE.replace(order=("data", "context", "pipeline", "tensor")), {}),
    (Layout(tensor=1, pipeline=4, data=2, micro_batch=2), {}),
], ids=["cube", "tied", "sequence parallel, ZeRO-1", "zb-h1", "interleaved, tied, ZeRO-1", "data innermost", "no tensor"])
def test_ten_steps_equal_one_process(layout, settings):
    config = tiny(**settings)
    losses, whole = in_one_process(config)
    run = launch(trains, config, layout, world_size=layout.world_size, echo=False, timeout=120)
    for rank, (mine, weights) in enumerate(run.results):
        assert mine == pytest.approx(losses, rel=1e-9)
        same_weights(weights, whole, layout.tensor, coordinates(rank, layout.sizes)["tensor"])


def one_step(config, layout):
    training = Training3D(config, layout, BATCH, dtype=torch.float64)
    dist.barrier()
    training.step(*next(batches(config)))
    return sum(parameter.numel() for parameter in training.chunks.parameters())


@pytest.mark.parametrize("layout", [
    CUBE,
    CUBE.replace(zero_stage=1),
    CUBE.replace(schedule="interleaved 1f1b", chunks=2),
    CUBE.replace(schedule="zb-v"),
    Layout(tensor=2, pipeline=4),
    Layout(tensor=4, data=2, micro_batch=2),
], ids=["cube", "ZeRO-1", "interleaved", "zb-v", "p = 4", "no pipeline"])
def test_each_dimension_sends_what_the_formulas_say(layout):
    config, layout = tiny(kv_heads=4), layout.replace(recomputation="none")
    run = launch(one_step, config, layout, world_size=8, echo=False, timeout=120)
    calls = run.calls()
    calls = calls[calls.elements > 1]  # the loss is one number
    for rank, parameters in enumerate(run.results):
        stage, own = coordinates(rank, layout.sizes)["pipeline"], calls[calls["rank"] == rank]
        assert parameters == rank_parameters(config, layout, stage)
        expected = rank_elements(config, layout, BATCH, stage, parameters)
        expected["tensor"] += expected.pop("loss")
        for dimension, elements in expected.items():
            group = next(ranks for ranks in groups(dimension, layout.sizes) if rank in ranks)
            sent = own[own.group == ",".join(map(str, group))].sent_bytes.sum() / 8
            assert sent == pytest.approx(elements, rel=1e-12), (rank, dimension)


def mesh_groups(layout):
    mesh = make_mesh(layout)
    return {name: tuple(dist.get_process_group_ranks(mesh[name].get_group())) for name in mesh.mesh_dim_names}


@pytest.mark.parametrize("order", [("tensor", "context", "data", "pipeline"), ("pipeline", "data", "tensor", "context")])
def test_the_mesh_has_the_groups_of_the_theory(order):
    layout = CUBE.replace(order=order)
    run = launch(mesh_groups, layout, world_size=8, echo=False)
    for rank, found in enumerate(run.results):
        for dimension, ranks in found.items():
            assert list(ranks) in groups(dimension, layout.sizes) and rank in ranks


def fsdp_steps(config):
    from torch.distributed.tensor.parallel import loss_parallel
    mesh = make_mesh(Layout(tensor=2, data=2))
    model = shard_with_tensor_parallel(LanguageModel(config, dtype=torch.float64), mesh)
    optimizer = adam(model.parameters())
    losses = []
    rank = mesh["data"].get_local_rank()
    for tokens, targets in batches(config):
        tokens, targets = tokens.chunk(2)[rank], targets.chunk(2)[rank]
        with loss_parallel():
            loss = model.loss(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        loss = loss.detach().clone()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        dist.all_reduce(loss, group=mesh["data"].get_group())
        losses.append(loss.item() / 2)
    return losses


def test_fsdp_with_tensor_parallel_equals_one_process():
    config = tiny()
    losses, _ = in_one_process(config)
    run = launch(fsdp_steps, config, world_size=4, echo=False, timeout=120)
    for mine in run.results:
        assert mine == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("layout, batch, sentence", [
    (CUBE.replace(data=1), 8, "tensor 2 .* is for 4 ranks, but there are 8"),
    (CUBE, 9, "The batch of 9 is not 2 data-parallel ranks"),
    (CUBE.replace(zero_stage=2), 8, "zero_stage must be 0 or 1 under a pipeline"),
    (Layout(tensor=2, context=2, data=2), 8, "but context is 2"),
])
def test_layouts_that_do_not_fit(layout, batch, sentence):
    with pytest.raises(Exception, match=sentence):
        launch(lambda: Training3D(tiny(), layout, batch), world_size=8, echo=False)
