"""Write down what happens on a rank, as it happens.

Each event is one JSON line in a mapped file that the notebook holds open too: it costs no system call, and it
survives whatever happens to this process. `utils.ranks.doors` sees the calls, `utils.ranks.record` reads the lines.
"""
import itertools
import json
import mmap
import os
import threading
import time
import weakref

_JSON = {True: "true", False: "false"}
_recorders = weakref.WeakSet()  # of this process


def _be_silent_in_a_copy():
    """A process that a rank forks shares the map: what it wrote would stand in the place of the rank's own lines."""
    for recorder in _recorders:
        recorder.silent = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_silent_in_a_copy)


class Recorder:
    """Writes events of one rank into a mapped file, one JSON line each; what is not written yet reads as zeros."""

    _GROWTH_BYTES = 1 << 20

    def __init__(self, fd: int):
        self._fd = fd
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._map, self._size, self._used = None, 0, 0
        self._threads = threading.active_count()  # the engine's own
        self.silent = False
        _recorders.add(self)

    def event(self, kind: str, **fields) -> None:
        """Write down that something happened now."""
        self._write(kind, ", " + json.dumps(fields)[1:] if fields else "}")

    def call(self, number: int, waits: bool, unseen: bool, fields: str) -> None:
        """Write down call `number`; `fields` are its other fields as JSON, without the braces.

        `waits`: this rank now waits for it; `unseen`: it may wait for it later without our seeing that.
        """
        self._write("call", f', "n": {number}, "waits": {_JSON[waits and self._alone()]}, '
                            f'"unseen": {_JSON[unseen and self._alone()]}, {fields}}}')

    def new_group(self, number: int, name: str, members: list[int], fields: str) -> None:
        """Write down that this rank makes a group, as item `number`; `fields` as in `call`."""
        told = json.dumps({"n": number, "waits": self._alone(), "group": name, "ranks": members})
        self._write("group", f", {told[1:-1]}{fields}}}")

    def waits(self, number: int) -> None:
        """Write down that this rank waits for call `number` from now on."""
        if self._alone():
            self._write("wait", f', "n": {number}}}')

    def step(self, kind: str, number: int, at: float | None = None) -> None:
        """Write down how far call `number` is: "done", "failed", "refused"; `at` is the time if it is not now."""
        self._write(kind, f', "n": {number}}}', at)

    def _alone(self) -> bool:
        """Whether a wait holds up the whole rank: another thread could still do what others wait for."""
        return threading.active_count() <= self._threads

    def next_number(self) -> int:
        return next(self._numbers)

    def _write(self, kind, rest, at=None):
        if self.silent:
            return
        line = f'{{"event": "{kind}", "time": {at or time.monotonic()}{rest}\n'.encode()
        with self._lock:
            end = self._used + len(line)
            if end > self._size:
                self._size = end + self._GROWTH_BYTES
                os.ftruncate(self._fd, self._size)
                self._map = mmap.mmap(self._fd, self._size)  # the old map is let go, the file keeps what it held
            self._map[self._used:end] = line
            self._used = end
