"""Faults at random places: `check_whole` plays one program with faults in it and looks at how it ends.

    python tests/endurance/random_faults.py 17          the run of seed 17, told in words
    python tests/endurance/random_faults.py --seconds 600
"""
import argparse
import contextlib
import os
import random
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from faults import FAULTS, ordinary_step, play  # noqa: E402
from left_behind import added, holdings, mark_this_process  # noqa: E402

from utils import RankError, launch  # noqa: E402
from utils.ranks import processes  # noqa: E402

TIMEOUT_SECONDS = 3
# Beyond its timeout a run may take this long: the ranks start (at most 60 s before the engine gives up), their stacks
# are asked for, the processes end. A run that hangs takes for ever, so the bound can be generous.
GRACE_SECONDS = 60 + 40
STEPS = 8


@dataclass(frozen=True)
class Plan:
    """What one run does: `faults` is {(rank, step): name}, `outside` what happens to it from outside, and when."""
    seed: int
    world_size: int
    faults: dict
    outside: str = ""
    moment: float = 0


def plan_of(seed: int) -> Plan:
    """The plan that belongs to a seed: mostly one fault, sometimes three at once."""
    rng = random.Random(seed)
    world_size = rng.randint(2, 8)
    number = min(rng.choice([1, 1, 1, 1, 2, 2, 3]), world_size)
    names, ranks = rng.sample(sorted(FAULTS), number), rng.sample(range(world_size), number)
    faults = {(rank, rng.randrange(STEPS)): name for rank, name in zip(ranks, names, strict=True)}
    outside = rng.choice([""] * 17 + ["interrupt", "the server is killed", "the server is stopped"])
    return Plan(seed, world_size, faults, outside, rng.uniform(0, 1.5))


def one_run(plan: Plan) -> str:
    """Play the plan; returns the verdict, "" for success. Raises AssertionError for a wrong end or a wrong verdict."""
    begin, error = time.monotonic(), None
    happening = threading.Timer(plan.moment, happen, [plan.outside])
    try:
        if plan.outside:
            happening.start()
        launch(play, plan.faults, plan.seed, STEPS, world_size=plan.world_size, timeout=TIMEOUT_SECONDS, echo=False)
        happening.cancel()
    except (RankError, KeyboardInterrupt) as raised:
        error = raised
    with contextlib.suppress(KeyboardInterrupt):
        happening.cancel()
        if plan.outside:
            happening.join()
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    assert seconds < TIMEOUT_SECONDS + GRACE_SECONDS, f"the run took {seconds:.0f} s"
    check_verdict(plan, error)
    return "" if error is None else f"{type(error).__name__}: {error}"


def happen(what):
    server = processes._server
    if what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif server is not None:
        os.kill(server.process.pid, signal.SIGKILL if what == "the server is killed" else signal.SIGSTOP)


def check_verdict(plan, error):
    """Is this how a run with these faults may end?"""
    fatal = {place: name for place, name in plan.faults.items() if FAULTS[name].kind}
    if error is None:
        assert not fatal, f"the run succeeded in spite of {fatal}"
        return
    if plan.outside == "interrupt" and isinstance(error, KeyboardInterrupt):
        return
    assert isinstance(error, RankError), repr(error)
    if plan.outside.startswith("the server") and error.kind == "server":
        return
    fitting = [(rank, name) for (rank, _), name in fatal.items() if error.kind in FAULTS[name].kind
               and (len(fatal) > 1 or re.search(FAULTS[name].says.format(rank=rank), str(error)))
               and re.search(rf"\b{rank}\b", str(error)) and (error.rank == rank or not FAULTS[name].names)]
    assert fitting, f"the verdict is about something else ({error.kind}, rank {error.rank}):\n{str(error)[:3000]}"


def check_afterwards(plan, before):
    """Nothing may be left behind, and the next ordinary run must work."""
    until = time.monotonic() + 30
    while left(plan, before) and plan.outside and time.monotonic() < until:
        time.sleep(0.1)  # a server that was killed leaves its ranks to the kernel
    results = launch(ordinary_step, 1, 1, world_size=2, timeout=60, echo=False).results
    assert results == [None, None], results
    assert not left(plan, before), f"left behind: {left(plan, before)}"


def left(plan, before):
    """What is there and was not before, but for a new server of ranks."""
    now = holdings()
    now["processes"].pop(processes._server.process.pid, None)
    if "leaves_a_manager_running" in plan.faults.values():  # a process that is killed cannot remove its own folder
        now["temporary files"] = [name for name in now["temporary files"] if not name.startswith("pymp-")]
    return added(before, now)


def check_whole(plan: Plan) -> str:
    """Play the plan and look at everything; the message of a failure says how to repeat it. Returns the verdict."""
    before = holdings()
    try:
        verdict = one_run(plan)
        check_afterwards(plan, before)
        return verdict
    except AssertionError as error:
        raise AssertionError(f"{plan}\n{error}\nTo repeat a seed: python tests/endurance/random_faults.py SEED") from None


def prepare():
    """A server of ranks of our own, and a mark on everything that starts from here on."""
    mark_this_process()
    if processes._server is not None:
        processes._server.close()
    launch(ordinary_step, 0, 0, world_size=2, echo=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=0, help="go on with further seeds for so long")
    arguments = parser.parse_args()
    prepare()
    until, seed, failed = time.monotonic() + arguments.seconds, random.randrange(10**6) * 1000, []
    seeds = list(arguments.seeds)
    while seeds or time.monotonic() < until:
        number = seeds.pop(0) if seeds else (seed := seed + 1)
        begin = time.monotonic()
        try:
            verdict = check_whole(plan_of(number))
        except AssertionError as error:
            failed.append(number)
            verdict = f"FAILED {error}"
        print(f"--- {plan_of(number)} {time.monotonic() - begin:.1f} s\n{verdict[:1500]}", flush=True)
    print(f"failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
