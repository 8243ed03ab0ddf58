"""What code on a rank may ask the engine for. Everything here also works in plain Python, outside a run."""
import contextlib
import os

_recorder = None    # set once in each rank's own process
_inside_a_run = False


def enter_run(recorder) -> None:
    """Called once, by the worker, in the rank's process."""
    global _recorder, _inside_a_run
    _recorder, _inside_a_run = recorder, True


def leave_run() -> None:
    """Called where the rank outlives the run: under torchrun."""
    global _recorder, _inside_a_run
    _recorder, _inside_a_run = None, False


def inside_a_run() -> bool:
    """True on a rank that `launch` started."""
    return _inside_a_run


@contextlib.contextmanager
def span(name: str, **tags):
    """Mark a stretch of work on this rank, for example `with span("forward", micro_batch=3):`.

    It shows up in `run.spans()`, `run.timeline()` and the trace. `tags` are small values that JSON can hold.
    """
    if _recorder is None:
        yield
        return
    number = _recorder.next_number()
    _recorder.event("span", n=number, name=name, tags=tags)
    try:
        yield
    finally:
        _recorder.event("done", n=number)


def device():
    """The torch device of this rank: its own GPU under NCCL, otherwise the CPU."""
    import torch
    import torch.distributed as dist
    if dist.is_initialized() and "nccl" in dist.get_backend():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")
