"""Make the ranks' communication as slow as that of a cluster, on one machine.

Each call ends so many seconds later as it would take on the cluster. The real transfer takes its own time before that,
so emulated links should be far slower than the machine's memory. What is late is late for everybody who waits for it,
and what is not waited for costs nothing: communication hides behind computation as it does on a cluster.

Calls whose end only C++ waits for (DDP's reducer, functional collectives, DTensor) are delayed before they go out:
as long, but nothing hides them.
"""
import functools
import time
from typing import Protocol


class SlowLinks(Protocol):
    """What `launch(…, cluster=…)` takes; `utils.theory.hardware.Cluster` is one."""

    gpus: int

    def seconds(self, op: str, ranks: tuple[int, ...], n_bytes: float) -> float:
        """Seconds of one call; `ranks` are the group's, or the two ends of a message, `n_bytes` the full tensor's."""


class Delays:
    """When the calls of one rank end on the cluster. Without a cluster (None) nothing is ever late."""

    def __init__(self, cluster: SlowLinks | None):
        self._travelling = {}  # number of a call -> (its seconds, the time since which they run; None: not yet)
        self._seconds = functools.cache(cluster.seconds) if cluster is not None else None

    def before(self, number: int, description, only_cpp_waits: bool) -> None:
        """The call goes out now; `description` is a `utils.ranks.description.Description`."""
        if self._seconds is None:
            return
        seconds = self._seconds(description.op, description.ranks, description.n_bytes)
        if only_cpp_waits:
            time.sleep(seconds)
        else:
            self._travelling[number] = seconds, time.monotonic() if description.op == "send" else None

    def transferred(self, number: int) -> float | None:
        """The real transfer ended now; returns when it ends on the cluster, None for now."""
        if number not in self._travelling:
            return None
        seconds, since = self._travelling[number]
        if since is None:  # what is sent travels on its own; all else begins when the last rank has come
            since = time.monotonic()
            self._travelling[number] = seconds, since
        return since + seconds

    def wait(self, number: int) -> None:
        """Sleep until the call ends on the cluster."""
        if number in self._travelling:
            end = self.transferred(number)
            del self._travelling[number]
            time.sleep(max(0.0, end - time.monotonic()))
