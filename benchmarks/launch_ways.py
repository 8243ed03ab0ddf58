"""The ways to have N ranks that `benchmarks.launch` compares, each in a process of its own that serves requests.

Every way does the same work: start N processes (or take those that it has), join a gloo group, add up the ranks, hand
the sums to the caller. Torch and the peers are imported by the way that needs them: a first call pays for that.
"""

import contextlib
import datetime
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile


def add_up_the_ranks():
    """The job of one rank whose process group stands."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


def join_and_add(rank, world_size, path):
    """The same for a rank that has to join the group first and leave it again."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group("gloo", store=dist.FileStore(path, world_size), rank=rank, world_size=world_size,
                            timeout=datetime.timedelta(seconds=60))
    total = add_up_the_ranks()
    dist.destroy_process_group()
    return total


def join_add_and_put(rank, world_size, path, results):
    """The same where the caller does not get what a rank returns: it goes into a queue."""
    results.put(join_and_add(rank, world_size, path))


def elastic_rank(world_size, path, results):
    """The same where torch's elastic agent tells a rank its number."""
    join_add_and_put(int(os.environ["RANK"]), world_size, path, results)


# ---- the ways -----------------------------------------------------------------------------------------------------

class Launch:
    """The course's `launch`."""

    title, needs = "`launch`", "utils"

    def __init__(self, world_size):
        self.world_size = world_size

    def run(self):
        """Return what each rank returned."""
        from utils import launch

        return launch(add_up_the_ranks, world_size=self.world_size, echo=False).results

    def close(self):
        """End what lives on after a run."""


class StartProcesses(Launch):
    """`torch.multiprocessing`, by one of its start methods."""

    needs, method = "torch", ""

    def run(self):
        import torch.multiprocessing as multiprocessing

        results = multiprocessing.get_context(self.method).SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.start_processes(join_add_and_put, (self.world_size, f"{folder}/store", results),
                                            nprocs=self.world_size, start_method=self.method)
        return [results.get() for _ in range(self.world_size)]


class Spawn(StartProcesses):
    """Each rank is a fresh Python that imports torch."""

    title, method = "`torch.multiprocessing.spawn`", "spawn"


class Fork(StartProcesses):
    """Each rank is a copy of the caller, threads and locks as they happen to be: fast, and not safe in a notebook."""

    title, method = "a bare fork", "fork"


class NotebookLauncher(Launch):
    """`accelerate.notebook_launcher`: forks under torch's elastic agent."""

    title, needs = "`accelerate.notebook_launcher`", "accelerate"

    def run(self):
        import multiprocessing

        from accelerate import notebook_launcher

        results = multiprocessing.get_context("fork").SimpleQueue()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            notebook_launcher(elastic_rank, (self.world_size, f"{folder}/store", results),
                              num_processes=self.world_size, use_port=str(port))
        return [results.get() for _ in range(self.world_size)]


class IPyParallel(Launch):
    """`ipyparallel`: a cluster of engines that stay; a run is a call on each of them."""

    title, needs = "`ipyparallel`", "ipyparallel"
    cluster = client = None

    def run(self):
        if self.cluster is None:
            import ipyparallel

            self.cluster = ipyparallel.Cluster(n=self.world_size, log_level=40)
            self.client = self.cluster.start_and_connect_sync()
        with tempfile.TemporaryDirectory() as folder:
            arguments = self.world_size, f"{folder}/store"
            calls = [engine.apply_async(join_and_add, rank, *arguments) for rank, engine in enumerate(self.client)]
            return [call.get() for call in calls]

    def close(self):
        if self.cluster is not None:
            self.client.close()
            self.cluster.stop_cluster_sync()


WAYS = {way.__name__: way for way in (Launch, Fork, Spawn, NotebookLauncher, IPyParallel)}


def installed(way: type[Launch]) -> bool:
    """Whether the package is there that this way needs."""
    return importlib.util.find_spec(way.needs) is not None


# ---- a way in a process of its own --------------------------------------------------------------------------------

class Starter:
    """A fresh Python that runs one way whenever it is asked to."""

    def __init__(self, way: str, world_size: int):
        self._expected = [sum(range(world_size))] * world_size
        code = f"from benchmarks.launch_ways import serve; serve({way!r}, {world_size})"
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)

    def run(self) -> None:
        """Have it run once. The first call also waits for Python to start and for all that it imports."""
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer or json.loads(answer) != self._expected:
            raise RuntimeError(f"{self._process.args[-1]} answered {answer!r}, not {self._expected}")

    def close(self) -> None:
        """End it, and what it started."""
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def serve(way: str, world_size: int) -> None:
    """In the process: a run per line, answered by the results as JSON; whatever else is printed is dropped."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.closing(WAYS[way](world_size)) as starter:
        for _ in sys.stdin:
            answers.write(json.dumps(starter.run()) + "\n")
