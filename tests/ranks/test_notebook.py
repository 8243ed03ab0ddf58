"""The engine as a notebook sees it: functions of cells, lines of cells, nothing on stderr."""
import subprocess
import sys

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from utils.notebooks import BOOTSTRAP

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
SERVER = "from utils.ranks import processes\nprint(processes._server.process.pid)"


def run_cells(*sources, allow_errors=True):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=600, allow_errors=allow_errors, resources={"metadata": {"path": "."}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.fixture(scope="module")
def outputs():
    return run_cells(
        "from utils import launch\nimport torch, torch.distributed as dist",
        "def worker():\n    print('hello from', dist.get_rank())\n    return dist.get_rank() * scale\n\nscale = 10",
        "launch(worker, world_size=2).results",
        "def fails():\n    x = torch.ones(3)\n    if dist.get_rank() == 1:\n"
        "        raise ValueError('wrong chunk')\n    dist.all_reduce(x)",
        "launch(fails, world_size=2)",
        "def stays_away():\n    if dist.get_rank() == 0:\n        dist.barrier()",
        "launch(stays_away, world_size=2)",
    )


def test_cells_define_functions_for_ranks(outputs):
    stream, result = outputs[2]
    assert stream["text"] == "[rank 0] hello from 0\n[rank 1] hello from 1\n"
    assert result["data"]["text/plain"] == "[0, 10]"


def test_the_verdict_names_the_cells_line(outputs):
    error = outputs[4][-1]
    assert (error["ename"], error["evalue"]) == (
        "RankError", "Rank 1 raised ValueError: wrong chunk\n  cell line 4, in fails: raise ValueError('wrong chunk')\n"
                     "The other rank (0) was ended.")


def test_the_traceback_is_the_verdict_alone(outputs):
    assert outputs[4][-1]["traceback"] == [f"RankError: {outputs[4][-1]['evalue']}".splitlines()[0],
                                           *outputs[4][-1]["evalue"].splitlines()[1:]]


def test_a_hang_shows_the_line(outputs):
    assert "rank 0 waits in barrier (cell line 3: dist.barrier())" in outputs[6][-1]["evalue"]


def test_nothing_on_stderr(outputs):
    assert not [output for cell in outputs for output in cell if output.get("name") == "stderr"]


@on_linux
def test_the_first_cell_of_a_lesson_begins_to_load_torch():
    _, (before,), _, (after,), _ = run_cells(
        BOOTSTRAP, SERVER, "from utils import launch\nlaunch(int, world_size=2)", SERVER, "exit()")
    assert before["text"] == after["text"]
    assert not psutil.pid_exists(int(before["text"]))  # though it may have been loading still


@on_linux
def test_the_kernel_s_end_does_not_wait_for_what_still_loads():
    _, (loading,) = run_cells(BOOTSTRAP, f"{SERVER}\nimport os; os.kill(processes._server.process.pid, 19)")
    assert not psutil.pid_exists(int(loading["text"]))


def test_elsewhere_the_course_loads_nothing_before_it_launches():
    program = "import utils, sys\nfrom utils.ranks import processes\nprint(processes._server, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "None False\n"
