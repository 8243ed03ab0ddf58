"""Start a command on a machine that is odd in some way, and leave nothing of it behind.

What must not touch this machine (its network, its disks, its name) is changed in Linux namespaces: as root, or where an
ordinary user may make them. `Machine.missing()` says why it cannot be done here.
"""
import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
COURSE = HERE.parents[1]
USER = COURSE / "tests" / "grading" / "ordinary_user.py"
NAMESPACES = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]


@dataclass
class Machine:
    """A machine in the making.

    shell        lines of shell that make it; $FOLDER is an empty folder that goes when the machine goes
    environment  variables to set, None for those to take away
    course       where the course is
    ordinary     as a user who is not root and owns nothing but $FOLDER
    apart        in namespaces of its own
    """
    folder: Path
    shell: str = ""
    environment: dict = field(default_factory=dict)
    course: Path = COURSE
    ordinary: bool = False
    apart: bool = True

    def missing(self) -> str:
        """Empty, or why such a machine cannot be made here."""
        if self.apart and not namespaces():
            return "this needs Linux namespaces: root, or a system that lets users make them"
        if self.ordinary and os.geteuid():
            return "only root can become another user"
        return ""

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` on this machine."""
        command = [str(part) for part in command]
        if self.environment:
            taken = [f"--unset={name}" for name, value in self.environment.items() if value is None]
            given = [f"{name}={value}" for name, value in self.environment.items() if value is not None]
            command = [shutil.which("env"), *taken, *given, *command]
        if self.ordinary:
            command = [sys.executable, str(USER), str(self.folder), *command]
        if self.apart:
            setup = f"ip link set lo up\nFOLDER={self.folder}\n{self.shell}\nexec \"$@\""
            command = [*namespaces(), "sh", "-ec", setup, "sh", *command]
        return command

    def run(self, *command: str, seconds: float = 300) -> subprocess.CompletedProcess:
        """Run the command to its end; its output is text."""
        return subprocess.run(self.command(*command), capture_output=True, text=True, timeout=seconds, cwd=self.folder)

    def student(self) -> "Student":
        """Someone who works on this machine, see student.py."""
        return Student(self)


class Student:
    """student.py on a machine, as a context; `does` asks it for one round."""

    def __init__(self, machine: Machine):
        self.process = subprocess.Popen(
            machine.command(sys.executable, HERE / "student.py", machine.course), cwd=machine.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def does(self, shell: str = "", environment: dict | None = None, world_size: int = 2, launches: int = 1) -> dict:
        """Change the machine by the shell commands and variables, then {"ranks", "widget", "doctor"}: what came of it."""
        told = {"shell": shell, "environment": environment or {}, "world_size": world_size, "launches": launches}
        try:
            print(json.dumps(told), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


@functools.cache
def namespaces() -> list[str]:
    """The command that makes namespaces here, empty where nothing does."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, *NAMESPACES]
        if shutil.which("unshare") and shutil.which("ip"):
            probe = [*command, "sh", "-ec", "ip link set lo up; mount -t tmpfs none /mnt"]
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return command
    return []
