import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from utils.grading import box, sandbox
from utils.grading.errors import GradingError

LEVEL, REASON = box.level()
boxed = pytest.mark.skipif(LEVEL != "userns", reason=f"no box on this machine: {REASON}")


def inside(tmp_path: Path, code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run Python code in a box that hides the folder ``secret`` and works in the folder ``work``."""
    for folder in tmp_path.parents:  # private ones would be empty in the box if root runs the tests
        if Path("/tmp") in folder.parents and folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    if not (tmp_path / "work").exists():
        tmp_path.chmod(0o755)
    for name in ("work", "secret", "public"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "public").chmod(0o777)  # the box keeps even what everybody may write
    (tmp_path / "work" / "lab.txt").write_text("the lab")
    (tmp_path / "secret" / "solution.txt").write_text("the solution")
    (tmp_path / "secret" / "shown").mkdir(exist_ok=True)
    (tmp_path / "secret" / "shown" / "utils.txt").write_text("support code")
    description = box.spec(
        str(tmp_path / "work"),
        hide=[str(tmp_path / "secret"), str(Path.home())],
        keep=[sys.prefix, sys.base_prefix, str(tmp_path / "secret" / "shown")],
        **options,
    )
    command = box.command(description, [sys.executable, "-I", "-S", "-c", code, str(tmp_path), *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def said(tmp_path: Path, code: str, *arguments: str, **options) -> str:
    ran = inside(tmp_path, "import os, sys\nroot = sys.argv[1]\n" + code, *arguments, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@boxed
def test_the_work_folder_has_its_files_and_can_be_written_but_nothing_comes_out(tmp_path):
    assert said(
        tmp_path, "print(open('lab.txt').read()); open('new', 'w').write('x'); print(os.listdir('.'))"
    ) == ("the lab\n['new', 'lab.txt']")
    assert os.listdir(tmp_path / "work") == ["lab.txt"]


@boxed
def test_what_is_hidden_is_empty_and_what_is_kept_is_seen(tmp_path):
    assert (
        said(tmp_path, "print(os.listdir(root + '/secret'), os.listdir(root + '/secret/shown'))")
        == "['shown'] ['utils.txt']"
    )


@boxed
@pytest.mark.parametrize("place", ["public", "secret", "secret/shown", ".", "/", "/usr", "/etc", "/var"])
def test_nothing_else_can_be_written(tmp_path, place):
    code = "try:\n    open(os.path.join(root, sys.argv[2], 'x'), 'w'); print('written')\nexcept OSError as e: print(e.errno)"
    assert said(tmp_path, code, place) in ("30", "13")


@boxed
def test_a_private_folder_on_the_way_is_no_obstacle(tmp_path):
    said(tmp_path, "pass")
    tmp_path.chmod(0o700)
    assert (
        said(tmp_path, "print(os.listdir(root + '/secret/shown'), open('lab.txt').read())")
        == "['utils.txt'] the lab"
    )


@boxed
def test_no_network_but_the_loopback(tmp_path):
    assert (
        said(
            tmp_path,
            "import socket\ntry:\n    socket.create_connection(('1.1.1.1', 53), timeout=2)\nexcept OSError as e: print(e.errno)\n"
            "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('loopback')",
        )
        == "101\nloopback"
    )


@boxed
def test_other_processes_are_neither_seen_nor_reached(tmp_path):
    assert said(tmp_path, "print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))") == "[1, 2]"
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        code = (
            "try:\n    os.kill(int(sys.argv[2]), 9); print('killed')\nexcept OSError as e: print(type(e).__name__)\n"
            "try: os.kill(-1, 9)\nexcept OSError: pass"
        )
        assert said(tmp_path, code, str(sleeper.pid)) == "ProcessLookupError"
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


@boxed
@pytest.mark.parametrize(
    "attempt",
    [
        "libc.umount2((root + '/secret').encode(), 2)",
        "libc.mount(b'none', b'/', None, ctypes.c_ulong(32 | 4096), b'')",
        "libc.unshare(0x10000000 | 0x20000)",
        "libc.setns(os.open('/proc/1/ns/mnt', 0), 0)",
        "libc.ptrace(16, 1, 0, 0)",
    ],
)
def test_there_is_no_way_out(tmp_path, attempt):
    assert (
        said(
            tmp_path,
            f"import ctypes\nlibc = ctypes.CDLL(None)\ntry: print({attempt})\nexcept OSError: print(-1)",
        )
        == "-1"
    )


@boxed
def test_a_daemon_ends_with_the_box(tmp_path):
    code = (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execve(sys.executable, [sys.executable, '-S', '-c',"
        " 'import time; time.sleep(94)'], {})\n    os._exit(0)\nos.wait(); print('left it')"
    )
    start = time.monotonic()
    assert said(tmp_path, code) == "left it" and time.monotonic() - start < 60
    time.sleep(0.2)
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if "time.sleep(94)" in " ".join(p.info["cmdline"] or [])
    ]


@boxed
def test_everything_ends_when_the_outermost_process_is_killed(tmp_path):
    inside(tmp_path, "pass")
    description = box.spec(
        str(tmp_path / "work"), hide=[str(Path.home())], keep=[sys.prefix, sys.base_prefix]
    )
    process = subprocess.Popen(
        box.command(description, [sys.executable, "-S", "-c", "import time; time.sleep(95)"])
    )
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not (
        inner := [
            c
            for c in psutil.Process(process.pid).children(recursive=True)
            if "time.sleep(95)" in " ".join(c.cmdline()) and c.ppid() != process.pid
        ]
    ):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(inner, timeout=10)[1]


@boxed
def test_memory_and_disk_have_limits(tmp_path):
    assert (
        said(tmp_path, "try: bytearray(1 << 30)\nexcept MemoryError: print('memory')", memory_bytes=1 << 29)
        == "memory"
    )
    code = (
        "try:\n    with open('big', 'wb') as f:\n        [f.write(bytes(1 << 20)) for _ in range(64)]\n"
        "except OSError as e: print(e.errno)"
    )
    assert said(tmp_path, code, folder_bytes=16 << 20) in ("27", "28")


@boxed
def test_a_fork_bomb_is_bounded(tmp_path):
    code = (
        "import time\ncount = 0\ntry:\n    while count < 400:\n"
        "        if os.fork() == 0:\n            time.sleep(20); os._exit(0)\n"
        "        count += 1\nexcept OSError: pass\nprint(count)"
    )
    assert int(said(tmp_path, code, processes=40)) < 60


@boxed
def test_the_exit_code_is_the_commands(tmp_path):
    assert inside(tmp_path, "raise SystemExit(7)").returncode == 7
    assert inside(tmp_path, "import os; os.kill(os.getpid(), 9)").returncode == 137


def test_a_wish_that_cannot_be_granted_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(box, "level", lambda: ("none", "no namespaces here"))
    with pytest.raises(GradingError, match="the box does not work here: no namespaces here"):
        sandbox.choose("userns", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(GradingError, match="would run as root without a box \\(no namespaces here\\)"):
        sandbox.choose("auto", tmp_path)
    chosen, warning = sandbox.choose("auto", tmp_path, at_own_risk=True)
    assert chosen.level == "none" and "can read this account's files" in warning
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert sandbox.choose("auto", tmp_path)[0].level == "none"
    assert "walls are those of the container" in sandbox.choose("container", tmp_path)[1]
