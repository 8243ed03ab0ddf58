"""What this machine can do, and which path the course takes on it: `course doctor`, or `report()` in a notebook.

`gather` looks at the machine, `examine` judges. Judging is a pure function of the facts, so it can be tested for
machines that we do not have. Nothing here needs more than Python until the trial launch: where the course is only
half installed, `python utils/doctor.py` says what is missing.
"""
from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PYTHON_FLOOR = (3, 10)
TORCH_FLOOR, TORCH_CEILING = "2.10", "2.15"  # from the floor up to, not including, the ceiling; as in pyproject.toml
RANKS = 4                                   # what most lessons launch
GB = 1e9
OK, WARNING, PROBLEM = "ok", "warning", "problem"
PACKAGES = ("torch", "numpy", "pandas", "matplotlib", "ipywidgets", "cloudpickle", "jupyterlab", "nbval")
NEEDED = ("numpy", "pandas", "matplotlib", "ipywidgets", "cloudpickle")
INSTALL = "Run 'make lab' in the course's folder, or install the course here: pip install --editable ."


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
    gloo: bool = True
    loopback_error: str = ""
    memory_files: bool = True            # memfd_create: the ranks' files are in memory
    shared_memory_bytes: int | None = None  # free in /dev/shm, None where there is none
    colab: bool = False
    wsl: bool = False
    torchrun: bool = False
    trial: Trial | None = None


@dataclass(frozen=True)
class Finding:
    """One line of the report: a level, what it is about, what was found, and what to do about it."""
    level: str
    subject: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and one sentence about the path that the course takes."""
    findings: list[Finding] = field(default_factory=list)
    path: str = ""

    @property
    def can_run(self) -> bool:
        return all(finding.level != PROBLEM for finding in self.findings)


# ---- judging: facts -> findings -----------------------------------------------------------------------------------

def examine(facts: Facts) -> Diagnosis:
    """Judge a machine by its facts; `can_run` of the result is False if any finding is a problem."""
    rules = (_python, _torch, _packages, _cores, _memory, _gpus, _backend, _start, _loopback, _launch, _notebooks, _place)
    return Diagnosis([rule(facts) for rule in rules], _path(facts))


def render(diagnosis: Diagnosis) -> str:
    """Return the report as text: one line per finding, remedies below, the course's path last."""
    lines = [f"{finding.level:<8} {finding.subject:<10} {finding.text}" for finding in diagnosis.findings]
    subjects = {}
    for finding in diagnosis.findings:
        if finding.remedy:
            subjects.setdefault(finding.remedy, []).append(finding.subject)
    if subjects:
        lines += ["", "What to do", *(f"{', '.join(about)}: {remedy}" for remedy, about in subjects.items())]
    verdict = f"The course runs here: {diagnosis.path}" if diagnosis.can_run else "The course cannot run here yet."
    return "\n".join([*lines, "", verdict])


def _python(facts):
    version = ".".join(map(str, facts.python))
    text = f"{version} on {facts.platform} ({facts.machine})"
    if facts.platform == "win32":
        return Finding(PROBLEM, "Python", text, "The ranks need Linux or macOS. On Windows, install WSL2 "
                       "('wsl --install' in a terminal) and run the course inside it.")
    if facts.python[:2] < PYTHON_FLOOR:
        return Finding(PROBLEM, "Python", text, f"Install Python {_dotted(PYTHON_FLOOR)} or newer, then run "
                       "'make lab PYTHON=python3' with its name.")
    return Finding(OK, "Python", text)


def _torch(facts):
    version, supported = facts.versions.get("torch"), f"the course supports {TORCH_FLOOR} up to below {TORCH_CEILING}"
    if version is None:
        return Finding(PROBLEM, "torch", f"not installed ({supported})", INSTALL)
    if _numbers(version) < _numbers(TORCH_FLOOR):
        return Finding(PROBLEM, "torch", f"{version}, too old ({supported})",
                       f"pip install --upgrade 'torch>={TORCH_FLOOR},<{TORCH_CEILING}', or run 'make lab', which makes "
                       "an environment of its own.")
    if _numbers(version) >= _numbers(TORCH_CEILING):
        return Finding(WARNING, "torch", f"{version}, newer than what the course was tried with ({supported})",
                       "If a lesson fails, 'make lab' makes an environment with a torch that works.")
    if not facts.gloo:
        return Finding(PROBLEM, "torch", f"{version}, built without torch.distributed and gloo",
                       "Install the official build of torch: pip install --force-reinstall torch.")
    return Finding(OK, "torch", f"{version} ({supported})")


def _packages(facts):
    missing = [name for name in NEEDED if not facts.versions.get(name)]
    if missing:
        return Finding(PROBLEM, "packages", f"missing: {', '.join(missing)}", INSTALL)
    return Finding(OK, "packages", ", ".join(f"{name} {facts.versions[name]}" for name in NEEDED))


def _cores(facts):
    text = _count(facts.cores, "core")
    if facts.cores < RANKS:
        text += f" for {RANKS} ranks: they take turns, so compute times say little; bytes and counts are exact"
    return Finding(OK, "cores", text)


def _memory(facts):
    text = f"{facts.memory_bytes / GB:.1f} GB"
    if facts.memory_bytes < 1.5 * GB:
        return Finding(PROBLEM, "memory", text, f"{RANKS} ranks with torch need about 1.5 GB. Close other programs, "
                       "or give the container or virtual machine more memory.")
    if facts.memory_bytes < 4 * GB:
        return Finding(WARNING, "memory", text, "Keep one notebook open at a time; 8 ranks may not fit.")
    return Finding(OK, "memory", text)


def _gpus(facts):
    if not facts.gpus:
        return Finding(OK, "GPUs", "none: every lesson works on the CPU")
    text = f"{len(facts.gpus)}: {', '.join(dict.fromkeys(facts.gpus))}"
    small = facts.shared_memory_bytes is not None and facts.shared_memory_bytes < 0.5 * GB
    if len(facts.gpus) > 1 and small:
        return Finding(WARNING, "GPUs", f"{text}, but /dev/shm has {facts.shared_memory_bytes / GB:.2f} GB free",
                       "NCCL exchanges data through /dev/shm. In a container, start it with --shm-size=1g or --ipc=host.")
    return Finding(OK, "GPUs", text)


def _backend(facts):
    choice = _choice(facts)
    if choice is None:
        return Finding(PROBLEM, "backend", "unknown, because the engine could not be loaded", INSTALL)
    text = f"{RANKS} ranks get {choice.backend} on {', '.join(dict.fromkeys(choice.devices))}"
    if choice.banner:
        text += f"; launch(..., world_size={len(facts.gpus)}) uses NCCL and the GPU{'s' * (len(facts.gpus) > 1)}"
    return Finding(OK, "backend", text)


def _start(facts):
    if facts.platform != "linux":
        return Finding(OK, "start", "each rank is a new Python (spawn): a launch takes several seconds")
    where = "in memory" if facts.memory_files else "in temporary files"
    return Finding(OK, "start", f"ranks are forked from a server that has torch loaded; their records are {where}")


def _loopback(facts):
    if facts.loopback_error:
        return Finding(PROBLEM, "loopback", f"127.0.0.1 does not answer: {facts.loopback_error}",
                       "The ranks talk to each other over 127.0.0.1. Turn on the loopback interface "
                       "('ip link set lo up') or allow it in the firewall or sandbox.")
    return Finding(OK, "loopback", "127.0.0.1 answers")


def _launch(facts):
    if facts.trial is None:
        return Finding(WARNING, "launch", "not tried, because of a problem above")
    if facts.trial.error:
        return Finding(PROBLEM, "launch", f"2 ranks could not add a number: {facts.trial.error}",
                       "Read the sentence above; if it does not help, restart the kernel or 'make lab' in a fresh clone.")
    return Finding(OK, "launch", f"2 ranks added a number in {facts.trial.first_seconds:.1f} s, "
                   f"the second time in {facts.trial.second_seconds:.2f} s")


def _notebooks(facts):
    lab, nbval = (facts.versions.get(name) for name in ("jupyterlab", "nbval"))
    text = f"JupyterLab {lab or 'not installed'}, nbval {nbval or 'not installed'}"
    if nbval is None:
        return Finding(WARNING, "notebooks", text, "'course check' and 'course grade' need nbval: pip install nbval.")
    if lab is None and not facts.colab:
        return Finding(WARNING, "notebooks", text, "To read the lessons: pip install jupyterlab, or use an editor that "
                       "opens notebooks.")
    return Finding(OK, "notebooks", text)


def _place(facts):
    if facts.torchrun:
        return Finding(OK, "place", "a rank of torchrun: launch uses the ranks that exist")
    if facts.colab:
        return Finding(OK, "place", "Google Colab: widgets work, processes end with the session")
    if facts.wsl:
        return Finding(OK, "place", "Linux inside Windows (WSL2)")
    return Finding(OK, "place", {"linux": "Linux", "darwin": "macOS"}.get(facts.platform, facts.platform))


def _path(facts):
    choice = _choice(facts)
    if choice is None:
        return ""
    if choice.backend == "nccl":
        return f"one process per rank, one GPU per rank, NCCL between them (up to {len(facts.gpus)} ranks)."
    return "one process per rank on the CPU, gloo between them over 127.0.0.1."


def _choice(facts):
    try:
        from utils.ranks import choose_backend
    except ImportError:
        return None
    return choose_backend(len(facts.gpus), RANKS, facts.platform)


def _numbers(version):
    """The first two numbers of a version, for comparing: "2.13.0+cpu" gives (2, 13)."""
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", version).groups()))


def _dotted(numbers):
    return ".".join(map(str, numbers))


def _count(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"


# ---- looking at the machine ---------------------------------------------------------------------------------------

def gather(try_launch: bool = True) -> Facts:
    """Look at this machine; with `try_launch`, start two ranks twice (about 4 s)."""
    versions = {name: _version(name) for name in PACKAGES}
    gpus, gloo = _torch_facts() if versions["torch"] else ((), False)
    facts = Facts(
        python=sys.version_info[:3], platform=sys.platform, machine=platform.machine(), versions=versions,
        cores=_usable_cores(), memory_bytes=_usable_memory(), gpus=gpus, gloo=gloo, loopback_error=_try_loopback(),
        memory_files=hasattr(os, "memfd_create"), shared_memory_bytes=_free_bytes("/dev/shm"),
        colab=_installed("google.colab"), wsl="microsoft" in platform.release().lower(),
        torchrun="TORCHELASTIC_RUN_ID" in os.environ)
    if try_launch and not facts.torchrun and not any(f.level == PROBLEM for f in examine(facts).findings):
        facts = Facts(**{**vars(facts), "trial": _try_launch(len(gpus))})
    return facts


def report() -> None:
    """Print what this machine can do and which path the course takes on it."""
    main()


def main() -> int:
    """Print the report; returns the exit code of `course doctor`, 1 where the course cannot run."""
    diagnosis = examine(gather())
    print(render(diagnosis))
    return 0 if diagnosis.can_run else 1


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
    """The GPUs' names, and whether gloo is there. No CUDA context is made in this process."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return (), False
    count = torch.cuda.device_count()
    names = _gpu_names() if count else []
    gpus = tuple(names) if len(names) == count else ("NVIDIA GPU",) * count
    return gpus, dist.is_available() and dist.is_gloo_available()


def _gpu_names():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split("\n")[:-1]
    except (OSError, subprocess.TimeoutExpired):
        return []


def _usable_cores():
    quota = _cgroup_cores(_read("/sys/fs/cgroup/cpu.max"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota or cores)


def _cgroup_cores(text):
    """The cores that a container may use, from "QUOTA PERIOD" in microseconds; None without a limit."""
    quota, _, period = text.strip().partition(" ")
    return max(1, round(int(quota) / int(period))) if quota.isdigit() and period.isdigit() else None


def _usable_memory():
    """Bytes of memory, or of the container's share of it if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


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


def _try_launch(gpu_count):
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
        return Trial(error=(str(error).strip().splitlines() or [type(error).__name__])[0])


def _sum_of_ones():
    import torch
    import torch.distributed as dist

    from utils.ranks import device
    one = torch.ones(1, device=device())
    dist.all_reduce(one)
    return one.item()


if __name__ == "__main__":
    sys.exit(main())
