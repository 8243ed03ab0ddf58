"""What a machine is like, for `utils.doctor`: this module looks and does not judge, and needs no more than Python."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("torch", "numpy", "pandas", "matplotlib", "ipywidgets", "cloudpickle", "jupyterlab", "nbval")


@dataclass(frozen=True)
class Trial:
    """A launch of two ranks that add a number: seconds of the first and of the second time, or what went wrong."""
    first_seconds: float = 0.0
    second_seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """What `gather` saw. `versions` maps a package's name to its version, `None` where it is not installed."""
    python: tuple[int, int, int]
    platform: str                        # sys.platform's value
    machine: str                         # "x86_64", "arm64", ...
    versions: dict[str, str | None]
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    torch_error: str = ""                # why torch, which is installed, cannot be loaded
    gloo: bool = True
    loopback_error: str = ""
    memory_files: bool = True            # memfd_create: the ranks' files are in memory
    shared_memory_bytes: int | None = None  # free in /dev/shm, None where there is none
    temporary_error: str = ""            # why no temporary file can be written
    temporary_bytes: int | None = None   # free in the folder for temporary files
    home_error: str = ""                 # why nothing can be kept in the home folder
    open_files: int | None = None        # that a process may have at a time, None without a limit
    processes: int | None = None         # that this user may have at a time
    hiding_files: tuple[str, ...] = ()   # in this folder, with names of modules
    picture_backend: str = ""            # the variable MPLBACKEND
    colab: bool = False
    wsl: bool = False
    torchrun: bool = False
    trial: Trial | None = None


# ---- looking ------------------------------------------------------------------------------------------------------

def look() -> Facts:
    """Look at this machine; starts no rank."""
    versions = {name: _version(name) for name in PACKAGES}
    gpus, gloo, torch_error = _torch_facts() if versions["torch"] else ((), False, "")
    temporary_folder, temporary_error = _temporary_folder()
    return Facts(
        python=sys.version_info[:3], platform=sys.platform, machine=platform.machine(), versions=versions,
        cores=_usable_cores(), memory_bytes=_usable_memory(), gpus=gpus, torch_error=torch_error, gloo=gloo,
        loopback_error=_try_loopback(), memory_files=hasattr(os, "memfd_create"),
        shared_memory_bytes=_free_bytes("/dev/shm"), temporary_error=temporary_error,
        temporary_bytes=_free_bytes(temporary_folder), home_error=_home_error(), open_files=_limit("RLIMIT_NOFILE"),
        processes=_limit("RLIMIT_NPROC"), hiding_files=_hiding_files(), picture_backend=os.environ.get("MPLBACKEND", ""),
        colab=_installed("google.colab"), wsl="microsoft" in platform.release().lower(),
        torchrun="TORCHELASTIC_RUN_ID" in os.environ)


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _torch_facts():
    """The GPUs' names, whether gloo is there, and the error's text. No CUDA context is made in this process."""
    try:
        import torch
        import torch.distributed as dist
        count = torch.cuda.device_count()
    except Exception as error:  # noqa: BLE001  whatever it is, torch cannot be used
        return (), False, _first_line(error)
    names = _gpu_names() if count else []
    gpus = tuple(names) if len(names) == count else ("NVIDIA GPU",) * count
    return gpus, dist.is_available() and dist.is_gloo_available(), ""


def _gpu_names():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split("\n")[:-1]
    except (OSError, subprocess.TimeoutExpired):
        return []


def _usable_cores():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_cgroup_cores(text.replace("\n", " ")) for text in (
        *_cgroup_files("", "cpu.max"),
        *map("\n".join, zip(_cgroup_files("cpu", "cpu.cfs_quota_us"), _cgroup_files("cpu", "cpu.cfs_period_us"))))]
    return min([cores, *filter(None, quotas)])


def _cgroup_cores(text):
    """The cores that a container may use, from "QUOTA PERIOD" in microseconds; None without a limit."""
    quota, period, *_ = *text.split(), "", ""
    return max(1, round(int(quota) / int(period))) if quota.isdigit() and period.isdigit() else None


def _usable_memory():
    """Bytes of memory, or of what a container, a job or `ulimit -v` leaves of it if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    limits = [*_cgroup_files("", "memory.max"), *_cgroup_files("memory", "memory.limit_in_bytes")]
    return min([total, _limit("RLIMIT_AS") or math.inf, *(int(limit) for limit in limits if limit.strip().isdigit())])


def _cgroup_files(controller, name):
    """The texts of a file in this process's control group and those above it; `controller` is "" for version 2."""
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root, place = Path("/sys/fs/cgroup", controller), Path(path.lstrip("/"))
            found += [_read(root / folder / name) for folder in (place, *place.parents)]
    return [text for text in dict.fromkeys(found) if text]


def _limit(name):
    """A limit of this process, by its name in the module `resource`; None where there is none."""
    try:
        import resource
        soft, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, OSError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _temporary_folder():
    """The folder for temporary files, and the error's text where none can be written there."""
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(100_000))
        return folder, ""
    except OSError as error:
        return os.environ.get("TMPDIR") or "/tmp", error.strerror or str(error)


def _home_error():
    home = os.path.expanduser("~")
    if not os.path.isdir(home):
        return f"the home folder {home} does not exist"
    return "" if os.access(home, os.W_OK) else f"the home folder {home} cannot be written"


def _hiding_files():
    """Files of this folder that Python finds before the modules of the same name, which torch or the course needs."""
    names = {*sys.stdlib_module_names, *PACKAGES, "utils"} - {"test", "this"}
    try:
        return tuple(sorted(path.name for path in Path.cwd().glob("*.py") if path.stem in names))
    except OSError:
        return ()


def _free_bytes(folder):
    try:
        state = os.statvfs(folder)
    except (AttributeError, OSError):
        return None
    return state.f_bavail * state.f_frsize


def _read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _try_loopback():
    """Connect to ourselves over 127.0.0.1; returns the error's text, empty if a byte came through."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5) as there:
                here, _ = server.accept()
                with here:
                    there.sendall(b"x")
                    here.settimeout(5)
                    return "" if here.recv(1) == b"x" else "no byte came through"
    except OSError as error:
        return str(error)


def try_launch(gpu_count: int) -> Trial:
    """Let two ranks add a number, twice, on GPUs if there are two; an error becomes the trial's sentence."""
    try:
        from utils.ranks import launch
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            run = launch(_sum_of_ones, world_size=2, timeout=60, echo=False, backend=None if gpu_count >= 2 else "gloo")
            seconds.append(time.perf_counter() - begin)
            if run.results != [2.0, 2.0]:
                return Trial(error=f"1 + 1 gave {run.results}")
        return Trial(*seconds)
    except Exception as error:  # noqa: BLE001  whatever went wrong, the reader gets a line about it
        return Trial(error=_first_line(error))


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _sum_of_ones():
    import torch
    import torch.distributed as dist

    from utils.ranks import device
    one = torch.ones(1, device=device())
    dist.all_reduce(one)
    return one.item()
