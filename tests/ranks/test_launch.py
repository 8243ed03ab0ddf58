"""`launch`: results and output come back, and nothing is left behind however a run ends."""
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import rank_workers as workers
import torch

from utils import launch

ROOT = Path(__file__).parents[2]


def processes_of(pids):
    """Those of the processes that still run; one that only waits to be collected by its parent has ended."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state not in "ZX":
            running.append(pid)
    return running


def none_of(running, seconds=60):
    """Wait until `running()` is empty; on a busy machine what was killed takes its time to end."""
    until = time.monotonic() + seconds
    while running() and time.monotonic() < until:
        time.sleep(0.05)
    return not running()


def children():
    """Every process below this one, as {pid: command}."""
    listing = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    parents = {int(line.split(None, 2)[0]): (int(line.split(None, 2)[1]), line.split(None, 2)[2]) for line in listing}
    found, frontier = {}, {os.getpid()}
    while frontier:
        frontier = {pid for pid, (parent, _) in parents.items() if parent in frontier and pid not in found}
        found |= {pid: parents[pid][1] for pid in frontier}
    return {pid: command for pid, command in found.items() if not command.startswith("ps ")}


def test_results_come_in_rank_order():
    run = launch(workers.rank_and_arguments, "x", torch.ones(2), world_size=3)
    assert [rank for rank, _ in run.results] == [0, 1, 2]
    assert torch.equal(run.results[2][1][1], torch.ones(2))
    assert (run.backend, run.device, run.world_size) == ("gloo", "cpu", 3) or torch.cuda.device_count() >= 3
    assert run.seconds > 0


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_ranks_really_communicate(world_size):
    assert launch(workers.sum_of_ranks, world_size=world_size).results == [sum(range(world_size))] * world_size


def test_a_function_of_this_module_closure_and_lambda():
    offset = 10
    assert launch(lambda: offset + 1, world_size=2).results == [11, 11]


def test_output_is_shown_in_rank_order(capsys):
    run = launch(workers.says_hello, world_size=2)
    assert capsys.readouterr().out.splitlines() == [
        f"[rank {rank}] {line}" for rank in range(2) for line in (f"hello from {rank}", "a child speaks", "and on stderr")]
    assert run.outputs[1] == "hello from 1\na child speaks\nand on stderr\n"


def test_output_can_be_silenced(capsys):
    assert "hello" in launch(workers.says_hello, world_size=2, echo=False).outputs[0]
    assert capsys.readouterr().out == ""


def test_live_output_has_the_rank_in_front(capsys):
    launch(workers.says_hello, world_size=2, live=True)
    assert sorted(capsys.readouterr().out.splitlines())[:2] == ["[rank 0] a child speaks", "[rank 0] and on stderr"]


@pytest.mark.parametrize("live", [False, True])
def test_what_gloo_says_when_a_group_meets_is_no_output_of_the_rank(live, capsys):
    greeting = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    run = launch(lambda: print(f"before\n{greeting}\nand after"), world_size=2, live=live)
    assert run.outputs == ["before\nand after\n"] * 2
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        f"[rank {rank}] {line}" for rank in range(2) for line in ("before", "and after"))


def test_ranks_get_the_notebooks_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_TEST", "set after the ranks' server started")
    monkeypatch.chdir(tmp_path)
    first, second = launch(workers.environment, world_size=2).results
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"], second["LOCAL_RANK"]) == ("0", "1", "2", "1")
    assert first["COURSE_TEST"] == "set after the ranks' server started"
    assert first["folder"] == str(tmp_path)
    assert first["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_the_usual_limit_can_be_set_for_a_slow_machine(monkeypatch):
    monkeypatch.setenv("COURSE_TIMEOUT", "1.5")
    with pytest.raises(RuntimeError, match=r"^The run did not end within 1\.5 s"):
        launch(workers.sleeps, 600, world_size=1, echo=False)
    monkeypatch.setenv("COURSE_TIMEOUT", "long")
    with pytest.raises(ValueError, match="COURSE_TIMEOUT is a number of seconds, not 'long'"):
        launch(workers.sleeps, 600, world_size=1)


def test_every_run_has_fresh_processes():
    pids = [result["pid"] for _ in range(2) for result in launch(workers.environment, world_size=2).results]
    assert len(set(pids)) == 4


def test_spawned_ranks_do_the_same():
    run = launch(workers.sum_of_ranks, world_size=2, start_method="spawn")
    assert run.results == [1.0, 1.0]


def test_spawned_ranks_fail_with_the_same_verdict():
    with pytest.raises(RuntimeError, match="^Rank 1 raised ValueError: no such chunk"):
        launch(workers.one_raises, world_size=2, start_method="spawn")


def test_unknown_start_method():
    with pytest.raises(ValueError, match="start_method is 'forkserver', 'spawn' or None"):
        launch(workers.sum_of_ranks, start_method="fork")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launch(workers.sum_of_ranks)
    gc.collect()
    shm, before = set(os.listdir("/dev/shm")), (children(), len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(200):
        launch(workers.sum_of_ranks, world_size=2, echo=False)
    gc.collect()
    after = (children(), len(os.listdir("/proc/self/fd")), threading.active_count())
    assert after == before
    assert os.listdir(tmp_path) == []
    assert set(os.listdir("/dev/shm")) <= shm


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_processes_that_a_rank_leaves_behind_are_ended():
    launch(workers.leaves_processes_behind, world_size=2)
    assert [pid for pid, command in children().items() if "4321" in command] == []


SCRIPT = """
import sys; sys.path[:0] = {path!r}
import rank_workers as workers
from utils import launch
launch(workers.sleeps, 600, world_size=2, live=True, start_method={method!r})
"""


def start_a_run_of_its_own(method):
    """A process with two sleeping ranks; returns it with the ranks' process ids."""
    script = SCRIPT.format(path=[str(ROOT), str(Path(__file__).parent)], method=method)
    process = subprocess.Popen([sys.executable, "-c", script],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline().rsplit(" ", 1)[1]) for _ in range(2)]
    assert len(processes_of(pids)) == 2
    return process, pids


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_no_orphans_after_the_notebook_was_killed(method):
    process, pids = start_a_run_of_its_own(method)
    process.kill()
    process.wait()
    assert none_of(lambda: processes_of(pids))
    process.stdout.close(), process.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_interrupt_ends_the_ranks_and_is_raised_again(method):
    process, pids = start_a_run_of_its_own(method)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert "KeyboardInterrupt" in errors
    assert processes_of(pids) == []


def test_launch_works_again_after_an_interrupt():
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        launch(workers.sleeps, 600, world_size=2)
    assert launch(workers.sum_of_ranks, world_size=2).results == [1.0, 1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_the_server_is_started_anew_when_it_was_killed():
    from utils.ranks import processes
    launch(workers.sum_of_ranks, world_size=2)
    processes._server.process.kill()
    processes._server.process.wait()
    assert launch(workers.sum_of_ranks, world_size=2).results == [1.0, 1.0]


def test_two_notebooks_at_once():
    script = SCRIPT.replace("workers.sleeps, 600", "workers.sum_of_ranks").format(
        path=[str(ROOT), str(Path(__file__).parent)], method=None) + "print('done')"
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=300)[0].strip() for process in both] == ["done", "done"]


def test_two_threads_at_once():
    results = []

    def run():
        results.append(launch(workers.sum_of_ranks, world_size=2).results)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert results == [[1.0, 1.0]] * 3


def test_a_function_may_use_modules_of_a_class_of_their_own():
    def adds():
        return float(torch.ops.aten.add(torch.ones(1), 1))
    assert launch(adds, world_size=2).results == [2.0, 2.0]
