"""Turn the end of a failed run into one message: what went wrong first, where, and in whose line."""
import linecache
import re
import signal
from dataclasses import dataclass

from utils.ranks.compare import deadlock, differences, waiting_text
from utils.ranks.places import is_user_file
from utils.ranks.record import Record
from utils.ranks.wording import call_text, frame_text, place_text, ranks_text, verb

# what a rank's call says when another rank has gone: a consequence, never the cause
_CONSEQUENCE = re.compile(r"gloo/transport|NCCL communicator was aborted|remote process exited", re.I)
_HUNG_UP = re.compile(r"gloo/transport.*(Connection (closed|reset) by peer|Broken pipe)|remote process exited", re.I)
_CPP_TRACE = re.compile(r"\nException raised from .*", re.S)
STOPPED = ("timeout", "deadlock")
"""Why a run is stopped in which no rank has failed: what fails from then on does so because it was stopped."""
_LONGEST_MESSAGE = 2000
_SHOWN_FRAMES = 5  # at either end of a long traceback


class RankError(RuntimeError):
    """A run on ranks failed. The message is the verdict.

    Attributes: `rank` (the first culprit, or None when it is the ranks' interplay), `kind` (a word for programs:
    "raised", "exited", "killed", "difference", "deadlock", "timeout", "output", "result", "server", "refused"), `run`
    (what is known of the run).
    """

    def __init__(self, message: str, kind: str, rank: int | None = None, run=None):
        super().__init__(message)
        self.kind, self.rank, self.run = kind, rank, run

    def _render_traceback_(self):
        """What a notebook shows: the verdict alone, since the reader's own lines are in it."""
        return f"RankError: {self}".splitlines()


@dataclass(frozen=True)
class Ending:
    """How one rank ended: its exit code (None: it still ran), its outcome (None: it left none), its stack dump.

    `place` tells how many ranks had ended before it; `stopped_by` is the signal that stopped a rank which still ran.
    """
    rank: int
    exit_code: int | None
    outcome: dict | None
    stack: str = ""
    place: int = 0
    stopped_by: int = 0

    @property
    def error(self) -> dict | None:
        return self.outcome.get("error") if self.outcome else None

    @property
    def failed(self) -> bool:
        return self.exit_code is not None and (self.exit_code != 0 or self.outcome is None or self.error is not None)


def judge(endings: list[Ending], records: list[Record], reason: str, limit_seconds: float = 0) -> RankError:
    """Find the first cause of a failed run.

    `reason` is why the notebook stopped it: "failed" (some rank ended badly), "deadlock" or "timeout".
    """
    certain = [difference for difference in differences(records, finished=False) if difference.certain]
    if reason in STOPPED:
        if certain:
            return _different(certain[0], endings)
        if reason == "timeout":
            return _too_late(endings, records, limit_seconds)
        return RankError(deadlock(records) or deadlock(records, waits_unseen=True), "deadlock")
    independent = sorted((ending for ending in endings if ending.error and not _is_consequence(ending.error)),
                         key=lambda ending: ending.outcome["time"])
    if independent and not (certain and _from_a_call(records[independent[0].rank])):
        return _raised(independent[0], endings)
    if certain:
        return _different(certain[0], endings)
    dead = [ending for ending in endings if ending.failed and ending.outcome is None]
    if dead:
        return _died(min(dead, key=lambda ending: (ending.exit_code == -signal.SIGABRT, ending.place)), endings, records)
    if sentence := deadlock(records) or deadlock(records, waits_unseen=True):
        return RankError(sentence, "deadlock")
    first = min((ending for ending in endings if ending.error), key=lambda ending: ending.outcome["time"])
    silent = [ending.rank for ending in endings if not ending.failed]
    return _hung_up(silent, first, records) if silent and _HUNG_UP.search(first.error["message"]) else _raised(first, endings)


def _is_consequence(error):
    return not error["sentence"] and not _exited(error) and bool(_CONSEQUENCE.search(error["message"]))


def _exited(error):
    return error["exit_code"] is not None or error["type"] == "SystemExit"  # sys.exit() has no code


def _from_a_call(record):
    return bool(record.calls) and record.calls[-1].failed


def _others(endings, *culprits):
    others = [ending.rank for ending in endings if ending.rank not in culprits]
    if not others:
        return ""
    names = ", ".join(map(str, others))
    return f"\nThe other {verb(others, 'rank', 'ranks')} ({names}) {verb(others, 'was', 'were')} ended."


def _raised(first, endings):
    """The first error; ranks that failed in the same way at the same line share one sentence."""
    same = [ending.rank for ending in endings if ending.error and _signature(ending.error) == _signature(first.error)]
    rank, error = min(same), next(ending.error for ending in endings if ending.rank == min(same))
    who = ranks_text(same).capitalize()
    message = _CPP_TRACE.sub("", error["message"])[:_LONGEST_MESSAGE].rstrip()
    if error["sentence"]:
        text = message[:1].upper() + message[1:]
    elif _exited(error):
        code = error["exit_code"]
        text = (f"{who} called sys.exit({'' if code is None else repr(code)}). A rank ends by returning from its function; "
                "return a value instead.")
    elif _is_out_of_memory(error):
        text = f"{who} ran out of memory: {message or error['type']}. Use fewer ranks, a smaller model or a smaller batch."
    else:
        text = f"{who} raised {error['type']}" + (f": {message}" if message else "")
    lines = [f"  {frame_text((filename, line, name), source)}"
             for filename, line, name, source in _with_source(error["frames"])]
    if len(lines) > 2 * _SHOWN_FRAMES:
        lines[_SHOWN_FRAMES:-_SHOWN_FRAMES] = [f"  … {len(lines) - 2 * _SHOWN_FRAMES} calls more …"]
    kind = "exited" if _exited(error) else "raised"
    return RankError("\n".join([text, *lines]) + _others(endings, *same), kind, rank)


def _signature(error):
    return error["type"], error["frames"][-1][:3] if error["frames"] else None


def _with_source(frames):
    for filename, line, name, source in frames:
        yield filename, line, name, source or linecache.getline(filename, line).strip()


def _is_out_of_memory(error):
    return error["type"] in ("MemoryError", "torch.OutOfMemoryError") or "can't allocate memory" in error["message"]


def _different(difference, endings):
    return RankError(difference.sentence, "difference")


def _died(ending, endings, records):
    rank, code, record = ending.rank, ending.exit_code, records[ending.rank]
    where = _stands_at(ending, record)
    at = f" ({where})" if where else ""
    when = "after" if record.returned else "before"
    if record.unheard:
        text = (f"Rank {rank} could not hand over its result or error: {record.unheard}. "
                "Something there closed files that it had not opened, or limited what may be written.")
        return RankError(text + _others(endings, rank), "exited", rank)
    if code >= 0:
        text = (f"Rank {rank} ended with exit code {code} {when} its function returned{at}: "
                "something called os._exit or the like.")
        return RankError(text + _others(endings, rank), "exited", rank)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = {
        "SIGKILL": "the system ended it, most often because memory ran out. Use fewer ranks, a smaller model or a smaller batch",
        "SIGSEGV": "a crash in compiled code (a segmentation fault)",
        "SIGABRT": "compiled code gave up; most often the ranks' tensors did not fit together, see above what it printed",
        "SIGBUS": "a crash in compiled code; most often shared memory ran out",
        "SIGFPE": "a crash in compiled code; most often a whole number was divided by zero",
        "SIGILL": "a crash in compiled code; most often it was compiled for another processor",
    }.get(name, "it was ended from outside")
    return RankError(f"Rank {rank} was ended by {name}{at}: {why}." + _others(endings, rank), "killed", rank)


def _hung_up(silent, victim, records):
    """Ranks lost a connection, but nobody has failed: then it was closed on one of the ranks that go on."""
    who = ranks_text(silent).capitalize() if len(silent) == 1 else f"One of the {ranks_text(silent)}"
    lost = [call for call in records[victim.rank].calls if call.failed]
    where = f" in {call_text(lost[-1])} ({place_text(lost[-1].where, with_source=True)})" if lost else ""
    return RankError(
        f"{who} hung up without failing: rank {victim.rank} lost the connection to it{where}. Something on "
        f"{'it' if len(silent) == 1 else 'one of them'} ended the process group, closed files that it had not opened, "
        "or replaced the program (os.exec).", "exited", silent[0] if len(silent) == 1 else None)


def _too_late(endings, records, limit_seconds):
    slow = [ending.rank for ending, record in zip(endings, records, strict=True) if not record.returned]
    slow = (slow or [ending.rank for ending, record in zip(endings, records, strict=True) if not record.packed]
            or [ending.rank for ending in endings if ending.exit_code is None])
    lines = [_progress(ending, record, len(records), ending.rank in slow)
             for ending, record in zip(endings, records, strict=True)]
    waiting = [rank for rank in slow if records[rank].waiting_in()]
    at_work = [rank for rank in slow if rank not in waiting]
    stopped = [ending.rank for ending in endings if ending.stopped_by]
    who = f"{ranks_text(slow)} {verb(slow, 'was', 'were')} not done"
    if waiting and at_work:  # the others only wait for these
        who = f"{ranks_text(at_work)} {verb(at_work, 'was', 'were')} not done, and {ranks_text(waiting)} waited"
    advice = ("A rank that is stopped does nothing until it gets SIGCONT." if stopped
              else "If it needs longer, give launch a larger timeout.")
    head = f"The run did not end within {limit_seconds:g} s and was stopped; {who}. {advice}"
    culprits = stopped or at_work
    return RankError("\n".join([head, *(f"  {line}" for line in lines)]), "timeout", culprits[0] if len(culprits) == 1 else None)


def _progress(ending, record, world_size, slow):
    """What one rank was doing when the time was over."""
    rank, call, where = ending.rank, record.waiting_in(), _stands_at(ending, record)
    at = f" ({where})" if where else ""
    if ending.stopped_by:
        return f"rank {rank} was stopped by {signal.Signals(ending.stopped_by).name}{at}"
    if record.returned and slow:
        return f"rank {rank} has returned, but its result or an exit function takes its time{at}"
    if record.returned:
        return f"rank {rank} has returned"
    if call is not None:
        return waiting_text(call, world_size)
    return f"rank {rank} still works{at}" if where or record.begun else f"rank {rank} had not started yet"


def _stands_at(ending, record):
    """Where the rank's Python code stood: from its stack dump, else from its last call."""
    for thread in reversed(ending.stack.split("most recent call first):")):  # the main thread comes last
        for filename, line, name in re.findall(r'File "(.+)", line (\d+) in (\S+)', thread):
            if is_user_file(filename):
                return place_text((filename, int(line), name), with_source=True)
    unfinished = [call for call in record.calls if call.end is None and call.where]
    return place_text(unfinished[-1].where, with_source=True) if unfinished else ""
