"""The same functions under torchrun, on two agents as on two machines."""
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_two_agents_on_loopback():
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    port = free_port()
    agents = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}",
         "--master-addr=127.0.0.1", f"--master-port={port}", str(HERE / "torchrun_script.py")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) for node in range(2)]
    outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert "results [1.0, 1.0] sent [4000.0, 4000.0]" in outputs[0]
    assert "launch asks for 99 ranks, but torchrun started 2." in outputs[0]
