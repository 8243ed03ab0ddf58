"""Files without a name, shared between the notebook and the ranks; the kernel frees them with their last reader."""
import os
import sys
import tempfile

IN_MEMORY = hasattr(os, "memfd_create")  # Linux


def scratch_file(name: str) -> int:
    """Open an empty file that has no path and return its descriptor.

    On Linux it lives in memory (`memfd_create`), so a full disk does not matter; elsewhere it is a temporary
    file that is already unlinked. Either way nothing stays behind, however the processes end.
    """
    if IN_MEMORY:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the descriptor's position."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def read_from(fd: int, start: int = 0, end: int = sys.maxsize) -> bytes:
    """Return everything from byte `start` on, up to byte `end`, without moving the writer's position."""
    parts = []
    while part := os.pread(fd, min(1 << 24, end - start), start):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
