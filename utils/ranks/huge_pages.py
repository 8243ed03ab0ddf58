"""Have a process that forks a lot keep its memory in huge pages: a fork copies one table entry for 2 MiB, not 512."""
import contextlib
import ctypes
import sys
from collections.abc import Iterator

_MADV_COLLAPSE = 25  # of Linux 6.1 and newer
_PIECE_BYTES = 8 << 20


def use_huge_pages() -> Iterator[None]:
    """Ask Linux to move this process's own memory into huge pages, a piece at each step, in some milliseconds.

    Where Linux will not, nothing changes. A forked process that writes to such a page copies 4 KiB of it, as of any
    other. (Systems old enough to copy all of it do not know the request.)
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for first, end in _own_memory():
        while first < end:
            until = min(end, first - first % _PIECE_BYTES + _PIECE_BYTES)
            madvise(first, until - first, _MADV_COLLAPSE)
            first = until
            yield


def _own_memory():
    """`[(first address, end)]` of what this process has written and no file holds: heaps, Python's objects."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
        return [tuple(int(address, 16) for address in mapping[0].split("-")) for mapping in mappings
                if mapping[1] == "rw-p" and mapping[5:] in ([], ["[heap]"])]
    return []
