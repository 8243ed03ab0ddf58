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


class Recorder:
    """Writes events of one rank into a mapped file, one JSON line each; what is not written yet reads as zeros."""

    _GROWTH_BYTES = 1 << 20

    def __init__(self, fd: int):
        self._fd = fd
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._map, self._size, self._used = None, 0, 0

    def event(self, kind: str, **fields) -> None:
        """Write down that something happened now."""
        self._write(kind, ", " + json.dumps(fields)[1:] if fields else "}")

    def call(self, number: int, waits: bool, fields: str) -> None:
        """Write down call `number`; `fields` are its other fields as JSON, without the braces."""
        self._write("call", f', "n": {number}, "waits": {"true" if waits else "false"}, {fields}}}')

    def step(self, kind: str, number: int, at: float | None = None) -> None:
        """Write down how far call `number` is: "wait", "done" or "failed"; `at` is the time if it is not now."""
        self._write(kind, f', "n": {number}}}', at)

    def next_number(self) -> int:
        return next(self._numbers)

    def _write(self, kind, rest, at=None):
        line = f'{{"event": "{kind}", "time": {at or time.monotonic()}{rest}\n'.encode()
        with self._lock:
            end = self._used + len(line)
            if end > self._size:
                self._size = end + self._GROWTH_BYTES
                os.ftruncate(self._fd, self._size)
                self._map = mmap.mmap(self._fd, self._size)  # the old map is let go, the file keeps what it held
            self._map[self._used:end] = line
            self._used = end
