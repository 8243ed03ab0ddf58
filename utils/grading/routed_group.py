"""Process groups whose messages all go through the checker: the default group, and groups made by a student.

This module runs in the student's process, so it decides nothing: the checker matches the calls, counts them, and keeps
the bytes.  A student's code that tampers with this module can only send other messages, and those are seen.

**What a question may call** is written in the lab's check module, beside ``QUESTIONS`` and ``FUNCTIONS``::

    MAY_CALL = {
        "q1": ("send",),                              # a ring by hand
        "q3": ("reduce_scatter", "all_gather"),       # a ZeRO step
        "q4": ("all_reduce", "new_group"),            # tensor parallel, in groups of its own
    }

The words are those of ``utils.grading.may_call.EVERYTHING``:

==================  ==================================================================================================
``send``            send, recv (also from any source), isend, irecv, batch_isend_irecv
``new_group``       calls in groups other than the default one: dist.new_group, init_device_mesh and its sub-meshes
``all_reduce``      all_reduce, all_reduce_coalesced, and the functional form; SUM, AVG, PRODUCT, MIN, MAX
``all_gather``      all_gather, all_gather_single (all_gather_into_tensor), all_gather_object, coalesced forms
``reduce_scatter``  reduce_scatter, reduce_scatter_single (reduce_scatter_tensor), coalesced forms
``all_to_all``      all_to_all, all_to_all_single, with equal or unequal parts
others              ``broadcast``, ``reduce``, ``gather``, ``scatter``, ``barrier``
==================  ==================================================================================================

A question that ``MAY_CALL`` does not name may not communicate at all.  A module without ``MAY_CALL`` allows everything.
What is not allowed is absent: the call raises "'all_reduce' is not part of this exercise. It may call: …", and the
checker refuses it as well, whatever the student's process says.  The list is about the verify stage only; on a student's
own ranks all of torch.distributed exists, so a check has to look at ``call["op"]`` there.

Where a probe's ``case`` begins and ends is said by the student's process.  A check that counts the calls of a case must
therefore use ``utils.checks.verdict.calls_only_in``, which refuses calls outside the cases that it asked for.  The
times of spans are the student's word as well.

A probe (:mod:`utils.checks.probes`) makes groups and meshes as it would anywhere, and its own calls count as the
student's: what the probe calls must be in ``MAY_CALL`` too.  What a check sees of each call is described in
:mod:`utils.checks.boundary`; ``peer`` is a global rank, and ``ranks`` holds the global ranks of the call's group.

A rank gets only its own part of what lies under the keys ``arrays`` and ``states`` (lists with an entry for each rank) and
``row_batches`` (arrays whose rows are cut as ``torch.tensor_split`` does): inputs that it must ask others for belong there.

Calls with ``async_op=True`` are sent at once and matched when the last member has made them; ``waited`` is when the
rank began to wait, or ``None``.  ``get_future`` waits.  A student's threads may not communicate at the same time.
"""

from __future__ import annotations

import base64
import itertools
import socket
import sys

import torch
import torch.distributed as dist

_REDUCE = (
    ("sum", dist.ReduceOp.SUM),
    ("avg", dist.ReduceOp.AVG),
    ("product", dist.ReduceOp.PRODUCT),
    ("min", dist.ReduceOp.MIN),
    ("max", dist.ReduceOp.MAX),
)

plain_data, may_call = sys.modules["course_plain_data"], sys.modules["course_may_call"]
Line, RoutedWork, RoutedWorks = (
    getattr(sys.modules["course_routed_line"], name) for name in ("Line", "RoutedWork", "RoutedWorks")
)


class RoutedGroup(dist.ProcessGroup):
    """A group of ranks, seen from one of them."""

    def __init__(self, line: Line, name: str, ranks: list[int], rank: int):
        super().__init__(rank, len(ranks))
        self._line, self._group, self._ranks, self._rank, self._name = line, name, list(ranks), rank, name

    def size(self) -> int:
        return len(self._ranks)

    def getBackendName(self) -> str:
        return "routed"

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def send(self, tensors, dst: int, tag: int = 0) -> RoutedWork:
        return self._post("send", tensors, [], peer=dst, tag=tag)

    def recv(self, tensors, src: int, tag: int = 0) -> RoutedWork:
        return self._post("recv", tensors, tensors, peer=src, tag=tag)

    def recv_anysource(self, tensors, tag: int = 0) -> RoutedWork:
        return self._post("recv", tensors, tensors, peer=-1, tag=tag)

    def allreduce(self, tensors, opts=None) -> RoutedWork:
        return self._post("all_reduce", tensors, tensors, opts=opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors, opts=None) -> RoutedWorks:
        return RoutedWorks([self.allreduce([tensor], opts) for tensor in tensors])

    def broadcast(self, tensors, opts) -> RoutedWork:
        return self._post("broadcast", tensors, tensors, opts=opts)

    def reduce(self, tensors, opts) -> RoutedWork:
        return self._post("reduce", tensors, tensors if opts.rootRank == self._rank else [], opts=opts)

    def allgather(self, outputs, inputs, opts=None) -> RoutedWork:
        return self._post("all_gather", inputs, _equal(outputs[0]), factor=self.size())

    def _allgather_base(self, output, input_, opts=None) -> RoutedWork:
        return self._post("all_gather", [input_], [output], factor=self.size())

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None) -> RoutedWorks:
        return RoutedWorks([self._allgather_base(*pair) for pair in zip(outputs, inputs)])

    def reduce_scatter(self, outputs, inputs, opts) -> RoutedWork:
        return self._post("reduce_scatter", _equal(inputs[0]), outputs, opts=opts)

    def _reduce_scatter_base(self, output, input_, opts) -> RoutedWork:
        return self._post("reduce_scatter", [input_], [output], opts=opts)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts) -> RoutedWorks:
        return RoutedWorks([self._reduce_scatter_base(*pair, opts) for pair in zip(outputs, inputs)])

    def alltoall(self, outputs, inputs, opts=None) -> RoutedWork:
        sizes = [[tensor.numel() for tensor in tensors] for tensors in (inputs, outputs)]
        return self._post("all_to_all", inputs, outputs, parts=sizes)

    def alltoall_base(self, output, input_, output_sizes=(), input_sizes=(), opts=None) -> RoutedWork:
        sizes = [self._parts(input_, input_sizes), self._parts(output, output_sizes)]
        return self._post("all_to_all", [input_], [output], parts=sizes)

    def gather(self, outputs, inputs, opts) -> RoutedWork:
        targets = _equal(outputs[0]) if outputs else []
        return self._post("gather", inputs, targets, opts=opts, factor=self.size())

    def scatter(self, outputs, inputs, opts) -> RoutedWork:
        given, factor = (_equal(inputs[0]), 1) if inputs else ([], self.size())
        return self._post("scatter", given, outputs, opts=opts, factor=factor, like=outputs)

    def barrier(self, opts=None) -> RoutedWork:
        return self._post("barrier", [], [])

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _parts(self, tensor: torch.Tensor, rows: list[int]) -> list[int]:
        """Return the elements for each member; ``rows`` are sizes along the first dimension, equal ones if empty."""
        length = len(tensor) if tensor.dim() else 1
        if not rows:
            if length % self.size():
                raise ValueError(
                    f"all_to_all of {length} rows over {self.size()} ranks without sizes: they must divide it."
                )
            rows = [length // self.size()] * self.size()
        return [size * (tensor.numel() // max(1, length)) for size in rows]

    def _post(
        self, op, given, targets, *, peer=-1, tag=0, opts=None, factor=1, like=(), parts=((), ())
    ) -> RoutedWork:
        if may_call.missing(op, self._line.allowed):
            raise RuntimeError(may_call.absent(op, self._line.allowed))
        for tensor in (*given, *targets):
            if not tensor.is_contiguous():
                raise ValueError(
                    f"{op} was given a tensor that is not contiguous (shape {tuple(tensor.shape)}, strides "
                    f"{tensor.stride()}). Pass tensor.contiguous() and copy the result back."
                )
        shown = given or like
        data = b"" if op == "recv" else b"".join(_bytes(tensor) for tensor in given)
        number = self._line.post(
            {
                "op": op,
                "group": self._group,
                "ranks": self._ranks,
                "peer": peer,
                "tag": tag,
                "data": base64.b64encode(data).decode(),
                "dtype": str(shown[0].dtype).removeprefix("torch.") if shown else "uint8",
                "elements": factor * sum(tensor.numel() for tensor in shown),
                "root": getattr(opts, "rootRank", 0),
                "reduce": _reduce_name(opts),
                "parts": list(parts[0]),
                "room": list(parts[1]),
            },
        )
        return RoutedWork(self._line, number, list(targets))


def _equal(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors; raise a sentence if they differ in size, which gloo cannot do either."""
    sizes = [tensor.numel() for tensor in tensors]
    if len(set(sizes)) > 1:
        raise ValueError(f"the tensors of a list must have the same size here; yours have {sizes} elements.")
    return tensors


def _reduce_name(opts) -> str:
    """Return the name of a call's reduction; ``"sum"`` for calls without one."""
    wanted = getattr(opts, "reduceOp", None)
    for name, operation in _REDUCE if wanted is not None else ():
        if wanted == operation:  # these objects are equal without having equal hashes
            return name
    if wanted is not None:
        raise ValueError(f"the reduction {wanted} cannot be used here; use SUM, AVG, PRODUCT, MIN or MAX.")
    return "sum"


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


class Marks:
    """Tells the checker when spans begin and end; it takes the place of the engine's recorder."""

    def __init__(self, channel: socket.socket):
        self._channel, self._numbers = channel, itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def event(self, kind: str, n: int, name: str = "", tags: dict | None = None) -> None:
        plain_data.send(
            self._channel,
            {"op": "mark", "kind": kind, "number": n, "name": name, "tags": plain_data.encode(tags or {})},
        )


def join(channel: socket.socket, rank: int, world_size: int, allowed: tuple[str, ...] = ()) -> None:
    """Make the default process group of this process one whose calls go over ``channel``.

    Arguments:
        channel: the socket to the checker.
        rank: this process's rank.
        world_size: how many there are.
        allowed: what may be called; the table above has the words.
    """
    line = Line(channel, allowed)

    def group(options, _backend_options) -> RoutedGroup:
        ranks = list(options.global_ranks_in_group)
        if ranks and may_call.missing("new_group", allowed):
            raise RuntimeError(may_call.absent("new_group", allowed))
        name = f"group {options.group_id}" if ranks else "world"
        return RoutedGroup(line, name, ranks or list(range(world_size)), options.group_rank)

    dist.Backend.register_backend("routed", group, extended_api=True, devices=["cpu"])
    dist.init_process_group("routed", rank=rank, world_size=world_size, store=dist.HashStore())
