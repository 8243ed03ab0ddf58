"""See every communication call of this rank and write it down as it happens.

The `c10d` operators are the one door through which plain `torch.distributed`, DDP, FSDP2, DTensor and functional
collectives all pass, in forward and in backward. We stand in that door: each operator gets a kernel at the
BackendSelect key that notes the call and passes it on. Other operators are not touched and cost nothing more.

Each event is one JSON line in a mapped file that the notebook holds open too: it costs no system call, and it
survives whatever happens to this process.
"""
import itertools
import json
import mmap
import os
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work

from utils.ranks.definitions import bytes_by_definition
from utils.ranks.places import is_user_file

# operator -> (name of the call, argument that holds the full tensor, argument that holds this rank's part)
_OPERATORS = {
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


class Recorder:
    """Writes events of one rank into a mapped file, one JSON line each; what is not written yet reads as zeros."""

    _GROWTH_BYTES = 1 << 20

    def __init__(self, fd: int):
        self._fd = fd
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._map, self._used = None, 0

    def event(self, kind: str, **fields) -> None:
        line = json.dumps({"event": kind, "time": time.monotonic(), **fields}).encode() + b"\n"
        with self._lock:
            end = self._used + len(line)
            if self._map is None or end > len(self._map):
                size = end + self._GROWTH_BYTES
                os.ftruncate(self._fd, size)
                self._map = mmap.mmap(self._fd, size)  # the old map is let go, the file keeps what it held
            self._map[self._used:end] = line
            self._used = end

    def next_number(self) -> int:
        return next(self._numbers)


def install(recorder: Recorder | None) -> None:
    """Put the kernels in place for the rest of this process; with None only the contiguity check remains."""
    library = torch.library.Library("c10d", "IMPL")
    for operator in _OPERATORS:
        if hasattr(torch.ops.c10d, operator):  # torch versions differ in a few operators
            library.impl(operator, _kernel(operator, recorder), "BackendSelect", with_keyset=True)
    _kept.append(library)  # the registration lives as long as the library object
    if recorder is not None:
        Work.wait = _recorded_wait(recorder, _plain_wait)


def uninstall() -> None:
    """Take the kernels out again: for a process that goes on after the run."""
    for library in _kept:
        library._destroy()
    _kept.clear()
    Work.wait = _plain_wait


_kept = []
_plain_wait = Work.wait
_number_of = weakref.WeakKeyDictionary()  # Work -> (number of its call, is it noted that its caller waits)


class _Slots(threading.local):
    """Per thread, the last Work: alive until its caller has it, so that the caller gets the same Python object."""

    def __init__(self):
        self.last = []


_slots = _Slots()


def _kernel(operator, recorder):
    function = getattr(torch.ops.c10d, operator).default
    argument_names = [argument.name for argument in function._schema.arguments]
    op, full_name, part_name = _OPERATORS[operator]

    def kernel(keyset, *values, **keywords):
        arguments = dict(zip(argument_names, values, strict=False)) | keywords
        full, part = (list(_flatten(arguments.get(name))) for name in (full_name, part_name))
        if op in _NEED_CONTIGUOUS:
            for tensor in itertools.chain(full, part):
                _refuse_non_contiguous(op, tensor)
        number = None
        if recorder is not None:
            number = recorder.next_number()
            # all is written before the call goes out: work done while it travels would take the cores from it
            waits = arguments.get("async_op") is False
            recorder.event("call", n=number, waits=waits, **_describe(op, operator, arguments, full, part))
        below = keyset.remove(torch._C.DispatchKey.BackendSelect)
        try:
            result = function.redispatch(below, *values, **keywords)
        except BaseException:
            if recorder is not None:
                recorder.event("failed", n=number)
            raise
        if recorder is not None:
            _note_end(recorder, number, op, result, waits)
        return result

    return kernel


def _note_end(recorder, number, op, result, waits):
    """Write down when the call ends: now, or when its Work is done. `waits`: its caller waits for it at once."""
    boxed = result[-1] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(boxed, torch.ScriptObject):
        recorder.event("done", n=number)
        return
    work = Work.unbox(boxed)
    _number_of[work] = number, waits
    slot = _slots.last
    slot[:] = [work]
    if waits or op in ("send", "recv"):
        return  # wait() tells the end (and the Work of a send or recv has no future to ask)

    def done(future):
        slot.clear()  # a Work holds its tensors: let go
        recorder.event("done", n=number)

    try:
        work.get_future().add_done_callback(done)
    except RuntimeError:
        pass  # a backend without futures: wait() tells the end


def _recorded_wait(recorder, wait):
    def wait_and_note(work, *args, **keywords):
        number, noted = _number_of.get(work, (None, True))
        _slots.last.clear()
        if number is None:
            return wait(work, *args, **keywords)
        if not noted:
            recorder.event("wait", n=number)
        try:
            result = wait(work, *args, **keywords)
        except BaseException:
            recorder.event("failed", n=number)
            raise
        recorder.event("done", n=number)
        return result

    return wait_and_note


def _flatten(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)


def _refuse_non_contiguous(op, tensor):
    if tensor.layout == torch.strided and not tensor.is_contiguous() and tensor.device.type == "cpu":
        raise ValueError(
            f"{op} was given a tensor that is not contiguous (shape {tuple(tensor.shape)}, strides {tensor.stride()}). "
            "gloo would use the wrong numbers without saying so. Pass tensor.contiguous() and copy the result back.")


_groups: dict[str, tuple[int, ...]] = {}


def _group_of(arguments):
    """Return (name, global ranks) of the call's process group."""
    group = ProcessGroup.unbox(arguments["process_group"])
    name = group.group_name
    if name not in _groups:
        _groups[name] = tuple(dist.get_process_group_ranks(group))
    return name, _groups[name]


def _describe(op, operator, arguments, full, part):
    """The fields of a call's event; sizes in elements and bytes, peers as global ranks."""
    group, ranks = _group_of(arguments)
    me = dist.get_rank()
    n = len(ranks)
    own = part or full
    elements, n_bytes = sum(tensor.numel() for tensor in full), sum(tensor.nbytes for tensor in full)
    if op in ("gather", "scatter") and not full:  # only the root holds the full tensor
        elements, n_bytes = own[0].numel() * n, own[0].nbytes * n
    root = arguments.get("root_rank")
    peer = arguments.get("dst", arguments.get("src"))
    sent, received = bytes_by_definition(op, n_bytes, n, is_root=root is not None and ranks[root] == me,
                                         parts=_parts(operator, arguments, full, part, ranks.index(me)))
    return {
        "op": op, "group": group, "ranks": ranks, "elements": elements,
        "dtype": str(own[0].dtype).removeprefix("torch.") if own else "",
        "shape": tuple(own[0].shape) if own else (),
        "sent": sent, "received": received,
        "root": None if root is None else ranks[root], "peer": None if peer is None else ranks[peer],
        "tag": arguments.get("tag"), **_caller(own),
    }


def _parts(operator, arguments, full, part, index):
    """(sent, received) bytes of an all_to_all without the rank's own part; None for equal parts."""
    if operator == "alltoall_":
        return tuple(float(sum(t.nbytes for i, t in enumerate(tensors) if i != index)) for tensors in (full, part))
    if operator == "alltoall_base_" and (arguments["input_split_sizes"] or arguments["output_split_sizes"]):
        moved = []
        for tensor, splits in ((full[0], arguments["input_split_sizes"]), (part[0], arguments["output_split_sizes"])):
            row_bytes = tensor.nbytes / max(1, tensor.shape[0])
            rows = tensor.shape[0] - splits[index] if splits else tensor.shape[0] * (1 - 1 / dist.get_world_size())
            moved.append(rows * row_bytes)
        return tuple(moved)
    return None


# ---- whose line made the call -------------------------------------------------------------------------------------

def _caller(tensors):
    """Where the reader's own code made the call, and what that code calls the tensor."""
    frame = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return {"where": None, "label": None}
    return {"where": (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),
            "label": _names_of(tensors[0], frame.f_locals) if tensors else None}


def _names_of(tensor, variables):
    """The names under which the caller knows the tensor, for example "a" or "grads[2]"; None if it has none."""
    names = []
    for name, value in variables.items():
        if value is tensor:
            names.append(name)
        elif isinstance(value, (list, tuple)) and len(value) <= 64:
            names += [f"{name}[{i}]" for i, item in enumerate(value) if item is tensor]
        elif isinstance(value, dict) and len(value) <= 64:
            names += [f"{name}[{key!r}]" for key, item in value.items() if item is tensor]
    return "=".join(sorted(names)) or None
