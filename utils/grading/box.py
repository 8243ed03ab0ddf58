"""A rootless Linux box: run a command that sees no solutions, no network, no other processes, and keeps nothing.

Run as a script: ``python -I -S box.py SPEC COMMAND…``, where ``SPEC`` is the JSON of :func:`spec`.  It needs only the
standard library, so it starts in about 20 ms.  The processes are: one that makes the namespaces and waits; process 1
of the box, which mounts, gives up all rights and reaps; and the command.  A warm process (``warm_process.py``) calls
:func:`main` in a fork of its own, with a function instead of a command.

Inside, the root directory is read-only, the work folder is a small file system in memory that starts with the files of
the folder outside, hidden folders are empty, only the loopback network exists, and when process 1 ends, so does every
process of the box.  Where the system does not allow this, :func:`level` says so and why.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable

NOBODY = 65534
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 4, 24, 38
_SETUP_FAILED = 125


def spec(
    folder: str,
    *,
    hide: list[str],
    keep: list[str],
    memory_bytes: int = 4 << 30,
    folder_bytes: int = 512 << 20,
    processes: int = 256,
) -> str:
    """Return the description of a box.

    Arguments:
        folder: the work folder; its files are copied in, and it is the only place that can be written.
        hide: folders that are empty inside.
        keep: what stays visible, read-only, although it lies in a hidden folder.
        memory_bytes: address space of each process.
        folder_bytes: size of the work folder and of each file.
        processes: how many processes there may be.
    """
    if (
        os.geteuid() == 0
    ):  # the box then runs as nobody, who cannot pass private folders: they become empty ones
        hide = [*hide, *filter(None, map(_private_ancestor, [folder, *hide, *keep]))]
    hidden = _outermost(hide)
    kept = [path for path in _outermost(keep) if any(path.startswith(outer + os.sep) for outer in hidden)]
    return json.dumps(
        {
            "folder": os.path.realpath(folder),
            "hide": hidden,
            "keep": kept,
            "memory_bytes": memory_bytes,
            "folder_bytes": folder_bytes,
            "processes": processes,
        }
    )


def _private_ancestor(path: str) -> str | None:
    """Return the outermost folder on the way to ``path`` that others may not pass, or ``None``."""
    parts = os.path.realpath(path).split(os.sep)
    ways = (os.sep.join(parts[:length]) for length in range(2, len(parts) + 1))
    return next((way for way in ways if os.path.isdir(way) and not os.stat(way).st_mode & 0o001), None)


def _outermost(paths: list[str]) -> list[str]:
    """Return the folders that exist, without those inside another one, sorted."""
    real = sorted({os.path.realpath(path) for path in paths if os.path.isdir(path)} - {"/"})
    return [path for path in real if not any(path.startswith(outer + os.sep) for outer in real)]


def command(description: str, inner: list[str]) -> list[str]:
    """Return the command that runs ``inner`` in the box of ``description``."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), description, *inner]


def limits(memory_bytes: int) -> str:
    """Return the description of no box, only limits."""
    return json.dumps({"memory_bytes": memory_bytes})


def level() -> tuple[str, str]:
    """Return ``("userns", "")`` if a box works on this machine, else ``("none", reason)``, from a real run."""
    if sys.platform != "linux":
        return "none", f"boxes need Linux namespaces, this is {sys.platform}"
    with (
        tempfile.TemporaryDirectory(prefix="course-") as work,
        tempfile.TemporaryDirectory(prefix="course-") as secret,
    ):
        with open(os.path.join(secret, "key"), "w") as file:
            file.write("secret")
        hide = [secret, tempfile.gettempdir(), os.path.expanduser("~")]
        description = spec(work, hide=hide, keep=[sys.prefix, sys.base_prefix])
        try:
            ran = subprocess.run(
                command(description, [sys.executable, "-I", "-S", "-c", _PROBE, secret]),
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "none", str(error)
    if ran.returncode == 0 and ran.stdout == "closed\n":
        return "userns", ""
    return "none", (ran.stderr or ran.stdout).strip()[
        -300:
    ] or f"the trial run ended with code {ran.returncode}"


_PROBE = """
import os, socket, sys
secret = sys.argv[1]
problems = []
if os.path.exists(os.path.join(secret, 'key')): problems.append('a hidden folder is visible')
for place in ('/', os.path.dirname(sys.executable), secret):
    try:
        open(os.path.join(place, '.course-probe'), 'w'); problems.append(place + ' can be written')
    except OSError: pass
open('probe', 'w').close()
if os.getppid() != 1: problems.append('processes outside are visible')
try:
    socket.create_connection(('192.0.2.1', 80), timeout=1); problems.append('the network is reachable')
except OSError as error:
    if not isinstance(error, OSError) or error.errno != 101: problems.append('the network is not cut off')
server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), timeout=1)
print(*problems or ['closed'])
"""


def main(description: str, inner: list[str] | Callable[[], int], parent: int = 0) -> int:
    """Run ``inner``, a command or a function, in the box; return its exit code, 125 if the box could not be made.

    The box ends with the process ``parent``, by default the one that started this process.
    The calling process is not to be used for anything else afterwards: it belongs to the box's user and namespaces.
    """
    box = json.loads(description)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, the system ends these processes first, not the grader
    if "folder" not in box:
        return _run(box, inner)
    files = _files(box["folder"])
    _make_namespaces(box, parent or os.getppid())
    first = os.fork()
    if first == 0:
        guarded(lambda: _be_process_one(box, files, inner))
    _call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def guarded(work) -> None:
    """Run ``work`` in a forked process, which ends here whatever happens."""
    try:
        code = work()
    except BaseException as error:  # noqa: BLE001  the process must not return into its parent's code
        sys.stderr.write(f"box: {type(error).__name__}: {error}\n")
        code = _SETUP_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if code is not None and code >= 0 else _SETUP_FAILED if code is None else 128 - code)


def _make_namespaces(box: dict, parent: int) -> None:
    """Put this process into a user namespace of its own, and its children into namespaces for all the rest."""
    box["hidden"] = os.geteuid() == 0
    if box["hidden"]:  # only root can reach what is kept inside folders of root's
        _call("unshare", _NEWNS)
        _hide(box)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    # a change of identity makes a process's own files in /proc those of root, and undoes a death signal
    _call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise OSError("the grader ended")
    _call("unshare", _NEWNS | _NEWPID | _NEWNET | _NEWIPC)


def _be_process_one(box: dict, files: dict[str, bytes], inner: list[str] | Callable[[], int]) -> int:
    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _mount_everything(box, files)
    _loopback_up()
    _give_up_rights()
    _call(
        "prctl", _SET_DUMPABLE, 0, 0, 0, 0
    )  # the command has the same user, and must not get hold of this process
    main_process = os.fork()
    if main_process == 0:
        guarded(lambda: _run(box, inner))
    while True:  # reap everybody; the command's end is the end of the box
        pid, status = os.wait()
        if pid == main_process:
            return os.waitstatus_to_exitcode(status)


def _run(box: dict, inner: list[str] | Callable[[], int]) -> int:
    limit("RLIMIT_AS", box["memory_bytes"])
    limit("RLIMIT_FSIZE", box.get("folder_bytes", 512 << 20))
    limit("RLIMIT_CORE", 0)
    if "folder" in box:
        limit("RLIMIT_NPROC", box["processes"])
        os.chdir(box["folder"])
    if callable(inner):
        if sys.platform == "linux":
            _call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)
        return inner()
    os.execv(inner[0], inner)


def limit(name: str, value: int) -> None:
    """Lower a resource limit of this process, as far as the system lets it."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (value, value))


def _hide(box: dict) -> None:
    """Put empty folders over what is hidden and show again what is kept."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    kept = [(path, os.open(path, os.O_PATH)) for path in box["keep"]]
    for path in box["hide"]:
        _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path, handle in kept:
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", path, None, _MS_BIND | _MS_REC)
        os.close(handle)
    os.makedirs(box["folder"], exist_ok=True)


def _mount_everything(box: dict, files: dict[str, bytes]) -> None:
    if not box["hidden"]:
        _hide(box)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV)
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # no box in the box
    _set_attributes("/", set_=_ATTR_RDONLY)
    for path in [box["folder"], *filter(os.path.isdir, ["/dev/shm"])]:
        _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={box['folder_bytes']},mode=700")
    _own_terminals()
    for name, content in files.items():
        target = os.path.join(box["folder"], name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)


def _own_terminals() -> None:
    """Give the box terminals of its own: on those outside somebody may be working."""
    if not os.path.isdir("/dev/pts"):
        return
    try:
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
        if not os.path.islink("/dev/ptmx"):
            _mount("/dev/pts/ptmx", "/dev/ptmx", None, _MS_BIND)
    except OSError:
        _mount("tmpfs", "/dev/pts", "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")


def _files(folder: str) -> dict[str, bytes]:
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, 0x8914, struct.pack("16sh14x", b"lo", 1 | 64))  # SIOCSIFFLAGS: up, running


def _give_up_rights() -> None:
    for capability in range(64):
        if _libc().prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    header, empty = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _call("capset", header, empty)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode(),
        what=f"mount {kind or 'bind'} on {target}",
    )


def _set_attributes(path: str, set_: int) -> None:
    attributes = struct.pack("QQQQ", set_, 0, 0, 0)
    _call(
        "syscall",
        ctypes.c_long(_MOUNT_SETATTR),
        _AT_FDCWD,
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(len(attributes)),
        what=f"make {path} read-only",
    )


def _call(name: str, *arguments, what: str = "") -> None:
    if getattr(_libc(), name)(*arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what or name}: {os.strerror(error)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1], sys.argv[2:]))
