"""Count the activations: the bytes that autograd keeps between the forward and the backward pass; and keep fewer.

>>> layer = torch.nn.Linear(3, 5, bias=False)
>>> x = torch.randn(2, 3)
>>> saved_bytes(lambda: layer(x), exclude=layer)        # the layer keeps its input: 2 × 3 × 4 bytes
24

A block of `utils.parallel.model` in bf16 keeps, tensor by tensor, what `utils.theory.activations` counts, and a few small
tensors more; with fake tensors a block of any size can be counted:

>>> terms = saved_terms(block, x)                       # doctest: +SKIP
>>> recompute(model, "full")                            # doctest: +SKIP
"""
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


@dataclass(frozen=True)
class Saved:
    """One stretch of memory that autograd keeps. `shape` and `dtype` are those of the first tensor that asked for it;
    `n_bytes` is the whole stretch, since a view keeps all of it alive."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    n_bytes: int


def saved_tensors(forward: Callable[[], object], exclude: torch.Tensor | torch.nn.Module | Iterable = ()) -> list[Saved]:
    """Run `forward()` and list what autograd keeps for the backward pass, in order of first use.

    forward  a function without arguments, usually `lambda: loss_fn(model(x), y)`
    exclude  what is not to be counted: a module (its parameters and buffers), a tensor, or several of these

    Tensors that share a storage are one entry: an in-place ReLU and the convolution behind it keep the same memory.
    Of a sharded tensor (DTensor) the local part counts. Works under `FakeTensorMode`, where nothing is allocated, and on
    any device. Memory that a kernel uses only while it runs is not seen, nor is what `torch.utils.checkpoint` drops.
    Raises TypeError for anything else in `exclude`.
    """
    ignored = {_storage(part) for tensor in tensors_of(exclude) for part in _plain(tensor)}
    kept: dict[StorageWeakRef, Saved] = {}

    def keep(tensor):
        for part in _plain(tensor):
            storage = _storage(part)
            if storage not in ignored:
                kept.setdefault(storage, Saved(tuple(part.shape), part.dtype, part.untyped_storage().nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return list(kept.values())


def saved_bytes(forward: Callable[[], object], exclude: torch.Tensor | torch.nn.Module | Iterable = ()) -> int:
    """The bytes of `saved_tensors(forward, exclude)` together."""
    return sum(saved.n_bytes for saved in saved_tensors(forward, exclude))


@dataclass(frozen=True)
class Term:
    """Tensors of one origin that autograd keeps: `name` says which, `count` how many there are, `shape` the first one's."""
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    count: int
    n_bytes: int


def saved_terms(module: torch.nn.Module, *inputs: torch.Tensor) -> list[Term]:
    """Run `module(*inputs)` and name what autograd keeps, in order of first use; parameters are left out.

    A tensor is called after the submodule that keeps or made it: "input of attention.wo", "output of attention.wq",
    "statistics of ffn_norm", "mask of dropout"; what an operator between submodules made, after that operator: "output of
    attention.softmax". A copy has its original's name. The names are those of
    `utils.theory.activations.layer_activation_terms`; the bytes add up to `saved_bytes`.
    """
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]  # as in the middle of a model
    names, ignored = _Names(module), {_storage(tensor) for tensor in tensors_of(module)}
    found: dict[StorageWeakRef, Term] = {}

    def keep(tensor):
        storage = _storage(tensor)
        if storage not in ignored and storage not in found:
            n_bytes = tensor.untyped_storage().nbytes()
            found[storage] = Term(names.name_of(storage), tuple(tensor.shape), tensor.dtype, 1, n_bytes)
        return tensor

    with names, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(*inputs)
    del output
    terms: dict[str, Term] = {}
    for term in found.values():
        same = terms.get(term.name, replace(term, count=0, n_bytes=0))
        terms[term.name] = replace(same, count=same.count + 1, n_bytes=same.n_bytes + term.n_bytes)
    return list(terms.values())


# Keep less


def recompute(model: torch.nn.Module, what: str, early_stop: bool = True) -> torch.nn.Module:
    """Let a language model, or one of its blocks, forget activations and compute them again in backward; returns it.

    what        "full": of every block only the input stays; "selective": everything but the attention core (scores,
                softmax, dropout), which must be written out, since the fused kernel keeps no scores; "none": all stays
    early_stop  recompute only up to the last tensor that backward needs, which saves the block's last product, as
                PyTorch does by default; False recomputes the whole block, as the papers count it

    Korthikanti et al. 2022 (arXiv 2205.05198), section 5. Raises ValueError for another `what`, or a fused core.
    """
    if what not in ("none", "selective", "full"):
        raise ValueError(f"recompute takes none, selective or full, but {what!r} was given.")
    for block in [part for part in model.modules() if hasattr(part, "attention") and hasattr(part, "feed_forward")]:
        block.__dict__.pop("forward", None)
        attention = block.attention
        attention.core = getattr(attention.core, "__wrapped__", attention.core)
        if what == "full":
            block.forward = _checkpointed(block.forward, early_stop)
        elif what == "selective":
            if attention.fused:
                raise ValueError(
                    "Selective recomputation forgets the attention scores, but this model's fused attention never keeps "
                    'them. Build it with fused=False, or pass "full".'
                )
            attention.core = _checkpointed(attention.core, early_stop)
    return model


def _checkpointed(function, early_stop):
    @functools.wraps(function)
    def run(*args):
        with set_checkpoint_early_stop(early_stop):
            return checkpoint(function, *args, use_reentrant=False)
    return run


def flops_of(step: Callable[[], object]) -> int:
    """Floating point operations of the matrix products in `step()`: forward, backward, recomputation, all that runs.

    Counts shapes, so fake tensors will do. Causal attention counts in full, as in the papers; the fused kernel's backward
    computes the scores again, which is counted.
    """
    aten = torch.ops.aten  # PyTorch's counter knows the fused kernels of GPUs only
    fused = {aten._scaled_dot_product_flash_attention_for_cpu:
             lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(q, k, v),
             aten._scaled_dot_product_flash_attention_for_cpu_backward:
             lambda gradient, q, k, v, *_, out_shape=None, **__: sdpa_backward_flop_count(gradient, q, k, v)}
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        step()
    return counter.get_total_flops()


def tensors_of(things: torch.Tensor | torch.nn.Module | Iterable) -> Iterator[torch.Tensor]:
    """All tensors of what `exclude` takes: tensors, modules (their parameters and buffers), and several of these."""
    if isinstance(things, torch.Tensor):
        yield things
    elif isinstance(things, torch.nn.Module):
        yield from things.parameters()
        yield from things.buffers()
    elif isinstance(things, Iterable):
        for thing in things:
            yield from tensors_of(thing)
    else:
        raise TypeError(f"exclude takes tensors and modules, but {things!r} was given. Pass for example exclude=(model, x).")


def _plain(tensor):
    """The tensors that hold the memory: the tensor itself, or what a wrapper such as a DTensor wraps."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    attributes = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [part for attribute in attributes if isinstance(attribute, torch.Tensor) for part in _plain(attribute)]


def _storage(tensor):
    """A key that stays unique as long as we hold it, even after the memory is freed."""
    return StorageWeakRef(tensor.untyped_storage())


_COPIES = ("clone", "_to_copy", "copy_", "repeat_interleave", "index_select")
"""Operators whose output is their first input again, elsewhere, wider or in another dtype."""

_PLAIN = {"_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention", "cat": "rotate", "triu": "future"}
"""What the model calls the operators whose own name says little."""


class _Names(TorchDispatchMode):
    """Remember for each stretch of memory which submodule was running, and which operator wrote it."""

    def __init__(self, module):
        super().__init__()
        self.names = {part: name for name, part in module.named_modules()}
        self.running, self.made_by, self.hooks = [], {}, []

    def __enter__(self):
        for part in self.names:
            self.hooks.append(part.register_forward_pre_hook(lambda part, _: self.running.append(part)))
            self.hooks.append(part.register_forward_hook(self._leave, always_call=True))
        return super().__enter__()

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*error)

    def _leave(self, *_):
        self.running.pop()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = operator.__name__.split(".")[0]
        module = self.running[-1] if self.running else None
        origin = module, name, 0
        if name in _COPIES:
            origin = self.made_by.get(_storage(args[0]), (None, "", 0))
        for position, tensor in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if isinstance(tensor, torch.Tensor):
                self.made_by.setdefault(_storage(tensor), origin if position == 0 else (module, name, position))
        return result

    def name_of(self, storage):
        """The name of a tensor that the running module keeps now."""
        keeper = self.running[-1]
        maker, operator, position = self.made_by.get(storage, (None, "", 0))
        kind, what = "output", self.names.get(maker, "")
        if position > 0:
            kind = "mask" if "dropout" in operator else "statistics"
        elif maker is None or (maker is not keeper and _is_leaf(keeper)):
            kind, what = "input", self.names[keeper]
        elif maker is keeper or not _is_leaf(maker):
            what = f"{what}.{_PLAIN.get(operator, operator.strip('_'))}".strip(".")
        return f"{kind} of {what or 'the module'}"


def _is_leaf(module):
    return next(module.children(), None) is None
