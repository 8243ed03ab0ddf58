"""Every mistake that a learner can make on ranks gets its own sentence, quickly, and leaves nothing behind."""
import inspect
import os
import threading
import time

import pytest
import rank_workers as workers

from utils import RankError, launch
from utils.ranks import pickles
from utils.ranks.compare import differences
from utils.ranks.files import Files
from utils.ranks.record import Call, Record
from utils.ranks.scratch import read_from, scratch_file
from utils.ranks.verdicts import Ending, judge
from utils.ranks.worker import refuse_to_start

RULE = "All ranks of a group must call the same collectives, in the same order, with the same sizes and dtypes."


def place(fn, text):
    """ "rank_workers.py line N" of the line of `fn` that contains `text`, and the line itself. """
    lines, first = inspect.getsourcelines(fn)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"rank_workers.py line {first + number}", lines[number].strip()


def verdict(fn, *args, seconds=300, **options):
    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(fn, *args, **options)
    assert time.monotonic() - begin < seconds
    return caught.value


def test_one_rank_raises():
    error = verdict(workers.one_raises)
    where, line = place(workers.one_raises, "raise ValueError")
    assert str(error) == (f"Rank 1 raised ValueError: no such chunk\n  {where}, in one_raises: {line}\n"
                          "The other ranks (0, 2, 3) were ended.")
    assert (error.kind, error.rank) == ("raised", 1)


def test_one_rank_never_joins():
    where, line = place(workers.one_never_joins, "all_reduce")
    error = verdict(workers.one_never_joins)
    assert str(error) == "\n".join([
        "Rank 2 returned, but ranks 0, 1 and 3 still wait in all_reduce: it would never end.",
        *(f"  rank {rank} waits in all_reduce ({where}: {line})" for rank in (0, 1, 3)), "  rank 2 has returned"])
    assert error.kind == "deadlock"


def test_different_collectives():
    gather, reduce = (place(workers.different_collectives, text)[0] for text in ("all_gather", "all_reduce"))
    assert str(verdict(workers.different_collectives)) == (
        f"The ranks called different collectives. Call 1 in the group of all ranks: rank 1 called all_gather ({gather}); "
        f"ranks 0, 2 and 3 called all_reduce ({reduce}). {RULE}")


@pytest.mark.parametrize("elements", [4, 40_000])  # a small one hangs or resets, a large one aborts the process
def test_different_sizes(elements):
    where, _ = place(workers.different_sizes, "all_reduce")
    assert str(verdict(workers.different_sizes, elements)) == (
        "The ranks called all_reduce with different sizes. Call 1 in the group of all ranks: "
        f"rank 0 gave {elements + 2:,} float32 elements ({where}); "
        f"ranks 1, 2 and 3 gave {elements:,} float32 elements ({where}). {RULE}")


def test_different_dtypes_abort_is_translated(capsys):
    where, _ = place(workers.different_dtypes, "all_reduce")
    assert str(verdict(workers.different_dtypes)) == (
        f"The ranks called all_reduce with different dtypes. Call 1 in the group of all ranks: rank 1 gave float64 ({where}); "
        f"ranks 0, 2 and 3 gave float32 ({where}). {RULE}")
    assert "terminate called" not in capsys.readouterr().out


def test_different_roots():
    assert "broadcast with different roots" in str(verdict(workers.different_roots))


def test_a_broadcast_that_silently_copies_a_part():
    assert "broadcast with different sizes" in str(verdict(workers.unequal_broadcast))


@pytest.mark.parametrize("sent, received", [(6, 4), (4, 6)])  # the second one passes silently in gloo
def test_send_and_recv_sizes_differ(sent, received):
    send, recv = (place(workers.send_fits_not, text)[0] for text in ("dist.send", "dist.recv"))
    assert str(verdict(workers.send_fits_not, sent, received)).startswith(
        f"A send and its recv do not fit. Rank 0 sent {sent} float32 elements to rank 1 ({send}); rank 1 received into "
        f"{received} float32 elements ({recv}). Both tensors must have the same size and dtype.")


def test_everybody_waits_in_recv():
    where, line = place(workers.everybody_receives, "dist.recv")
    assert str(verdict(workers.everybody_receives, world_size=3)) == "\n".join([
        "Deadlock: ranks 0, 1 and 2 all wait in recv, and nobody sends.",
        *(f"  rank {rank} waits in recv from rank {(rank + 1) % 3} ({where}: {line})" for rank in range(3))])


def test_everybody_sends_first():
    error = verdict(workers.everybody_sends_first)
    assert str(error).startswith(
        "Deadlock: ranks 0, 1, 2 and 3 all wait in send until the other side receives, and nobody receives.")


def test_crossed_groups():
    error = verdict(workers.crossed_groups)
    assert str(error).startswith("Deadlock: ranks 0 and 1 wait for each other.")
    assert "of the group of ranks 0 and 1" in str(error)


def test_groups_that_only_their_members_made():
    """torch numbers groups by how many a rank has made: the n-th ones then share a name."""
    def record(rank, members):
        return Record(rank, [Call(rank, 1, "all_reduce", "1", members, 4, "float32", (4,), 16, 16, None, None, None, None,
                                  None, 0.0)])

    made = [record(rank, members) for members in ((0, 1), (2, 3)) for rank in members]
    difference, = differences(made, finished=True)
    assert difference.certain
    assert difference.sentence.startswith("Ranks 0 and 2 made different groups at the same time: one with ranks 0 and 1, one "
                                          "with ranks 2 and 3. Every rank must call new_group for every group")
    assert differences(made[:2], finished=True) == []


@pytest.mark.parametrize("fn, first, second", [(workers.different_order, "`a`", "`b`"),
                                               (workers.different_order_in_a_loop, "`grads[0]`", "`grads[1]`")])
def test_same_sizes_in_a_different_order_are_reported_although_nothing_stops(fn, first, second, capsys):
    run = launch(fn, world_size=2)
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith("Ranks 0 and 1 seem to take the same tensors in a different order: as call 1, "
                                      f"rank 0 gave all_reduce {first}")
    assert f"rank 1 gave it {second}" in run.warnings[0]
    assert run.warnings[0] in capsys.readouterr().out


def test_a_call_that_nobody_answers_is_reported():
    warning, = launch(workers.one_call_too_many).warnings
    assert warning.startswith("Rank 0 called 2 collectives in the group of all ranks, rank 1 only 1")


def test_sys_exit():
    error = verdict(workers.one_calls_sys_exit)
    assert str(error).startswith(
        "Rank 1 called sys.exit(3). A rank ends by returning from its function; return a value instead.")
    assert error.kind == "exited"


def test_os_exit():
    assert str(verdict(workers.one_calls_os_exit)) == (
        "Rank 1 ended with exit code 3 before its function returned: something called os._exit or the like.\n"
        "The other ranks (0, 2, 3) were ended.")


def test_segmentation_fault():
    where, line = place(workers.one_crashes, "string_at")
    assert str(verdict(workers.one_crashes)).startswith(
        f"Rank 1 was ended by SIGSEGV ({where}: {line}): a crash in compiled code (a segmentation fault).")


def test_killed_as_when_memory_runs_out():
    assert str(verdict(workers.one_is_killed)).startswith(
        "Rank 1 was ended by SIGKILL: the system ended it, most often because memory ran out.")


def test_out_of_memory():
    error = verdict(workers.one_runs_out_of_memory)
    assert str(error).startswith("Rank 1 ran out of memory:")
    assert "Use fewer ranks, a smaller model or a smaller batch." in str(error)


def test_unpicklable_result():
    assert str(verdict(workers.one_returns_a_generator)).startswith(
        "The result of rank 2 (generator) cannot be sent between processes (TypeError: cannot pickle 'generator' object).")


def test_unpicklable_argument():
    with pytest.raises(TypeError, match=r"^Argument 2 of rank_and_arguments \(lock\) cannot be sent between processes"):
        launch(workers.rank_and_arguments, 1, threading.Lock())


def test_unpicklable_variable_of_the_function():
    lock = threading.Lock()

    def uses_the_lock():
        return lock.locked()

    with pytest.raises(TypeError, match="^The function uses_the_lock, or something it uses from the notebook, cannot be sent"):
        launch(uses_the_lock)


def test_nested_launch():
    assert str(verdict(workers.launches_again)).startswith(
        "Ranks 0, 1, 2 and 3 raised RuntimeError: launch was called on a rank. Start ranks from the notebook;")


@pytest.mark.parametrize("world_size", [0, -1, 2.0, "4", True])
def test_world_size_that_is_no_number_of_ranks(world_size):
    with pytest.raises(ValueError, match="^world_size is the number of ranks, a whole number of at least 1, not"):
        launch(workers.sum_of_ranks, world_size=world_size)


@pytest.mark.parametrize("timeout", [0, -1, "60", float("inf"), True])
def test_timeout_that_is_no_time(timeout):
    with pytest.raises(ValueError, match="^timeout is a number of seconds above 0, not"):
        launch(workers.sum_of_ranks, timeout=timeout)


def test_the_function_was_called_instead_of_passed():
    with pytest.raises(TypeError, match="Pass the function itself, without calling it"):
        launch(None)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce", "scatter"])
def test_not_contiguous(collective):
    error = verdict(workers.not_contiguous, collective, world_size=2)
    assert (f"raised ValueError: {collective} was given a tensor that is not contiguous "
            "(shape (4, 2), strides (4, 1)).") in str(error)


def test_not_contiguous_is_refused_without_a_record_too():
    assert "not contiguous" in str(verdict(workers.not_contiguous, "all_reduce", world_size=2, record=False))


def test_time_out_says_what_each_rank_was_doing():
    loop, barrier = (place(workers.one_never_ends, text) for text in ("pass", "barrier"))
    error = verdict(workers.one_never_ends, timeout=2, world_size=2)
    head, first, second = str(error).splitlines()
    assert head.startswith("The run did not end within 2 s and was stopped; rank 1 was not done, and rank 0 waited.")
    assert first == f"  rank 0 waits in barrier ({': '.join(barrier)})"
    assert second.startswith("  rank 1 still works (rank_workers.py line ")
    assert (error.kind, error.rank) == ("timeout", 1) and loop


def test_endless_output_is_stopped(capsys):
    error = verdict(workers.prints_for_ever, world_size=2)
    assert str(error) == ("Rank 0 printed more than 20 MB, so the run was stopped. "
                          "Print less: a summary per step, or from rank 0 only.")
    assert len(capsys.readouterr().out) < 50_000


def test_the_record_survives_a_kill():
    error = verdict(workers.dies_after_a_call, world_size=2)
    assert error.rank == 0
    assert error.run.comm().query("rank == 0 and op == 'all_reduce'").elements.item() == 5


def test_a_notebook_shows_the_verdict_alone():
    error = verdict(workers.one_raises)
    assert error._render_traceback_() == f"RankError: {error}".splitlines()


def test_a_wait_inside_compiled_code_is_found_too():
    where, line = place(workers.one_skips_backward, "loss.backward()")
    error = verdict(workers.one_skips_backward, world_size=2)
    assert str(error).splitlines() == ["Rank 1 returned, but rank 0 still waits in all_reduce: it would never end.",
                                       f"  rank 0 waits in all_reduce ({where}: {line})", "  rank 1 has returned"]


def test_an_error_whose_message_fails():
    assert "Mute: (its message cannot be shown)" in str(verdict(workers.error_without_a_message, world_size=1))


def test_the_system_refuses_another_process():
    files = Files(*map(scratch_file, Files._fields))
    refuse_to_start(files, OSError(11, "Resource temporarily unavailable"))
    ending = Ending(0, 1, pickles.loads(read_from(files.outcome)))
    for descriptor in files:
        os.close(descriptor)
    assert str(judge([ending], [Record(0)], "failed")) == (
        "The ranks could not be started: no more processes or threads may be started. Use fewer ranks, close other programs, "
        "or raise the limit before you start Jupyter: ulimit -u 4096.")
