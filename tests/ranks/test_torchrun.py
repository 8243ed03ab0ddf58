"""The same functions under torchrun, on two agents as on two machines."""
import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent


def free_port():
    """A port that nobody has, and that the system gives to nobody who asks for any before torchrun takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def outputs_of_two_agents(folder, ranks_each, *script):
    """What two agents print, as on two machines: node 0's output, then node 1's."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                                "TMPDIR": str(folder)}  # torchrun leaves a folder for its logs there
    port = free_port()
    agents = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={ranks_each}",
         f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}", *script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) for node in range(2)]
    outputs = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    return outputs


def test_two_agents_on_loopback(tmp_path):
    output, other = outputs_of_two_agents(tmp_path, 1, str(HERE / "torchrun_script.py"))
    assert "results [1.0, 1.0] sent [4000.0, 4000.0]" in output
    assert "launch asks for 99 ranks, but torchrun started 2." in output
    for text in (output, other):  # gloo's threads, still alive while Python ends, can abort a rank that did its work
        assert "at the end, a group is left: False" in text


@pytest.mark.slow
def test_3d_training_on_two_agents_is_that_of_one_machine(tmp_path):
    here = subprocess.run([sys.executable, "-m", "utils.parallel.train_3d", "--steps", "3"], capture_output=True, text=True,
                          cwd=ROOT, timeout=300)
    assert here.returncode == 0, here.stderr
    there, _ = outputs_of_two_agents(tmp_path, 4, "-m", "utils.parallel.train_3d", "--steps", "3")
    lines = [line for line in here.stdout.splitlines() if line.startswith(("rank", "gloo"))]
    assert len(lines) == 9 and all(line in there for line in lines), (here.stdout, there)
