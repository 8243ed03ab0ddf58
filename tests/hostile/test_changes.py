"""The machine changes under a student who works already; the table is in test_machines.py."""
import re
import sys

import pytest
import ranks_work
from machine import HERE, Machine

from utils import RankError, launch

EVERYBODY = "$PPID $(cat /proc/$PPID/task/*/children)"  # the student's process and the ranks' server


def limit(option, value):
    return f"for id in {EVERYBODY}; do prlimit --pid $id --{option}={value}: 2>/dev/null || true; done"


WORKS = {
    "a host name that does not resolve": {
        "shell": "hostname no-such-host; mount --bind /dev/null /etc/hosts; mount --bind /dev/null /etc/resolv.conf"},
    "IPv6 off": {"shell": "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || true"},
    "32 ranks and 256 open files": {"shell": limit("nofile", 256), "world_size": 32},
    "one core": {"shell": f"for id in {EVERYBODY}; do taskset -pc 0 $id >/dev/null 2>&1 || true; done", "world_size": 4},
    "a full /dev/shm": {
        "shell": "mount -t tmpfs -o size=64k none /dev/shm; cat /dev/zero >/dev/shm/full 2>/dev/null || true"},
    "another GLOO_SOCKET_IFNAME": {"environment": {"GLOO_SOCKET_IFNAME": "eth77"}},
}


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    if reason := machine.missing():
        pytest.skip(reason)
    with machine.student() as student:
        yield student


@pytest.mark.parametrize("oddity", WORKS)
def test_works(student, oddity):
    answer = student.does(**WORKS[oddity])
    assert (answer["ranks"], answer["widget"]) == ([WORKS[oddity].get("world_size", 2)], "measured")


def test_too_few_open_files(student):
    refused = student.does(shell=limit("nofile", 30), world_size=8)
    assert refused["ranks"] == ("RankError: The ranks could not be started: this process may open no more files. Use fewer "
                                "ranks, or raise the limit before you start Jupyter: ulimit -n 4096.")
    assert refused["doctor"]["limits"][:2] == ["warning", "at most 30 open files: 8 ranks may not start"]
    again = student.does(shell=limit("nofile", 256))
    assert again["ranks"] == [2.0], "what was opened for the ranks that could not start is closed again"


def test_no_loopback(student):
    refused = student.does(shell="ip link set lo down")
    sentence = r"The ranks talk to each other over 127\.0\.0\.1, which does not answer here \(.+\)\. Turn on the loopback"
    assert re.match(f"RankError: {sentence}", refused["ranks"]) and re.search(sentence, refused["widget"])
    assert refused["doctor"]["loopback"][0] == "problem"
    assert student.does(shell="ip link set lo up")["ranks"] == [2.0]


def test_a_port_scanner(student, tmp_path):
    """gloo takes whoever connects first for a rank: a scanner that sends zeros would break nearly every run."""
    report = tmp_path / "tried"
    scan = f"{sys.executable} {HERE / 'scanner.py'} {report} >/dev/null 2>&1 & echo $! >{tmp_path}/scanner"
    answer = student.does(shell=scan, world_size=4, launches=8)
    student.does(shell=f"kill $(cat {tmp_path}/scanner)")
    assert report.stat().st_size > 0, "the scanner saw the ranks' ports"
    assert (answer["ranks"], answer["widget"]) == ([4.0], "measured")


def test_the_notebooks_folder_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "moved away"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(RankError, match="this notebook's folder is gone. Open the notebook where it is now, and restart"):
        launch(ranks_work.total, world_size=2)
