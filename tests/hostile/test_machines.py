"""Odd machines: each works, or says what is wrong in a sentence that helps. Here the machine is odd from the start.

What happens where; "works" means four ranks, a widget's button and the doctor. The tests are in this file, or, where the
machine changes under a student who works already, in test_changes.py.

| machine | what happens |
|---|---|
| host name that does not resolve, no name server | works: nothing asks for a name |
| IPv6 off | works |
| proxies, MASTER_ADDR, RANK, WORLD_SIZE, GLOO_SOCKET_IFNAME set to anything | works: unused, or set anew for the ranks |
| LANG unset, locale C; OMP_NUM_THREADS, PYTHONPATH, PYTHONSTARTUP odd; user named oddly | works |
| MPLBACKEND set | works; pyplot's figures do not show: the doctor warns, `make lab` takes it away |
| TMPDIR missing | works: Python falls back on /tmp |
| no folder for temporary files, disk full | works; `course check` says a sentence, the doctor warns |
| HOME missing, read-only, unset; no account of that number | works; the doctor warns, `make lab` names another home |
| repository that only root may write | works |
| one core | works; the doctor says that times say little |
| 32 ranks, 256 open files | works |
| too few open files for the ranks | a sentence: fewer ranks, or `ulimit -n`; the doctor warns below 256 |
| no more processes or threads | a sentence: fewer ranks, or `ulimit -u`; the doctor warns below 512 |
| 2 GB of memory | works; the doctor warns |
| /dev/shm of 64 kB, and full | works: gloo does not use it; for several GPUs the doctor warns |
| loopback off, or behind a firewall | a sentence within seconds; the doctor sees it |
| a program that connects to every port of 127.0.0.1 | works: the ranks listen elsewhere in 127.0.0.0/8 |
| a path with spaces, quotes, umlauts, Hangul | works |
| random.py and its like beside the notebook | works; the doctor warns |
| the notebook's folder is gone | a sentence |
| the wall clock jumps | works: only the monotonic clock counts |
"""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from machine import COURSE, HERE, Machine
from nbclient import NotebookClient

from utils.notebooks import BOOTSTRAP

NOTHING_WRITABLE = """
for folder in /var/tmp /usr/tmp /tmp; do
    if [ -d $folder ]; then mount -t tmpfs -o size=16k none $folder; cat /dev/zero >$folder/full 2>/dev/null || true; fi
done
mount -t tmpfs -o ro none /mnt
cd /mnt
"""
WITHOUT_AN_ACCOUNT = {"HOME": "/no/such/home", "USER": None, "LOGNAME": None, "TMPDIR": "/no/such/folder"}
ODD_VARIABLES = {
    "http_proxy": "http://203.0.113.1:1", "https_proxy": "nonsense", "ALL_PROXY": "socks5://nobody:1", "NO_PROXY": "[::1],*:x",
    "MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1", "RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "7",
    "GLOO_SOCKET_IFNAME": "eth77", "OMP_NUM_THREADS": "many", "LANG": None, "LC_ALL": "C", "PYTHONIOENCODING": "ascii",
    "PYTHONPATH": "/no/such/folder:", "MPLBACKEND": "TkAgg", "USER": "o'brien; rm <x>", "LOGNAME": "../../x y", "HOME": None,
}


@pytest.fixture
def made(tmp_path):
    """Make a machine, or skip the test where that cannot be done."""
    tmp_path.chmod(0o755)

    def make(**oddities):
        machine = Machine(tmp_path, **oddities)
        if reason := machine.missing():
            pytest.skip(reason)
        return machine

    return make


def doctors_warnings(answer):
    return {subject: text for subject, (level, text, _) in answer["doctor"].items() if level != "ok" and subject != "launch"}


def jumping_clock(folder):
    """The variable that gives a process such a wall clock, where there is a C compiler."""
    compiler, library = shutil.which("cc"), folder / "jumping_clock.so"
    if not compiler or sys.platform != "linux":
        return {}
    command = [compiler, "-shared", "-fPIC", "-o", library, HERE / "jumping_clock.c", "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": library}


def test_odd_variables_and_a_clock_that_jumps(made, tmp_path):
    with made(environment=ODD_VARIABLES | jumping_clock(tmp_path), apart=False).student() as student:
        answer = student.does(world_size=4)
    assert (answer["ranks"], answer["widget"]) == ([4.0], "measured")
    assert doctors_warnings(answer) == {"pictures": "the variable MPLBACKEND is TkAgg: notebooks show no figures"}


def test_no_account_no_home_and_a_course_that_only_root_may_write(made):
    machine = made(ordinary=True, shell="mount --bind /dev/null /etc/passwd", environment=WITHOUT_AN_ACCOUNT)
    with machine.student() as student:
        answer = student.does(world_size=4)
        assert (answer["ranks"], answer["widget"]) == ([4.0], "measured")
        assert doctors_warnings(answer) == {"folders": "the home folder /no/such/home does not exist"}
        refused = student.does(shell='for id in $PPID $(cat /proc/$PPID/task/*/children); do prlimit --pid $id --nproc=1: ; done')
    sentence = "The ranks could not be started: no more processes or threads may be started."
    assert refused["ranks"].startswith(f"RankError: {sentence}") and "ulimit -u" in refused["ranks"]
    assert sentence in refused["widget"]
    assert "1 processes" in doctors_warnings(refused)["limits"]


def test_make_lab_gives_jupyter_a_home_and_lets_it_show_figures(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path / "none"), "MPLBACKEND": "TkAgg"}
    command = ["make", "-o", ".venv/.ready-lab", "lab", "PY=env #"]  # in JupyterLab's place: print the variables
    done = subprocess.run(command, cwd=COURSE, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Your home folder cannot be written, so JupyterLab keeps its settings in build/home.\n"), done
    assert f"HOME={COURSE / 'build' / 'home'}" in done.stdout.splitlines()
    assert "MPLBACKEND=" not in done.stdout


def test_no_account_and_course_check(made):
    machine = made(ordinary=True, shell="mount --bind /dev/null /etc/passwd", environment=WITHOUT_AN_ACCOUNT)
    done = machine.run(sys.executable, "-m", "utils.cli", "check", COURSE / "solutions" / "01_all_reduce.ipynb")
    assert "7 of 7 questions pass. Well done." in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(any(Path(folder).resolve() in COURSE.resolve().parents for folder in ("/tmp", "/var/tmp", "/usr/tmp")),
                    reason="the course itself lies in a temporary folder, which this test fills")
def test_nothing_can_be_written(made):
    machine = made(shell=NOTHING_WRITABLE, environment={"HOME": "/mnt", "TMPDIR": None, "PYTHONPATH": COURSE})
    with machine.student() as student:
        answer = student.does(world_size=4)
    assert answer["ranks"] == [4.0]
    assert doctors_warnings(answer)["folders"].startswith("no temporary file can be written")
    check = machine.run(sys.executable, "-m", "utils.cli", "check", COURSE / "labs" / "01_all_reduce.ipynb")
    assert check.returncode == 2
    assert check.stderr == ("course: no folder for temporary files can be written. Free some space on the disk, or name a folder "
                            "before you start Jupyter: export TMPDIR=FOLDER.\n")


@pytest.fixture
def two_gigabytes(tmp_path):
    """Lines of shell that leave 2 GB to the machine: a control group's memory, or addresses where there is no such group."""
    for root, limit in ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"):
        group = Path(root, f"course-{tmp_path.parent.name}-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            yield f"echo 2000000000 >{group / limit}; echo 0 >{group}/cgroup.procs"
            _remove(group)
            return
        group.rmdir()
    yield "ulimit -v 2000000"


def _remove(group):
    until = time.monotonic() + 30
    while True:  # its last process may take a moment to end
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def test_two_gigabytes_in_an_odd_place(made, two_gigabytes, tmp_path):
    course = tmp_path / "it's \"my\" Küche 공부 (1)" / "course"
    shutil.copytree(COURSE / "utils", course / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE, course / "tests" / "hostile", ignore=shutil.ignore_patterns("__pycache__"))
    with made(shell=two_gigabytes, course=course).student() as student:
        answer = student.does(world_size=4)
    assert (answer["ranks"], answer["widget"]) == ([4.0], "measured")
    assert doctors_warnings(answer) == {"memory": "2.0 GB"}


def test_a_notebook_beside_files_that_hide_modules(tmp_path, monkeypatch):
    """The kernel has loaded Python's own modules before the folder counts; the ranks' server must not see the folder first."""
    for name in ("random", "tempfile", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('an exercise of mine')\n")
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    startup = tmp_path / "startup.py"
    startup.write_text("raise ValueError('a start-up file that fails')\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONSTARTUP", str(startup))
    cells = [f"import sys; sys.path.insert(0, {str(COURSE)!r})", BOOTSTRAP,
             "import torch, torch.distributed as dist\nfrom utils import launch\nfrom utils import doctor",
             "def total():\n    ones = torch.ones(3)\n    dist.all_reduce(ones)\n    return ones[0].item()\n"
             "launch(total, world_size=2).results",
             "{finding.subject: finding.text for finding in doctor.examine(doctor.gather(try_launch=False)).findings}['names']"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *_, results, names = [cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells[3:]]
    assert results == "[2.0, 2.0]"
    assert names == "'in this folder: random.py, statistics.py, tempfile.py'"
