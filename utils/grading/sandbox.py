"""Which walls stand between a student's code and this machine, and how a command is put behind them."""

from __future__ import annotations

import os
import site
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.grading import box
from utils.grading.errors import GradingError

MEMORY_BYTES = 4 << 30
SYSTEM = ("bin", "sbin", "usr", "etc", "dev", "proc", "sys", "nix", "gnu")
"""What programs need of the root directory, besides ``lib…``.  Elsewhere there are data, and sockets of services, such as
/run/docker.sock, that would run a command outside of the box."""


@dataclass(frozen=True)
class Sandbox:
    """``level`` is ``"userns"`` (the box of :mod:`utils.grading.box`), ``"container"`` or ``"none"``.

    ``hide`` are the folders that are empty in the box, ``keep`` what stays visible inside them.
    """

    level: str = "none"
    hide: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    memory_bytes: int = MEMORY_BYTES

    def wrap(self, command: list[str], folder: Path) -> list[str]:
        """Return ``command`` so that it runs behind the walls, with ``folder`` as its work folder."""
        return box.command(self.description(folder), command) if os.name == "posix" else command

    def description(self, folder: Path) -> str:
        """Return the walls around ``folder`` as :func:`utils.grading.box.main` reads them."""
        if self.level != "userns":
            return box.limits(self.memory_bytes)
        return box.spec(
            str(folder), hide=list(self.hide), keep=list(self.keep), memory_bytes=self.memory_bytes
        )


def choose(
    wish: str,
    root: Path,
    *,
    hide: Iterable[Path] = (),
    memory_bytes: int = MEMORY_BYTES,
    at_own_risk: bool = False,
) -> tuple[Sandbox, str]:
    """Return the sandbox to use and a sentence about what it does not stop (``""`` if there is nothing to say).

    Arguments:
        wish: ``"auto"``, ``"userns"``, ``"container"`` (this process runs inside one) or ``"none"``.
        root: the course's folder: inside, only its ``utils`` can be seen.
        hide: more folders that must not be seen: submissions, results.
        memory_bytes: address space of each process.
        at_own_risk: allow root without walls.

    Raises ``GradingError`` if the wish cannot be granted, or if root would run students' code without walls.
    """
    reason = ""
    level = wish
    if wish in ("auto", "userns"):
        level, reason = box.level()
        if wish == "userns" and level != "userns":
            raise GradingError(
                f"the box does not work here: {reason}. Use --sandbox container inside a container, or "
                "--sandbox none after reading docs/grading.md."
            )
    if level == "none" and hasattr(os, "geteuid") and os.geteuid() == 0 and not at_own_risk:
        raise GradingError(
            "students' code would run as root without a box"
            f"{f' ({reason})' if reason else ''}. Run as an ordinary user, in a container with "
            "--sandbox container, or add --i-know if nothing on this machine is worth protecting."
        )
    hidden = (Path.home(), root, Path(tempfile.gettempdir()), *hide, *_elsewhere())
    keep = (Path(sys.prefix), Path(sys.base_prefix), root / "utils", Path(__file__).parent, *_libraries())
    if site.ENABLE_USER_SITE:
        keep = (*keep, Path(site.getusersitepackages()))
    sandbox = Sandbox(
        level, tuple(str(p.resolve()) for p in hidden), tuple(str(p.resolve()) for p in keep), memory_bytes
    )
    return sandbox, _warning(level, reason)


def _elsewhere() -> list[Path]:
    """Return the folders in the root directory that hold no programs."""
    top = [path for path in Path("/").iterdir() if path.is_dir() and not path.is_symlink()]
    return [path for path in top if path.name not in SYSTEM and not path.name.startswith("lib")]


def _libraries() -> list[Path]:
    """Return where the environment says that shared libraries are."""
    places = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [Path(place) for place in places if place and Path(place).is_absolute()]


def _warning(level: str, reason: str) -> str:
    if level == "userns":
        return ""
    if level == "container":
        return "sandbox container: the walls are those of the container; solutions/ must not be inside it."
    return (
        f"sandbox none{f' ({reason})' if reason else ''}: a student's code can read this account's files, among them "
        "solutions/, use the network and end processes. Read suspicious_api flags before trusting a score."
    )
