"""How runs end: the culprit is found among the victims, waits that are no deadlock go on, interrupts leave nothing half done."""
import os
import signal
import sys
import threading
import time

import pytest
import rank_workers as workers

from utils import RankError, launch
from utils.ranks import processes
from utils.ranks.compare import differences
from utils.ranks.interrupts import interrupts_held
from utils.ranks.record import Call, Record
from utils.ranks.recorder import Recorder
from utils.ranks.scratch import scratch_file
from utils.ranks.verdicts import Ending, judge

LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:20203"


def error(message, time=1.0, kind="RuntimeError"):
    return {"error": {"type": kind, "message": message, "frames": [], "exit_code": None, "sentence": False}, "time": time}


def all_reduce(rank, group="0", ranks=(0, 1, 2), label=None, where=("ring.py", 3, "f"), **more):
    return Call(rank, 1, "all_reduce", group, ranks, 4, "float32", (4,), 16, 16, None, None, None, where, label, 0.0, **more)


# ---- culprits and victims ------------------------------------------------------------------------------------------

def test_a_process_that_aborts_because_another_one_died_is_a_victim():
    endings = [Ending(0, -signal.SIGABRT, None, place=0), Ending(1, -signal.SIGKILL, None, place=1), Ending(2, 1, error(LOST))]
    assert str(judge(endings, [Record(rank) for rank in range(3)], "failed")).startswith("Rank 1 was ended by SIGKILL")


def test_of_two_that_died_the_first_one_is_named():
    endings = [Ending(0, -signal.SIGKILL, None, place=1), Ending(1, -signal.SIGSEGV, None, place=0)]
    assert judge(endings, [Record(rank) for rank in range(2)], "failed").rank == 1


def test_who_hung_up_is_named_and_not_who_lost_the_connection():
    records = [Record(0, [all_reduce(0, failed=True)]), Record(1), Record(2, [all_reduce(2, failed=True)])]
    verdict = judge([Ending(0, 1, error(LOST)), Ending(1, None, None), Ending(2, 1, error(LOST))], records, "failed")
    assert str(verdict).startswith("Rank 1 hung up without failing: rank 0 lost the connection to it in all_reduce (ring")
    assert (verdict.kind, verdict.rank) == ("exited", 1)


def test_what_fails_because_the_run_was_stopped_is_not_the_cause():
    endings = [Ending(0, 1, error(LOST)), Ending(1, None, None)]
    verdict = judge(endings, [Record(0, begun=1.0), Record(1, begun=1.0)], "timeout", 3)
    assert verdict.kind == "timeout" and "rank 1 still works" in str(verdict)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the ranks are forked from a server on Linux")
def test_ranks_that_are_ended_one_after_the_other_change_no_verdict(monkeypatch, tmp_path):
    """The first to be ended hangs up on the others, and they have the time to say so."""
    close = processes.ForkedProcesses.close

    def close_slowly(self):
        for file in tmp_path.iterdir():
            os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()
            time.sleep(1)
        close(self)

    monkeypatch.setattr(processes.ForkedProcesses, "close", close_slowly)
    with pytest.raises(RankError, match="^Deadlock: ranks 0, 1, 2 and 3 all wait in send") as caught:
        launch(workers.first_rank_says_who_it_is_and_all_send_first, str(tmp_path), world_size=4, echo=False)
    assert not list(tmp_path.iterdir()) and caught.value.kind == "deadlock"


def test_sys_exit_without_a_code_is_an_exit_too():
    assert judge([Ending(0, 1, error("", kind="SystemExit"))], [Record(0)], "failed").kind == "exited"


def test_every_rank_has_returned_and_one_does_not_end():
    endings = [Ending(0, 0, {"result": b""}), Ending(1, None, None)]
    records = [Record(rank, begun=1.0, returned=2.0, packed=2.0) for rank in range(2)]
    lines = str(judge(endings, records, "timeout", 3)).splitlines()
    assert lines[0].startswith("The run did not end within 3 s and was stopped; rank 1 was not done.")
    assert lines[1:] == ["  rank 0 has returned", "  rank 1 has returned, but its result or an exit function takes its time"]


# ---- waits that are no deadlock ------------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_recv_that_is_posted_early_is_no_wait():
    assert launch(workers.receives_early, 7.0, world_size=2, echo=False).results == [1.0, 0.0]


def test_another_thread_may_still_send():
    assert launch(workers.a_thread_sends_later, 2.5, world_size=2, echo=False).results == [1.0, 0.0]


def test_a_wait_with_a_limit_of_its_own_is_the_readers_to_handle():
    assert launch(workers.waits_with_a_limit, 2.5, world_size=2, echo=False).results == ["gave up", None]


# ---- what the record holds -----------------------------------------------------------------------------------------

def test_lines_that_somebody_wrote_over_are_left_out():
    record = Record(0)
    record.add(b'{"event": "begin", "time": 1.0}\nnonsense\n{"event": "call"}\n[1]\n{"event": "returned", "time": 2.0}\n')
    assert (record.begun, record.returned, record.calls) == (1.0, 2.0, [])


def test_a_call_that_torch_refused_did_not_happen():
    with pytest.raises(RankError, match=r"^Rank 1 raised RuntimeError: .*invalid root rank: 99"):
        launch(workers.names_a_root_that_does_not_exist, world_size=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_copy_of_the_rank_writes_nothing():
    fd = scratch_file("record")
    recorder, record = Recorder(fd), Record(0)
    recorder.event("begin")
    if (child := os.fork()) == 0:
        recorder.event("returned")
        os._exit(0)
    os.waitpid(child, 0)
    record.read(fd)
    os.close(fd)
    assert record.begun and not record.returned


class CountedText(str):
    """Counts how often such texts are compared."""
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedText.compared += 1
        return str.__eq__(self, other)


def test_comparing_long_runs_takes_time_in_proportion():
    n = 2000
    records = [Record(rank, [all_reduce(rank, ranks=(0, 1), label=CountedText(f"rank {rank}: {i}")) for i in range(n)])
               for rank in range(2)]
    assert differences(records, finished=True) == []
    assert CountedText.compared < 20 * n


# ---- interrupts and the server of ranks ----------------------------------------------------------------------------

def test_an_interrupt_waits_until_it_may_come():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held() as held:
            os.kill(os.getpid(), signal.SIGINT)
            done.append("made")
            with held.released():
                done.append("never reached")
    assert done == ["made"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_comes_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all")
    assert done == ["all"]


def test_in_another_thread_interrupts_are_left_alone():
    seen = []

    def work():
        with interrupts_held() as held, held.released():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_was_ended_or_stopped_between_two_runs_is_replaced(number):
    launch(workers.sum_of_ranks, world_size=2)
    os.kill(processes._server.process.pid, number)
    assert launch(workers.sum_of_ranks, world_size=2).results == [1.0, 1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_a_server_that_is_stopped_while_it_loads_is_a_sentence_and_then_replaced():
    if processes._server is not None:
        processes._server.close()
    server = processes._living_server()
    os.kill(server.process.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="was stopped from outside.*The next launch starts it anew"):
        server.wait_until_ready()
    assert launch(workers.sum_of_ranks, world_size=2).results == [1.0, 1.0]
