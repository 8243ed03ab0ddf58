"""What this machine can do, and which path the course takes on it: `course doctor`, or `report()` in a notebook.

`gather` looks (`utils.machine`), `examine` judges. Judging is a pure function of the facts, so it can be tested for
machines that we do not have. Nothing here needs more than Python until the trial launch: where the course is only
half installed, `python utils/doctor.py` says what is missing.
"""
from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass, field

if __package__:
    from utils import machine
else:  # python utils/doctor.py
    import machine

Facts, Trial, PACKAGES = machine.Facts, machine.Trial, machine.PACKAGES
PYTHON_FLOOR = (3, 10)
TORCH_FLOOR, TORCH_CEILING = "2.10", "2.15"  # from the floor up to, not including, the ceiling; as in pyproject.toml
RANKS = 4                                   # what most lessons launch
GB = 1e9
OK, WARNING, PROBLEM = "ok", "warning", "problem"
NEEDED = ("numpy", "pandas", "matplotlib", "ipywidgets", "cloudpickle")
INSTALL = "Run 'make lab' in the course's folder, or install the course here: pip install --editable ."


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
    rules = (_python, _torch, _packages, _cores, _memory, _limits, _folders, _names, _gpus, _backend, _start, _loopback,
             _launch, _notebooks, _pictures, _place)
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
    if facts.torch_error:
        return Finding(PROBLEM, "torch", f"{version} cannot be loaded: {facts.torch_error}",
                       "If a line 'names' stands below, follow it first; otherwise 'make lab' in a fresh clone makes an "
                       "environment with a torch that works.")
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


def _limits(facts):
    low = {f"{facts.open_files} open files": "ulimit -n 4096" if (facts.open_files or 1e9) < 256 else "",
           f"{facts.processes} processes": "ulimit -u 4096" if (facts.processes or 1e9) < 512 else ""}
    found = [text for text, remedy in low.items() if remedy]
    if not found:
        return Finding(OK, "limits", "files and processes are enough")
    return Finding(WARNING, "limits", f"at most {' and '.join(found)}: 8 ranks may not start", "Raise it before you start "
                   f"Jupyter: {'; '.join(filter(None, low.values()))}. Or keep to few ranks and one notebook.")


def _folders(facts):
    if facts.temporary_error:
        return Finding(WARNING, "folders", f"no temporary file can be written: {facts.temporary_error}", "The ranks need none, "
                       "but JupyterLab and 'course check' do. Free some space, or name a folder before you start them: "
                       "export TMPDIR=FOLDER.")
    if facts.home_error:
        return Finding(WARNING, "folders", facts.home_error, "The ranks do not need it, but JupyterLab keeps its settings there. "
                       "'make lab' names another; if you start it yourself, name one before: export HOME=FOLDER.")
    if facts.temporary_bytes is not None and facts.temporary_bytes < 0.1 * GB:
        return Finding(WARNING, "folders", f"{facts.temporary_bytes / GB:.2f} GB are free for temporary files",
                       "Free some space on the disk, or name another folder before you start Jupyter: export TMPDIR=FOLDER.")
    return Finding(OK, "folders", "temporary files and settings can be written")


def _names(facts):
    if not facts.hiding_files:
        return Finding(OK, "names", "no file in this folder hides a module")
    files = ", ".join(facts.hiding_files)
    return Finding(WARNING, "names", f"in this folder: {files}", f"In a notebook of this folder, Python takes {files} for the "
                   "module of that name. Give each another name, then restart the kernel.")


def _pictures(facts):
    backend = facts.picture_backend
    if backend and not any(word in backend.lower() for word in ("inline", "nbagg", "ipympl", "widget", "notebook")):
        return Finding(WARNING, "pictures", f"the variable MPLBACKEND is {backend}: notebooks show no figures",
                       "Take it away before you start Jupyter ('unset MPLBACKEND'); 'make lab' does that.")
    return Finding(OK, "pictures", "notebooks show figures")


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
    seen = machine.look()
    if try_launch and not seen.torchrun and examine(seen).can_run:
        seen = dataclasses.replace(seen, trial=machine.try_launch(len(seen.gpus)))
    return seen


def report() -> None:
    """Print what this machine can do and which path the course takes on it."""
    main()


def main() -> int:
    """Print the report; returns the exit code of `course doctor`, 1 where the course cannot run."""
    diagnosis = examine(gather())
    print(render(diagnosis))
    return 0 if diagnosis.can_run else 1


if __name__ == "__main__":
    sys.exit(main())
