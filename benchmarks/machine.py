"""Where it was measured, how long it took, and how much of the machine other programs used meanwhile."""

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import psutil

from benchmarks.measure import Table


def describe() -> Table:
    """The machine, without names of hosts or folders."""
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Table("Machine", ("what", "value"), [
        ("cores", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"),
        ("processor", _processor()),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("GPUs", ", ".join(gpus) or "none"),
        ("system", _system()),
        ("Python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy, matplotlib", f"{version('numpy')}, {version('matplotlib')}"),
    ])


def _processor():
    if sys.platform == "darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        return asked.stdout.strip() or platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _system():
    name = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    with contextlib.suppress(OSError, AttributeError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    return name


def load() -> str:
    """The load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "not known"


def adopt_orphans() -> None:
    """Linux: processes that outlive their parents become this one's children, so that a Stopwatch counts their time."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock, seconds of processor time of all child processes together, and of all other programs."""

    wall: float
    cpu: float
    others: float

    @property
    def share_of_others(self) -> float:
        """How much of the machine's processor time other programs used, from 0 to 1."""
        return max(0.0, self.others) / (self.wall * (os.cpu_count() or 1))


class Stopwatch:
    """Measures what happens in child processes between making it and :meth:`spent`."""

    def __init__(self):
        self._wall, self._children, self._all = time.perf_counter(), _of_children(), _of_all()

    def spent(self) -> Spent:
        """What was spent since; waits a little for orphans, whose time counts once they have been seen off."""
        wall, of_all, patience = time.perf_counter() - self._wall, _of_all() - self._all, time.monotonic() + 10
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < patience:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.1)
        cpu = _of_children() - self._children
        return Spent(wall, cpu, of_all - cpu)


def _of_children():
    used = os.times()
    return used.children_user + used.children_system


def _of_all():
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0) for name in ("user", "nice", "system", "irq", "softirq"))
