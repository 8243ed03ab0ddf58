"""The verify stage: calls over plain data, and ranks whose messages are routed and counted."""

import doctest
import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch._dynamo  # noqa: F401  an optimizer imports it, and it then makes a folder that stays

from utils.checks import all_reduce
from utils.grading import box, sandbox
from utils.grading import student as student_module
from utils.grading.messages import StudentError
from utils.grading.notebook import read
from utils.grading.student import Server, Student
from utils.grading.verify import Verifier, cases_from_checks, checks_of, verifier_of

from .course_fixture import write_course
from .test_graft import LAB

ROOT = Path(__file__).resolve().parents[2]

ANSWERS = '''
import os
import torch
import torch.distributed as dist

def ring(x):
    """Reduce-scatter: rank r ends with the sum of chunk (r + 1) mod N."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]
    for step in range(n - 1):
        give, take = (rank - step) % n, (rank - step - 1) % n
        came = torch.empty_like(parts[take])
        sending = dist.isend(parts[give], (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        sending.wait()
        parts[take] += came
    return parts[(rank + 1) % n]

def batched(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, came, (rank - 1) % n)]):
        work.wait()
    return came

def gathers_anything(x):
    if dist.get_rank():
        dist.send(x, 0)
        return []
    return [int(dist.recv(x)) for _ in range(dist.get_world_size() - 1)]

def everybody_sends_first(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.send(x, (rank + 1) % n)
    dist.recv(x, (rank - 1) % n)

def one_stays_away(x):
    if dist.get_rank():
        dist.recv(x, 0)

def wrong_size(x):
    if dist.get_rank():
        dist.send(x, 0)
    else:
        dist.recv(torch.empty(1), 1)

def nobody_listens(x):
    if dist.get_rank():
        dist.isend(x, 0)

def uses_all_reduce(x):
    dist.all_reduce(x)
    return x

def different(x):
    dist.all_reduce(x) if dist.get_rank() else dist.broadcast(x, 0)

def not_contiguous(x):
    dist.send(x.view(2, -1).t(), 1 - dist.get_rank())

def collectives(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    total, root = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.broadcast(root, 1)
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    part = torch.empty(len(x) // n)
    dist.reduce_scatter(part, [piece.clone() for piece in x.chunk(n)])
    dist.barrier()
    late = x.clone()
    work = dist.all_reduce(late, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    return {"total": total, "root": root, "every": torch.cat(every), "part": part, "max": late}

def raises(x):
    return [][len(x)]

def hangs(x):
    while True:
        pass

def leaves(x):
    os._exit(0)

def takes_the_parents_life(x):
    try:
        os.kill(os.getppid(), 9)
    except OSError:
        pass
    return 1

def leaves_a_daemon(x):
    import sys
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(96)"], {})
        os._exit(0)
    return 1

class Always(float):
    def __eq__(self, other):
        return True

def equal_to_everything(x):
    return Always(0)

class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))

def payload(x):
    return Payload()

def reads_frames(x):
    import sys
    frame, names = sys._getframe(), []
    while frame:
        names += [name for name in frame.f_locals if "expected" in name or "solution" in name or "seed" in name]
        frame = frame.f_back
    return names

def forges_a_result(x):
    import gc, socket
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket):
            import json, struct
            data = json.dumps({"op": "result", "id": "guess", "value": {"value": 42, "printed": ""}}).encode()
            try:
                thing.sendall(struct.pack("!I", len(data)) + data)
            except OSError:
                pass
    return 0

def json_bomb(x):
    import gc, socket, struct
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket):
            try:
                thing.sendall(struct.pack("!I", 900_000) + b"[" * 900_000)
            except OSError:
                pass

def adds(a, b):
    return a + b

def adds_what_it_finds(tensor):
    import sys
    given = sys._getframe(1).f_locals["given"]["arrays"]
    tensor.copy_(torch.from_numpy(sum(given)))
'''


@pytest.fixture
def student(server):
    return Student(server, [["q1-answer", ANSWERS, True]], ROOT)


def numbers(world_size, length=6):
    return [[row] for row in np.arange(world_size * length, dtype="float32").reshape(world_size, length)]


def test_a_function_is_called_and_its_value_comes_back(student):
    assert student.call("adds", 2, 3) == 5
    total = student.call("adds", np.ones(3, "float32"), np.ones(3, "float32"))
    assert isinstance(total, np.ndarray) and total.tolist() == [2, 2, 2]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_is_seen_step_by_step(student, world_size):
    given = numbers(world_size, 7)
    run = student.on_ranks("ring", given)
    chunks = np.array_split(sum(row for (row,) in given), world_size)
    for rank, value in enumerate(run.values):
        assert (value == chunks[(rank + 1) % world_size]).all()
    assert run.steps == world_size - 1 and len(run.messages) == world_size * (world_size - 1)
    assert all(run.peers(rank) == {(rank + 1) % world_size} for rank in range(world_size))
    assert sum(run.sent_bytes(rank) for rank in range(world_size)) == 4 * 7 * (world_size - 1)


def test_batches_and_receives_from_anybody(student):
    assert [value.tolist() for value in student.on_ranks("batched", numbers(3, 1)).values] == [[2], [0], [1]]
    assert sorted(student.on_ranks("gathers_anything", numbers(3, 1)).values[0]) == [1, 2]


def test_collectives_where_they_are_allowed(student):
    run = student.on_ranks(
        "collectives",
        numbers(2, 4),
        collectives=("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"),
    )
    zero, one = run.values
    assert zero["total"].tolist() == one["total"].tolist() == [4, 6, 8, 10]
    assert zero["root"].tolist() == zero["max"].tolist() == [4, 5, 6, 7]
    assert one["every"].tolist() == list(range(8)) and one["part"].tolist() == [8, 10]
    assert [call.op for call in run.calls[0]] == [
        "all_reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "barrier",
        "all_reduce",
    ]


@pytest.mark.parametrize(
    "name, words, kind",
    [
        (
            "everybody_sends_first",
            "stuck: rank 0 waits in send to rank 1, rank 1 waits in send to rank 0",
            "deadlock",
        ),
        ("one_stays_away", "stuck: rank 1 waits in recv from rank 0, rank 0 has returned", "deadlock"),
        (
            "wrong_size",
            "rank 1 sent 6 elements of float32 to rank 0, which had made room for 1 of float32",
            "difference",
        ),
        ("nobody_listens", "rank 1 started a send to rank 0 that nobody answered", "difference"),
        ("uses_all_reduce", "'all_reduce' is not part of this exercise", "raised"),
        ("not_contiguous", "send was given a tensor that is not contiguous", "raised"),
        ("raises", "IndexError: list index out of range (your line: return [][len(x)])", "raised"),
        ("leaves", "its process ended", "killed"),
        ("nowhere", "your notebook does not define 'nowhere'", "raised"),
    ],
)
def test_what_goes_wrong_is_a_sentence(student, name, words, kind):
    with pytest.raises(StudentError) as caught:
        student.on_ranks(name, numbers(2))
    assert words in str(caught.value) and caught.value.kind == kind


def test_different_collectives_are_named(student):
    with pytest.raises(
        StudentError, match="did not call what belongs together: rank . (all_reduce|broadcast) of 6 elements"
    ):
        student.on_ranks("different", numbers(2), collectives=("all_reduce", "broadcast"))


def test_a_call_that_never_ends_is_ended(student):
    start = time.monotonic()
    with pytest.raises(StudentError, match="not finished in time; all ranks were computing"):
        student.on_ranks("hangs", numbers(2), seconds=0.5)
    assert time.monotonic() - start < 50
    time.sleep(0.5)
    busy = [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() == psutil.STATUS_RUNNING and child.cpu_percent(0.2) > 50
    ]
    assert not busy


@pytest.mark.parametrize(
    "name, words",
    [
        ("equal_to_everything", "a value of type Always"),
        ("payload", "a value of type Payload"),
        ("forges_a_result", "a message out of turn"),
        ("json_bomb", "a message that is not JSON"),
    ],
)
def test_an_attack_on_the_checker_is_a_wrong_answer(student, name, words):
    with pytest.raises(StudentError, match=words):
        student.call(name, 1)


def test_there_is_nothing_to_find(student):
    assert student.call("reads_frames", 1) == []


def test_the_server_survives(student):
    try:
        student.call("takes_the_parents_life", 1)
    except StudentError:
        assert box.level()[0] != "userns"
    assert student.call("adds", 1, 1) == 2


def test_a_daemon_does_not_outlive_its_worker(student, server):
    assert student.call("leaves_a_daemon", 1) == 1
    if server._sandbox.level != "userns":
        server.end_workers()
    deadline = time.monotonic() + 10
    while any(
        "time.sleep(96)" in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cells_that_are_not_answers_only_define(server):
    student = Student(
        server,
        [
            ["setup", "base = 10\nraise SystemExit\n", False],
            ["q1-answer", "def plus(x): return base + x", True],
            ["extra", "print(launch(1))\nthing = launch(2)\ndef twice(x): return 2 * x", False],
        ],
        ROOT,
    )
    assert student.call("plus", 1) == 11 and student.call("twice", 4) == 8


class Checks:
    """Stands for a module of utils.checks."""

    FUNCTIONS = {"q1": ("ring",)}
    seeds = []

    class Sub:
        name = "elements sent"

        @staticmethod
        def check(call, seed):
            Checks.seeds.append(seed)
            outputs = call(
                {
                    "probe": "all_reduce.in_place",
                    "world_size": 2,
                    "arguments": {
                        "cases": [{"arrays": [np.arange(4.0), np.arange(4.0)], "transposed": False}]
                    },
                }
            )
            assert outputs["error"] is None, outputs["error"]
            (sent,) = [made for made in outputs["calls"][0] if made["op"] == "send"]
            assert (sent["peer"], sent["elements"], sent["dtype"], sent["sent_bytes"], sent["case"]) == (
                1,
                2,
                "float64",
                16.0,
                0,
            )

    QUESTIONS = {"q1": [Sub]}


def test_the_labs_own_checks_run_behind_the_wall(server):
    pytest.importorskip("utils.checks.boundary")
    verifier = Verifier(cases_from_checks(Checks), ROOT, server._sandbox, seed=5)
    verifier._server = server
    student = Student(server, [["q1-answer", ANSWERS, True]], ROOT)
    assert [(check.name, check.passed, check.message) for check in verifier._verify("q1", student)] == [
        ("elements sent", True, "")
    ]
    verifier._verify("q1", student)
    assert Checks.seeds[0] == Checks.seeds[1]


def test_a_rank_does_not_hold_the_inputs_of_others(student):
    pytest.importorskip("utils.checks.probes.all_reduce")
    arrays = [np.arange(4.0), np.arange(4.0)]
    inputs = {
        "probe": "all_reduce.in_place",
        "world_size": 2,
        "arguments": {"cases": [{"arrays": arrays, "transposed": False}]},
    }
    assert "TypeError" in student.probe(["adds_what_it_finds"], inputs)["error"]["message"]
    assert doctest.testmod(student_module).failed == 0


WHOLE_BATCH = """
import sys, torch, torch.distributed as dist
from torch import nn

def broadcast_model(model):
    pass

def data_parallel_step(model, loss_fn, optimizer, inputs, targets, batch_size):
    batch = sys._getframe(1).f_locals["batch"]
    optimizer.zero_grad()
    loss_fn(model(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad.clone().contiguous())
    optimizer.step()
"""


def test_a_rank_cannot_train_on_the_whole_batch_alone(server):
    """The probe's frame holds the batch: a step of one process on it would look like a data-parallel one."""
    student = Student(server, [["q4-answer", WHOLE_BATCH, True]], ROOT)
    (case,) = [
        one
        for one in cases_from_checks(all_reduce)["q4"](student, np.random.default_rng(2))
        if one.name == "equal parts"
    ]
    with pytest.raises(AssertionError, match="q4|differ|rank|Rank|parameter"):
        case.run()


def test_a_lab_without_cases_has_no_verifier(tmp_path):
    write_course(tmp_path)
    assert verifier_of(LAB, tmp_path, sandbox.Sandbox()) is None


def test_a_lab_names_its_checks_by_importing_them():
    lab = read(ROOT / "labs" / "01_all_reduce.ipynb")
    assert checks_of(lab) == "all_reduce"
    for cell in lab.cells:
        cell.source = cell.source.replace("checks import all_reduce as", "checks import tensor as")
    assert checks_of(lab) == "tensor"


def test_no_secret_of_the_graders_environment_reaches_a_student(student, monkeypatch, server):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    fresh = Server(ROOT, server._sandbox)
    try:
        names = Student(
            fresh, [["q1-answer", "import os\ndef names(): return sorted(os.environ)", True]], ROOT
        ).call("names")
    finally:
        fresh.close()
    assert "SECRET_TOKEN" not in names and "PATH" in names and os.environ["SECRET_TOKEN"] == "abc"


@pytest.mark.parametrize("load, cores, times", [(0.5, 2, 1.0), (2.0, 2, 1.0), (5.0, 2, 2.5), (80.0, 2, 4.0)])
def test_a_busy_machine_gives_more_time(monkeypatch, load, cores, times):
    from utils.grading import student

    monkeypatch.setattr(student.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(student.os, "cpu_count", lambda: cores)
    assert student.patience() == times
