"""The server's memory lies in huge pages, where the system has them, and its ranks are none the worse for it."""
import inspect
import mmap
import subprocess
import sys
import time
from pathlib import Path

import pytest

from utils import launch
from utils.ranks import processes
from utils.ranks.huge_pages import _MADV_COLLAPSE

ROOT = Path(__file__).parents[2]


def the_system_has_them():
    try:
        with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
            block.write(bytes([1]) * len(block))
            block.madvise(_MADV_COLLAPSE)
            return True
    except (AttributeError, OSError):
        return False


pytestmark = pytest.mark.skipif(not the_system_has_them(), reason="this system moves no memory into huge pages on request")


def kilobytes(name, process="self"):
    with open(f"/proc/{process}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


def in_a_fresh_process(text):
    program = f"{inspect.getsource(kilobytes)}\n{text}"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=300)


def test_what_a_process_has_written_moves_and_stays_what_it_is():
    in_a_fresh_process('''
from utils.ranks.huge_pages import use_huge_pages
block = bytearray(range(256)) * (1 << 17)
before = kilobytes("AnonHugePages")
steps = list(use_huge_pages())
assert len(steps) > 3
assert kilobytes("AnonHugePages") >= before + 24_000, "32 MiB were there to be moved"
assert block == bytearray(range(256)) * (1 << 17)
''')


def private_kilobytes():
    return kilobytes("Private_Dirty")


def test_the_server_forks_from_huge_pages_and_its_ranks_copy_only_what_they_write():
    launch(private_kilobytes, world_size=1, echo=False)
    server, patience = processes._server.process.pid, time.monotonic() + 60
    while kilobytes("AnonHugePages", server) < kilobytes("Anonymous", server) / 4:  # it moves them when nobody waits
        assert time.monotonic() < patience
        time.sleep(0.05)
    sizes = launch(private_kilobytes, world_size=4, echo=False).results
    assert max(sizes) < 60_000, "of some 200 MB"


def test_a_server_that_is_a_copy_keeps_sharing_its_memory():
    in_a_fresh_process('''
import importlib
from utils.ranks import forkserver
for name in forkserver.PRELOADED:
    importlib.import_module(name)
before = kilobytes("AnonHugePages")
assert forkserver._preload() is None
assert kilobytes("AnonHugePages") == before
''')
