"""See every communication call of this rank, whoever makes it, and have it written down.

The `c10d` operators are the one door through which plain `torch.distributed`, DDP, FSDP2, DTensor and functional
collectives all pass, in forward and in backward. We stand in that door: each operator gets a kernel at the
BackendSelect key that notes the call and passes it on. Other operators are not touched and cost nothing more.

A kernel in Python is slow to enter. So the calls that readers time, `dist.all_reduce`, `dist.send` and `dist.recv`,
are noted one step earlier, where Python hands them to C++, and then go past the kernel.
"""
import sys
import threading
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.distributed import distributed_c10d

from utils.ranks.description import (
    OPERATORS,
    caller,
    describe,
    forget_descriptions,
    refuse_what_goes_wrong,
    tensors_of,
)
from utils.ranks.emulation import Delays, SlowLinks
from utils.ranks.recorder import Recorder

# method of ProcessGroup, as `torch.distributed` calls it: its operator, its arguments
_METHODS = {
    "allreduce": ("allreduce_", ("tensors", "options")),
    "send": ("send", ("tensors", "dst", "tag")),
    "recv": ("recv_", ("tensors", "src", "tag")),
}
_PLAIN_METHODS = {method: ProcessGroup.__dict__[method] for method in _METHODS}
_PLAIN_WAIT, _PLAIN_GET_FUTURE = Work.__dict__["wait"], Work.__dict__["get_future"]
_PLAIN_NEW_GROUP = distributed_c10d._new_process_group_helper
_delays = Delays(None)
_kept = []  # a registration of kernels lives as long as its library object


def install(recorder: Recorder | None, cluster: SlowLinks | None = None) -> None:
    """Stand in the doors for the rest of this process; without a recorder only the contiguity check remains.

    With a cluster, communication is as slow as there: see `utils.ranks.emulation`.
    """
    global _delays
    _delays = Delays(cluster)
    library = torch.library.Library("c10d", "IMPL")
    for operator in OPERATORS:
        if hasattr(torch.ops.c10d, operator):  # torch versions differ in a few operators
            library.impl(operator, _kernel(operator, recorder), "BackendSelect", with_keyset=True)
    _kept.append(library)
    if recorder is not None:
        forget_descriptions()  # the process groups may be new ones
        Work.wait, Work.get_future = _recorded_wait(recorder), _recorded_get_future(recorder)
        distributed_c10d._new_process_group_helper = _recorded_new_group(recorder)
        for method in _METHODS:
            setattr(ProcessGroup, method, _recorded_method(method, recorder))


def uninstall() -> None:
    """Leave the doors: for a process that goes on after the run."""
    for library in _kept:
        library._destroy()
    _kept.clear()
    Work.wait, Work.get_future = _PLAIN_WAIT, _PLAIN_GET_FUTURE
    distributed_c10d._new_process_group_helper = _PLAIN_NEW_GROUP
    for method, plain in _PLAIN_METHODS.items():
        setattr(ProcessGroup, method, plain)


# ---- the beginning of a call ---------------------------------------------------------------------------------------

def _kernel(operator, recorder):
    """What the dispatcher runs in the operator's place."""
    function = getattr(torch.ops.c10d, operator).default
    names = [argument.name for argument in function._schema.arguments]

    def kernel(keyset, *values, **keywords):
        arguments = dict(zip(names, values, strict=False))
        arguments.update(keywords)
        below = keyset.remove(torch._C.DispatchKey.BackendSelect)
        if recorder is None:
            refuse_what_goes_wrong(operator, *tensors_of(operator, arguments))
            return function.redispatch(below, *values, **keywords)
        group = ProcessGroup.unbox(arguments["process_group"])
        waits = arguments.get("async_op") is False
        python_waits = sys._getframe(1).f_code.co_filename == dist.distributed_c10d.__file__
        number = _begin(recorder, operator, group, arguments, waits, python_waits)
        try:
            result = function.redispatch(below, *values, **keywords)
        except BaseException:
            recorder.step("refused", number)
            raise
        boxed = result[-1] if isinstance(result, (tuple, list)) and result else result
        if isinstance(boxed, torch.ScriptObject):
            _note_end(recorder, number, operator, Work.unbox(boxed), waits)
        else:
            recorder.step("done", number)
        return result

    return kernel


def _recorded_method(method, recorder):
    """What Python calls in the place of a ProcessGroup's method."""
    operator, names = _METHODS[method]
    plain = _PLAIN_METHODS[method]
    the_kernel = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)

    def call(group, *values, **keywords):
        if keywords or len(values) != len(names) or not isinstance(values[0], list):
            return plain(group, *values, **keywords)  # not as `torch.distributed` calls it: the kernel takes it
        arguments = dict(zip(names, values, strict=True))
        waits = operator == "allreduce_" and not arguments["options"].asyncOp
        number = _begin(recorder, operator, group, arguments, waits)
        try:
            with torch._C._ExcludeDispatchKeyGuard(the_kernel):
                work = plain(group, *values)
        except BaseException:
            recorder.step("refused", number)
            raise
        _note_end(recorder, number, operator, work, waits)
        return work

    return call


def _begin(recorder, operator, group, arguments, waits, python_waits=True):
    """Write the call down before it goes out: work done while it travels would take the cores from it."""
    full, part = tensors_of(operator, arguments)
    refuse_what_goes_wrong(operator, full, part)
    number = recorder.next_number()
    description = describe(operator, group, arguments, full, part)
    recorder.call(number, waits, not python_waits, description.text + caller(part or full))
    _delays.before(number, description, only_cpp_waits=not python_waits)
    return number


# ---- the end of a call -----------------------------------------------------------------------------------------------

class _Last(threading.local):
    """Per thread, the last Work and its call. Here it is alive until its caller has it, so that the caller gets the
    same Python object; the next one sends it to `_calls_of`, which most never see: they are waited for at once."""
    work = None
    call = None, True

    def replace(self, work, call):
        if (earlier := self.work) is not None:
            _calls_of[earlier] = self.call
        self.work, self.call = work, call

    def call_of(self, work, goes_on=False):
        if work is not self.work:
            self.replace(None, (None, True))
            return _calls_of.get(work, (None, True))
        if not goes_on:
            self.work = None
        return self.call


_last = _Last()
_calls_of = weakref.WeakKeyDictionary()  # Work -> its call: (number, is it noted that its caller waits)


def _note_end(recorder, number, operator, work, waits):
    """Have it written down when the Work is done. `waits`: the caller waits for it at once."""
    _last.replace(work, (number, waits))
    if waits or operator in ("send", "recv_", "recv_any_source_"):
        return  # wait() tells the end (and the Work of a send or recv has no future to ask)
    of_this_thread = _last.__dict__  # the future's callback comes from another one

    def done(future):
        if of_this_thread["call"][0] == number:
            of_this_thread["work"] = None  # a Work holds its tensors: let go
        recorder.step("done", number, at=_delays.transferred(number))

    try:
        _PLAIN_GET_FUTURE(work).add_done_callback(done)
    except RuntimeError:
        pass  # a backend without futures: wait() tells the end


def _recorded_wait(recorder):
    def wait(work, *args, **keywords):
        number, noted = _last.call_of(work)
        if number is None:
            return _PLAIN_WAIT(work, *args, **keywords)
        if not noted and not args and not keywords:  # with a limit of its own it is no wait for ever
            recorder.waits(number)
        try:
            result = _PLAIN_WAIT(work, *args, **keywords)
        except BaseException:
            recorder.step("failed", number)
            raise
        _delays.wait(number)
        recorder.step("done", number)
        return result

    return wait


def _recorded_get_future(recorder):
    """Who asks for the future may wait for that, as DDP's reducer does for its hooks'."""
    def get_future(work):
        number, _ = _last.call_of(work, goes_on=True)
        if number is not None:
            recorder.step("future", number)
        return _PLAIN_GET_FUTURE(work)

    return get_future


# ---- groups ----------------------------------------------------------------------------------------------------------

def _recorded_new_group(recorder):
    """The members of a new group wait in there for each other."""
    def new_process_group_helper(group_size, group_rank, members, backend, store, group_name, *args, **keywords):
        def make():
            return _PLAIN_NEW_GROUP(group_size, group_rank, members, backend, store, group_name, *args, **keywords)

        if not members or dist.get_rank() not in members:  # the default group, or one that only others wait for
            return make()
        number = recorder.next_number()
        recorder.new_group(number, str(group_name), members, caller([]))
        try:
            return make()
        finally:
            recorder.step("done", number)

    return new_process_group_helper
