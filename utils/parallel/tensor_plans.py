"""Plans with which PyTorch's own tensor parallelism, DTensor, cuts the course's Llama as `tensor` does.

    mesh = init_device_mesh("cpu", (4,))
    parallelize_module(model, mesh, sequence_parallel_plan(model.config, tensor=4))

A plan is a dict from the names of modules to styles, one line per cut. All three plans give the same numbers and
differ in what they send; `tests/parallel/test_tensor_plans.py` counts it. They are for models without biases, learned
positions and dropout, as Llama is.
"""

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import Parameter

from utils.parallel.tensor_ops import piece_of
from utils.theory.activations import check_tensor


def naive_plan(config, tensor):
    """Columns first, rows second, one line per matrix; the vocabulary stays whole.

    Each column-parallel matrix turns the gradient of its own input into a whole one, so a block's backward pass makes
    five all-reduces of b·s·h elements where Megatron makes two.
    """
    return _every_layer(config, _matrices(config, tensor))


def prepared_plan(config, tensor):
    """As `naive_plan`, but the matrices that share an input also share one all-reduce of its gradient.

    `PrepareModuleInput` makes x a replicated DTensor once, before the matrices use it: two all-reduces each way.
    """
    once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return _every_layer(config, _matrices(config, tensor) | {"attention": once, "feed_forward": once})


def sequence_parallel_plan(config, tensor):
    """The plan of PyTorch's tutorial: sequence parallel between the matrices, the vocabulary cut at both ends.

    The logits stay cut, (b, s, V/t): compute the loss and its backward pass inside `loss_parallel()`.
    """
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    matrices = _matrices(config, tensor, out=Shard(1))
    norms = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return _every_layer(config, matrices | norms | {"attention": gather, "feed_forward": gather}) | {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }


class SharedHeads(ParallelStyle):
    """For wk and wv with fewer heads than ranks, which `ColwiseParallel` would cut in the middle of a head.

    Every rank holds the whole matrix, computes all `kv_heads` heads and goes on with the one that its queries use. So
    its gradient is a part of the whole one: `Partial`, which DTensor sums when somebody asks for it.
    """

    def __init__(self, kv_heads):
        super().__init__()
        self.kv_heads = kv_heads

    def _apply(self, module, device_mesh):
        def hold_whole(_, module, mesh):
            for name, parameter in module.named_parameters(recurse=False):
                module.register_parameter(name, Parameter(distribute_tensor(parameter, mesh, [Replicate()])))

        def enter(module, inputs, mesh):
            (x,) = inputs
            return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()], run_check=False)

        def keep_own(module, output, mesh):
            heads = output.to_local(grad_placements=[Partial()]).chunk(self.kv_heads, dim=-1)
            return heads[piece_of(self.kv_heads, mesh.get_group())]

        return distribute_module(module, device_mesh, hold_whole, enter, keep_own)


def _matrices(config, tensor, out=None):
    """The cuts of one layer's matrices; `out` is the layout of the residual stream, replicated by default."""
    check_tensor(config, tensor)
    shared = config.kv_heads < tensor
    rows = RowwiseParallel(output_layouts=Replicate() if out is None else out)
    plan = {
        "attention.wq": ColwiseParallel(),
        "attention.wk": SharedHeads(config.kv_heads) if shared else ColwiseParallel(),
        "attention.wv": SharedHeads(config.kv_heads) if shared else ColwiseParallel(),
        "attention.wo": rows,
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": rows,
    }
    return plan | ({"feed_forward.w3": ColwiseParallel()} if config.activation == "swiglu" else {})


def _every_layer(config, plan):
    return {f"layers.{layer}.{name}": style for layer in range(config.layers) for name, style in plan.items()}
