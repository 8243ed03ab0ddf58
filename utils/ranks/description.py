"""Describe one communication call: what it moves, between whom, and whose line made it."""
import functools
import json
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist

from utils.ranks.definitions import bytes_by_definition
from utils.ranks.places import is_user_file

# operator -> (name of the call, argument that holds the full tensor, argument that holds this rank's part)
OPERATORS = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "output_tensors", "input_tensors"),
    "allgather_coalesced_": ("all_gather", "output_lists", "input_list"),
    "_allgather_base_": ("all_gather", "output_tensor", "input_tensor"),
    "allgather_into_tensor_coalesced_": ("all_gather", "outputs", "inputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "outputs"),
    "gather_": ("gather", "output_tensors", "input_tensors"),
    "scatter_": ("scatter", "input_tensors", "output_tensors"),
    "alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": ("all_to_all", "input", "output"),
    "send": ("send", "tensors", "tensors"),
    "recv_": ("recv", "tensors", "tensors"),
    "recv_any_source_": ("recv", "tensors", "tensors"),
    "barrier": ("barrier", None, None),
    "monitored_barrier_": ("barrier", None, None),
}
# gloo reads these buffers as if they were contiguous: without a check the result is silently wrong
_NEED_CONTIGUOUS = {"all_reduce", "broadcast", "reduce", "scatter"}




def tensors_of(operator: str, arguments: dict) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(full, part): the tensors that the definition's sizes are about, and this rank's own; often the same."""
    _, full_name, part_name = OPERATORS[operator]
    full = _flat(arguments.get(full_name))
    return full, full if part_name == full_name else _flat(arguments.get(part_name))


def _flat(value):
    if isinstance(value, (list, tuple)):
        if len(value) == 1 and isinstance(value[0], torch.Tensor):
            return value
        return [tensor for item in value for tensor in _flat(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def refuse_what_goes_wrong(operator: str, full: list[torch.Tensor], part: list[torch.Tensor]) -> None:
    """Raise ValueError for a tensor that gloo would read wrongly without saying so."""
    op = OPERATORS[operator][0]
    if op not in _NEED_CONTIGUOUS:
        return
    for tensor in full if part is full else full + part:
        if not tensor.is_contiguous() and tensor.layout == torch.strided and tensor.device.type == "cpu":
            raise ValueError(
                f"{op} was given a tensor that is not contiguous (shape {tuple(tensor.shape)}, strides "
                f"{tensor.stride()}). gloo would use the wrong numbers without saying so. "
                "Pass tensor.contiguous() and copy the result back.")


# ---- what the call is, as JSON fields ------------------------------------------------------------------------------

class Description(NamedTuple):
    """What is the same whenever a call is made with such arguments."""
    text: str                # its JSON fields without braces, for `utils.ranks.record`
    op: str                  # "all_reduce", "send", …
    ranks: tuple[int, ...]   # the group's members; of a message its two ends
    n_bytes: int             # of the full tensor


_descriptions: dict[tuple, Description] = {}  # a training step makes the same calls again and again: each is described once
_MOST_DESCRIPTIONS = 10_000
_TELLING_ARGUMENTS = ("root_rank", "dst", "src", "tag", "input_split_sizes", "output_split_sizes")


def describe(operator: str, group: dist.ProcessGroup, arguments: dict, full: list, part: list) -> Description:
    """Describe the call with these arguments of the c10d operator; `tensors_of` gives full and part."""
    key = (operator, group.group_name, *[(tensor.shape, tensor.dtype) for tensor in full], "part",
           *[(tensor.shape, tensor.dtype) for tensor in part if part is not full],
           *[str(arguments[name]) for name in _TELLING_ARGUMENTS if name in arguments])
    description = _descriptions.get(key)
    if description is None:
        if len(_descriptions) >= _MOST_DESCRIPTIONS:
            _descriptions.clear()
        description = _descriptions[key] = _new_description(operator, group, arguments, full, part)
    return description


def forget_descriptions() -> None:
    """For new process groups, which may bear the names of earlier ones."""
    _descriptions.clear()


def _new_description(operator, group, arguments, full, part):
    """Sizes in elements and bytes, peers as global ranks."""
    op = OPERATORS[operator][0]
    ranks = tuple(dist.get_process_group_ranks(group))
    me = dist.get_rank()
    n = len(ranks)
    own = part or full
    elements, n_bytes = sum(tensor.numel() for tensor in full), sum(tensor.nbytes for tensor in full)
    if op in ("gather", "scatter") and not full:  # only the root holds the full tensor
        elements, n_bytes = own[0].numel() * n, own[0].nbytes * n
    root = arguments.get("root_rank")
    peer = arguments.get("dst", arguments.get("src"))
    sent, received = bytes_by_definition(op, n_bytes, n, is_root=root is not None and _member(ranks, root) == me,
                                         parts=_parts(operator, arguments, full, part, ranks.index(me), n))
    fields = {
        "op": op, "group": group.group_name, "ranks": ranks, "elements": elements,
        "dtype": str(own[0].dtype).removeprefix("torch.") if own else "",
        "shape": tuple(own[0].shape) if own else (),
        "sent": sent, "received": received,
        "root": _member(ranks, root), "peer": _member(ranks, peer),
        "tag": arguments.get("tag"),
    }
    ends = ranks if peer is None else (me, _member(ranks, peer))
    return Description(json.dumps(fields)[1:-1], op, ends, n_bytes)


def _member(ranks, index):
    """The global rank of a group's member; one that does not exist keeps its number, for torch to refuse."""
    return ranks[index] if index is not None and 0 <= index < len(ranks) else index


def _parts(operator, arguments, full, part, index, group_size):
    """(sent, received) bytes of an all_to_all without the rank's own part; None for equal parts."""
    if operator == "alltoall_":
        return tuple(float(sum(t.nbytes for i, t in enumerate(tensors) if i != index)) for tensors in (full, part))
    if operator == "alltoall_base_" and (arguments["input_split_sizes"] or arguments["output_split_sizes"]):
        moved = []
        for tensor, splits in ((full[0], arguments["input_split_sizes"]), (part[0], arguments["output_split_sizes"])):
            row_bytes = tensor.nbytes / max(1, tensor.shape[0])
            rows = tensor.shape[0] - splits[index] if splits else tensor.shape[0] * (1 - 1 / group_size)
            moved.append(rows * row_bytes)
        return tuple(moved)
    return None


# ---- whose line made the call, as JSON fields ----------------------------------------------------------------------

def caller(tensors: list[torch.Tensor]) -> str:
    """Where the reader's own code made the call, and what that code calls the first tensor, as JSON fields."""
    frame = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ', "where": null, "label": null'
    label = _names_of(tensors[0], frame.f_locals) if tensors else None
    return _place_and_label(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, label)


@functools.lru_cache(maxsize=10_000)
def _place_and_label(file, line, function, label):
    return f', "where": {json.dumps((file, line, function))}, "label": {json.dumps(label)}'


def _names_of(tensor, variables):
    """The names under which the caller knows the tensor, for example "a" or "grads[2]"; None if it has none."""
    names = [name for name, value in variables.items() if value is tensor]
    for name, value in variables.items() if not names else ():
        if isinstance(value, (list, tuple)) and len(value) <= 64:
            names += [f"{name}[{i}]" for i, item in enumerate(value) if item is tensor]
        elif isinstance(value, dict) and len(value) <= 64:
            names += [f"{name}[{key!r}]" for key, item in value.items() if item is tensor]
    return "=".join(sorted(names)) or None
