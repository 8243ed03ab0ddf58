"""Hold back the notebook's interrupt (Ctrl-C) while something is half made."""
import contextlib
import signal
import threading


class _Held:
    """The interrupts that came meanwhile; `released` lets them through for a while, with those that wait."""

    def __init__(self, handler):
        self._handler, self._waiting = handler, []

    def hold(self):
        signal.signal(signal.SIGINT, lambda *details: self._waiting.append(details))

    def let_through(self):
        signal.signal(signal.SIGINT, self._handler)
        if self._waiting:
            details = self._waiting[-1]
            self._waiting.clear()
            self._handler(*details)

    @contextlib.contextmanager
    def released(self):
        try:
            self.let_through()
            yield
        finally:
            self.hold()


class _NotHeld:
    released = contextlib.nullcontext


@contextlib.contextmanager
def interrupts_held():
    """Until the end of the block an interrupt waits; it is raised there, or in `with held.released():`.

    In other threads than the main one nothing happens, since Python raises no interrupts there.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield _NotHeld()
        return
    held = _Held(handler)
    held.hold()
    try:
        yield held
    finally:
        held.let_through()
