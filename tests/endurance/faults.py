"""What can go wrong on a rank, one function each, with what the verdict must then say.

A fault acts on one rank, the culprit, in the middle of an ordinary program: `play` runs it on every rank.
"""
import contextlib
import ctypes
import multiprocessing.shared_memory
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from utils import launch

FOR_EVER = 10_000_000


@dataclass(frozen=True)
class Fault:
    """`act(rng)` is called on the culprit; what it returns becomes the rank's result, unless that is None.

    kind      kinds of the verdict that are right ("" is none: the run must succeed)
    says      a regular expression that the verdict matches; {rank} is the culprit
    names     whether `error.rank` must be the culprit
    """
    act: Callable
    kind: tuple[str, ...]
    says: str = ""
    names: bool = True


FAULTS: dict[str, Fault] = {}


def fault(*kind, says="", names=True):
    """Put the function into the list; its name is the fault's."""
    def enter(function):
        FAULTS[function.__name__] = Fault(function, kind, says, names)
        return function
    return enter


class Done(Exception):
    """Leave the program early and return this value."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value


# ---- the rank fails by itself --------------------------------------------------------------------------------------

@fault("raised", says=r"^Rank {rank} raised ValueError: no such chunk\n[\s\S]*faults.py line \d+, in raises: raise ValueError")
def raises(rng):
    raise ValueError("no such chunk")


@fault("raised", says=r"^Rank {rank} raised RuntimeError: Connection closed by peer")
def raises_what_sounds_like_a_consequence(rng):
    raise RuntimeError("Connection closed by peer")


@fault("raised", says=r"^Rank {rank} raised .*Mute: \(its message cannot be shown\)")
def raises_an_error_without_words(rng):
    class Mute(Exception):
        def __str__(self):
            sys.exit(5)

    raise Mute


@fault("raised", says=r"^Rank {rank} raised RuntimeError: xxxx")
def raises_a_very_long_error(rng):
    raise RuntimeError("x" * 30_000_000)


@fault("raised", says=r"^Rank {rank} raised RecursionError: [\s\S]*calls more")
def calls_itself_for_ever(rng):
    calls_itself_for_ever(rng)


@fault("raised", says=r"^Rank {rank} raised KeyboardInterrupt")
def interrupts_itself(rng):
    raise KeyboardInterrupt


@fault("raised", says=r"^Rank {rank} ran out of memory: ")
def runs_out_of_memory(rng):
    torch.empty(10**15)


@fault("exited", says=r"^Rank {rank} called sys.exit\(\S*\)\. A rank ends by returning")
def calls_sys_exit(rng):
    sys.exit(rng.choice([None, 0, 1, 255, "enough"]))


@fault("exited", says=r"^Rank {rank} called sys.exit\('a lock'\)")
def calls_sys_exit_with_an_object(rng):
    sys.exit(threading.Lock())


@fault("exited", says=r"^Rank {rank} ended with exit code \d+ before its function returned")
def calls_os_exit(rng):
    os._exit(rng.choice([0, 1, 77]))


@fault("killed", says=r"^Rank {rank} was ended by (SIG\w+|signal \d+)")
def gets_a_deadly_signal(rng):
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR2, 40])
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored, by all that it starts
    os.kill(os.getpid(), number)
    time.sleep(FOR_EVER)


@fault("killed", says=r"^Rank {rank} was ended by SIGSEGV \(faults.py line \d+: ctypes.string_at")
def crashes_in_native_code(rng):
    ctypes.string_at(0)


@fault("killed", says=r"^Rank {rank} was ended by SIGABRT")
def aborts(rng):
    os.abort()


@fault("exited", says=r"^Rank {rank} ended with exit code 0 before its function returned")
def becomes_another_program(rng):
    os.execvp("true", ["true"])


@fault("raised", says=r"^Rank {rank} raised RuntimeError: launch was called on a rank")
def launches_again(rng):
    launch(ordinary_step, 0, 0, world_size=2)


@fault("raised", says=r"^Rank {rank} raised ValueError: all_reduce was given a tensor that is not contiguous")
def sends_a_tensor_that_is_not_contiguous(rng):
    dist.all_reduce(torch.ones(4, 4)[:, :2])


@fault("raised", says=r"^Rank {rank} raised \w+: .*99")
def names_a_root_that_does_not_exist(rng):
    dist.broadcast(torch.ones(3), src=99)


@fault("exited", "killed", says=r"^Rank {rank} (was ended by SIGABRT|"
                                r"could not hand over its result or error: its file descriptors were closed)")
def closes_every_file(rng):
    os.closerange(3, 1000)
    raise Done


# ---- the rank hangs ------------------------------------------------------------------------------------------------

_STILL = r"^The run did not end within [\s\S]*\n  rank {rank} still works \(faults.py line \d+: "


@fault("timeout", says=_STILL, names=False)
def computes_for_ever(rng):
    while True:
        pass


@fault("exited", says=r"^Rank {rank} hung up without failing: rank \d+ lost the connection to it in ")
def leaves_the_group_and_hangs(rng):
    dist.destroy_process_group()
    time.sleep(FOR_EVER)


@fault("timeout", says=_STILL, names=False)
def sleeps_for_ever(rng):
    time.sleep(FOR_EVER)


@fault("timeout", says=_STILL, names=False)
def sleeps_in_native_code_and_holds_the_interpreter(rng):
    ctypes.PyDLL(None).sleep(FOR_EVER)


@fault("timeout", says=_STILL, names=False)
def waits_for_a_lock_that_nobody_opens(rng):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@fault("timeout", says=_STILL, names=False)
def ignores_every_signal_and_hangs(rng):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOR_EVER)


@fault("timeout", says=r"^The run did not end within [\s\S]*\n  rank {rank} still works", names=False)
def takes_the_engines_signal_and_hangs(rng):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    time.sleep(FOR_EVER)


@fault("timeout", says=_STILL, names=False)
def joins_another_process_group_and_hangs(rng):
    os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(FOR_EVER)


@fault("timeout", says=r"\n  rank {rank} was stopped by SIG(STOP|TSTP)")
def stops(rng):
    os.kill(os.getpid(), rng.choice([signal.SIGSTOP, signal.SIGTSTP]))
    time.sleep(FOR_EVER)


@fault("exited", "timeout", says=r"^Rank {rank} hung up without failing|\n  rank {rank} still works", names=False)
def becomes_a_program_that_never_ends(rng):
    os.execvp("sleep", ["sleep", str(FOR_EVER)])


# ---- what it prints and returns ------------------------------------------------------------------------------------

@fault("output", says=r"^Rank {rank} printed more than 20 MB")
def prints_for_ever(rng):
    while True:
        print("x" * 10_000)


@fault("output", says=r"^Rank {rank} printed more than 20 MB")
def has_a_child_that_prints_for_ever(rng):
    os.system("yes")


@fault("output", says=r"^Rank {rank} printed more than 20 MB")
def makes_its_output_file_huge(rng):
    os.ftruncate(1, 10**13)
    time.sleep(FOR_EVER)


@fault("raised", says=r"^The result of rank {rank} \(\w+\) cannot be sent between processes")
def returns_what_cannot_be_sent(rng):
    raise Done(rng.choice([(i for i in range(3)), threading.Lock(), sys.stdin, dist.group.WORLD]))


class _Falls:
    def __reduce__(self):
        return int, ("not a number",)


class _Exits:
    def __reduce__(self):
        return sys.exit, ()


@fault("result", says=r"^The result of rank {rank} was sent, but cannot be put together in the notebook")
def returns_what_cannot_be_put_together(rng):
    return rng.choice([_Falls(), _Exits()])


class _Slow:
    def __reduce__(self):
        time.sleep(FOR_EVER)


@fault("timeout", names=False,
       says=r"\n  rank {rank} has returned, but its result or an exit function takes its time \(faults.py")
def returns_what_takes_for_ever_to_send(rng):
    return _Slow()


@fault("timeout", says=r"\n  rank {rank} has returned, but its result or an exit function takes its time", names=False)
def has_an_exit_function_that_hangs(rng):
    import atexit
    atexit.register(time.sleep, FOR_EVER)


@fault()
def returns_a_huge_result(rng):
    return torch.zeros(20_000_000)


@fault()
def returns_something_odd(rng):
    endless = []
    endless.append(endless)
    return rng.choice([endless, float("nan"), {1: {2, 3}}, lambda: 0, torch.nn.Linear(2, 2), ValueError("x"), type, Done,
                       NotImplemented, torch.ones(2, requires_grad=True) * 2, b"\0" * 100, "\ud800",
                       torch.empty(0, device="meta")])


# ---- the ranks do not fit together ---------------------------------------------------------------------------------

def _mismatch(what):
    """The culprit comes first; of two ranks nobody can say which one it is."""
    return rf"^The ranks called {what}\. Call \d+ in the group of all ranks: (rank \d+ \w+ [^;]*; )?rank {{rank}} (called|gave)"


@fault("difference", says=_mismatch("different collectives"), names=False)
def calls_another_collective(rng):
    x = torch.ones(7)
    rng.choice([lambda: dist.all_gather([torch.empty(7) for _ in range(dist.get_world_size())], x),
                lambda: dist.all_to_all_single(torch.empty(dist.get_world_size()), torch.ones(dist.get_world_size())),
                lambda: dist.reduce(x, 0)])()


@fault("difference", says=_mismatch("all_reduce with different sizes"), names=False)
def gives_another_shape(rng):
    dist.all_reduce(torch.ones(rng.choice([6, 8, 100_000])))


@fault("difference", says=_mismatch("all_reduce with different dtypes"), names=False)
def gives_another_dtype(rng):
    dist.all_reduce(torch.ones(7, dtype=rng.choice([torch.float64, torch.int32, torch.bfloat16])))


@fault("deadlock", says=r"^Rank {rank} returned, but ranks? .* still waits? in \w+", names=False)
def returns_too_early(rng):
    raise Done(1)


@fault("deadlock", says=r"rank {rank} waits in recv from rank \d+ \(faults.py line \d+: dist.recv", names=False)
def waits_for_what_nobody_sends(rng):
    dist.recv(torch.ones(2), src=_another_rank(rng), tag=100 + dist.get_rank())


@fault("deadlock", says=r"rank {rank} waits in send to rank \d+ \(faults.py line \d+: dist.send", names=False)
def sends_what_nobody_receives(rng):
    dist.send(torch.ones(2), dst=_another_rank(rng), tag=200 + dist.get_rank())


@fault("deadlock", says=r"rank {rank} waits in barrier of the group|rank {rank} waits in new_group", names=False)
def makes_a_group_alone(rng):
    dist.barrier(dist.new_group(sorted([dist.get_rank(), _another_rank(rng)])))


def _another_rank(rng):
    return rng.choice([rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()])


# ---- odd, but no fault: the run must succeed and leave nothing -----------------------------------------------------

@fault()
def never_waits_for_what_it_sends(rng):
    dist.isend(torch.ones(2), dst=_another_rank(rng), tag=300)


@fault()
def leaves_children_behind(rng):
    os.system("setsid sh -c 'sleep 54321 & sleep 54321' & sleep 54321 &")


@fault()
def forks_and_the_child_returns(rng):
    if os.fork() == 0:
        raise Done


@fault()
def forks_and_the_child_fails(rng):
    if os.fork() == 0:
        raise ValueError("in the child")


@fault()
def uses_child_processes(rng):
    kind = multiprocessing.get_context("fork")
    queue = kind.Queue()
    child = kind.Process(target=queue.put, args=(7,))
    child.start()
    assert queue.get(timeout=60) == 7
    child.join()


@fault()
def leaves_a_manager_running(rng):
    return multiprocessing.get_context("fork").Manager().dict(a=1).copy()


@fault()
def forgets_shared_memory(rng):
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=1000)
    block.close()


@fault()
def leaves_daemons_that_start_daemons(rng):
    os.system("setsid sh -c 'setsid sh -c \"setsid sleep 54321 & sleep 54321\" & sleep 54321' &")


@fault()
def writes_into_every_file(rng):
    for descriptor in range(3, 30):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(("/memfd:outcome", "/memfd:stack")):
                os.write(descriptor, b"nonsense")


@fault("exited", says=r"^Rank {rank} could not hand over its result or error: \[Errno 27\]")
def may_write_no_file(rng):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    raise ValueError("nobody will hear this")


@fault("raised", "killed", "exited", says=r"^Rank {rank} ")
def may_use_little_memory(rng):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, used + 50_000_000))
    return [bytes(1_000_000) for _ in range(100)]


@fault()
def leaves_threads_running(rng):
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=daemon).start()


@fault()
def has_a_thread_that_raises(rng):
    thread = threading.Thread(target=raises, args=(rng,))
    thread.start()
    thread.join()


@fault()
def changes_signal_handlers(rng):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, rng.choice([signal.SIG_IGN, signal.SIG_DFL]))


@fault()
def closes_its_output(rng):
    sys.stdout.close()
    sys.stderr = None


@fault()
def changes_its_surroundings(rng):
    os.environ.clear()
    sys.path.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    sys.setrecursionlimit(500)


# ---- the program in whose middle it happens ------------------------------------------------------------------------

def ordinary_step(seed, step):
    """What every rank does at each step, the same on all: computing and communicating."""
    rng, rank, n = random.Random(f"{seed} {step}"), dist.get_rank(), dist.get_world_size()
    x = torch.full((7,), float(rank), dtype=torch.float32)
    dist.all_reduce(x)
    kind = rng.randrange(4)
    if kind == 0:
        work = dist.all_reduce(x, async_op=True)
        (torch.ones(100, 100) @ torch.ones(100, 100)).sum()
        work.wait()
    elif kind == 1:
        outgoing, incoming = torch.ones(50), torch.empty(50)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, (rank + 1) % n),
                                            dist.P2POp(dist.irecv, incoming, (rank - 1) % n)]):
            work.wait()
    elif kind == 2:
        dist.broadcast(x, src=rng.randrange(n))
    else:
        time.sleep(0.002 * rng.random())


def play(plan, seed, steps):
    """Run on every rank: the program, and at (rank, step) the faults of `plan` = {(rank, step): name}."""
    rng, rank, result = random.Random(f"{seed} {dist.get_rank()}"), dist.get_rank(), "ordinary"
    try:
        for step in range(steps):
            if name := plan.get((rank, step)):
                value = FAULTS[name].act(rng)
                result = result if value is None else value
            ordinary_step(seed, step)
    except Done as done:
        result = done.value
    return result
