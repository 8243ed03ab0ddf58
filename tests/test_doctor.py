"""The doctor's judgement on machines that we do not have, and one look at the machine that we have."""
import dataclasses
import re
import subprocess
import sys

import pytest

from utils import doctor, machine
from utils.doctor import OK, PROBLEM, WARNING, Facts, Trial, examine, render
from utils.ranks import choose_backend

LAPTOP = Facts(
    python=(3, 12, 4), platform="linux", machine="x86_64", cores=8, memory_bytes=int(16e9),
    versions=dict.fromkeys(doctor.PACKAGES, "1.0") | {"torch": "2.13.0+cpu"},
    shared_memory_bytes=int(8e9), trial=Trial(3.2, 0.15))


def like(facts=LAPTOP, **changes):
    return dataclasses.replace(facts, **changes)


def finding(subject, facts):
    return next(finding for finding in examine(facts).findings if finding.subject == subject)


def test_a_laptop_without_a_gpu_is_well():
    diagnosis = examine(LAPTOP)
    assert {finding.level for finding in diagnosis.findings} == {OK}
    assert diagnosis.can_run
    assert "gloo" in diagnosis.path and "CPU" in diagnosis.path


@pytest.mark.parametrize("subject, changes, level, words", [
    ("Python", {"python": (3, 9, 18)}, PROBLEM, "Install Python 3.10 or newer"),
    ("Python", {"python": (3, 10, 0)}, OK, ""),
    ("Python", {"platform": "win32"}, PROBLEM, "WSL2"),
    ("torch", {"versions": LAPTOP.versions | {"torch": None}}, PROBLEM, "make lab"),
    ("torch", {"versions": LAPTOP.versions | {"torch": "2.9.1+cu128"}}, PROBLEM, "pip install --upgrade 'torch>=2.10,<2.15'"),
    ("torch", {"versions": LAPTOP.versions | {"torch": "2.10.0"}}, OK, ""),
    ("torch", {"versions": LAPTOP.versions | {"torch": "2.14.1"}}, OK, ""),
    ("torch", {"versions": LAPTOP.versions | {"torch": "2.15.0a0+git1"}}, WARNING, "make lab"),
    ("torch", {"versions": LAPTOP.versions | {"torch": "3.0"}}, WARNING, "make lab"),
    ("torch", {"gloo": False}, PROBLEM, "official build"),
    ("packages", {"versions": LAPTOP.versions | {"pandas": None}}, PROBLEM, "make lab"),
    ("memory", {"memory_bytes": int(1e9)}, PROBLEM, "more memory"),
    ("memory", {"memory_bytes": int(2e9)}, WARNING, "one notebook"),
    ("torch", {"torch_error": "libtorch_cpu.so: failed to map segment"}, PROBLEM, "make lab"),
    ("limits", {"open_files": 64}, WARNING, "ulimit -n 4096. Or"),
    ("limits", {"processes": 100}, WARNING, "ulimit -u 4096. Or"),
    ("limits", {"processes": 100, "open_files": 100}, WARNING, "ulimit -n 4096; ulimit -u 4096"),
    ("limits", {"open_files": 1024, "processes": None}, OK, ""),
    ("folders", {"temporary_error": "No usable temporary directory found"}, WARNING, "export TMPDIR=FOLDER"),
    ("folders", {"temporary_bytes": int(5e6)}, WARNING, "export TMPDIR=FOLDER"),
    ("folders", {"home_error": "the home folder /nonexistent does not exist"}, WARNING, "export HOME=FOLDER"),
    ("names", {"hiding_files": ("random.py", "torch.py")}, WARNING, "takes random.py, torch.py for the module"),
    ("pictures", {"picture_backend": "TkAgg"}, WARNING, "unset MPLBACKEND"),
    ("pictures", {"picture_backend": "module://matplotlib_inline.backend_inline"}, OK, ""),
    ("loopback", {"loopback_error": "Network is unreachable"}, PROBLEM, "ip link set lo up"),
    ("launch", {"trial": Trial(error="Rank 1 was killed.")}, PROBLEM, "restart the kernel"),
    ("launch", {"trial": None}, WARNING, ""),
    ("notebooks", {"versions": LAPTOP.versions | {"nbval": None}}, WARNING, "pip install nbval"),
    ("notebooks", {"versions": LAPTOP.versions | {"jupyterlab": None}}, WARNING, "pip install jupyterlab"),
    ("notebooks", {"versions": LAPTOP.versions | {"jupyterlab": None}, "colab": True}, OK, ""),
    ("GPUs", {"gpus": ("H100",) * 2, "shared_memory_bytes": int(64e6)}, WARNING, "--shm-size"),
    ("GPUs", {"gpus": ("H100",), "shared_memory_bytes": int(64e6)}, OK, ""),
])
def test_what_is_said_about(subject, changes, level, words):
    found = finding(subject, like(**changes))
    assert found.level == level
    assert words in found.remedy
    assert examine(like(**changes)).can_run == (level != PROBLEM)


@pytest.mark.parametrize("gpus", [0, 1, 2, 4, 8])
def test_the_backend_is_the_one_that_launch_will_choose(gpus):
    facts = like(gpus=("H100",) * gpus)
    choice = choose_backend(gpus, doctor.RANKS, "linux")
    assert f"{doctor.RANKS} ranks get {choice.backend} on {choice.devices[0]}" in finding("backend", facts).text
    assert ("NCCL between them" in examine(facts).path) == (choice.backend == "nccl")


def test_two_gpus_say_how_to_use_them():
    assert "world_size=2" in finding("backend", like(gpus=("H100",) * 2)).text


def test_macos_spawns():
    assert "spawn" in finding("start", like(platform="darwin")).text
    assert finding("place", like(platform="darwin")).text == "macOS"


@pytest.mark.parametrize("field, words", [("colab", "Colab"), ("wsl", "WSL2"), ("torchrun", "torchrun")])
def test_the_place_is_named(field, words):
    assert words in finding("place", like(**{field: True})).text


def test_fewer_cores_than_ranks_is_said_and_is_no_fault():
    assert "take turns" in finding("cores", like(cores=2)).text
    assert "take turns" not in finding("cores", like(cores=4)).text
    assert finding("cores", like(cores=1)).text.startswith("1 core for")


def test_every_problem_and_every_warning_that_can_be_mended_has_a_remedy():
    worst = like(python=(3, 8, 0), versions=dict.fromkeys(doctor.PACKAGES), memory_bytes=1,
                 loopback_error="no", trial=Trial(error="no"))
    assert [f.subject for f in examine(worst).findings if f.level == PROBLEM and not f.remedy] == []


def test_the_report_has_one_line_per_finding_in_the_same_order_on_every_machine():
    worst = like(python=(3, 8, 0), versions=dict.fromkeys(doctor.PACKAGES))
    well, ill = ([line[9:20].strip() for line in render(examine(facts)).split("\n\n")[0].splitlines()]
                 for facts in (LAPTOP, worst))
    assert well == ill == ["Python", "torch", "packages", "cores", "memory", "limits", "folders", "names", "GPUs",
                           "backend", "start", "loopback", "launch", "notebooks", "pictures", "place"]


def test_the_report_ends_with_the_verdict_after_the_remedies():
    ill = render(examine(like(memory_bytes=int(1e9)))).splitlines()
    assert ill[-1] == "The course cannot run here yet."
    assert "What to do" in ill and any(line.startswith("memory: ") for line in ill)
    well = render(examine(LAPTOP))
    assert "What to do" not in well
    assert well.splitlines()[-1].startswith("The course runs here: one process per rank")


@pytest.mark.parametrize("text, cores", [
    ("max 100000\n", None), ("", None), ("-1 100000", None), ("150000 100000", 2), ("20000 100000", 1),
    ("400000 100000", 4)])
def test_a_containers_share_of_cores(text, cores):
    assert machine._cgroup_cores(text) == cores


@pytest.mark.parametrize("version, numbers", [
    ("2.13.0+cpu", (2, 13)), ("2.6", (2, 6)), ("2.15.0a0+git1", (2, 15)), ("3.0rc1", (3, 0))])
def test_versions_are_compared_as_numbers(version, numbers):
    assert doctor._numbers(version) == numbers


def test_this_machine(capsys):
    doctor.report()
    printed = capsys.readouterr().out
    assert re.search(r"^ok       launch     2 ranks added a number in \d+\.\d s, the second time in \d+\.\d\d s$", printed, re.M)
    assert printed.splitlines()[-1].startswith("The course runs here: ")


def test_it_speaks_where_nothing_is_installed():
    bare = [sys.executable, "-E", "-s", "-S", doctor.__file__]  # neither site-packages nor the course can be imported
    done = subprocess.run(bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == ""
    assert "\ntorch, packages, backend: Run 'make lab'" in done.stdout
    assert done.stdout.splitlines()[-1] == "The course cannot run here yet."


def test_no_launch_where_something_is_wrong_already(monkeypatch):
    monkeypatch.setattr(machine, "_try_loopback", lambda: "no such interface")
    monkeypatch.setattr(machine, "try_launch", lambda gpu_count: pytest.fail("launched"))
    facts = doctor.gather()
    assert facts.trial is None and not examine(facts).can_run


def test_a_launch_that_fails_becomes_a_sentence(monkeypatch):
    import utils.ranks

    def broken(*args, **options):
        raise RuntimeError("Rank 0 could not start.\nmore lines")

    monkeypatch.setattr(utils.ranks, "launch", broken)
    assert machine.try_launch(0) == Trial(error="Rank 0 could not start.")
