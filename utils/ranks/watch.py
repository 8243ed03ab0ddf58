"""Follow a run from outside until it is over, or until it must be ended."""
import os
import signal
import time

from utils.ranks import pickles
from utils.ranks.compare import deadlock, differences
from utils.ranks.files import Files
from utils.ranks.output import LONGEST_OUTPUT, as_text, show
from utils.ranks.record import Record
from utils.ranks.scratch import read_from
from utils.ranks.verdicts import Ending

_QUIET_SECONDS = 1.0          # so long must nothing happen before we ask whether anything still can
_LONG_QUIET_SECONDS = 5.0     # and so long before an open call counts as waited for, since compiled code does not tell
_STARTING_SECONDS = 60.0      # so long may the ranks take, on a busy machine, before the function starts
_FELLOW_SECONDS = 0.5         # so long we wait, after a failure, for the failures that came with it
_STACK_SECONDS = 5.0          # so long we wait for the ranks to write down where they stand
_LONGEST_STACK = 1_000_000    # bytes of a rank's stack dumps that are looked at


class Watch:
    """Follows a run from outside: who ended, who still moves, what was printed."""

    def __init__(self, processes, files: list[Files], timeout, live, record):
        self.processes, self.files, self.live, self.record = processes, files, live, record
        self.timeout = timeout
        self._begin = time.monotonic()
        self.exit_codes: dict[int, int] = {}
        self.records = [Record(rank) for rank in range(len(files))]
        self._shown = [0] * len(files)
        self._moved = time.monotonic()

    def until_over(self) -> str:
        """Return "done", or why the run was stopped: "failed", "deadlock", "timeout", "output" or "server"."""
        while True:
            ended = self.processes.wait(0.1)
            self.exit_codes.update(ended)
            self._stream()
            if self.processes.lost:
                return "server"
            if any(self.ending(rank).failed for rank in ended):
                self._let_fellows_fail()
                return "failed"
            if len(self.exit_codes) == len(self.files):
                return "done"
            if any(os.fstat(of_rank.output).st_size > LONGEST_OUTPUT for of_rank in self.files):
                return "output"
            if time.monotonic() > self._deadline() and not (self.read_records() and time.monotonic() < self._deadline()):
                self._ask_for_stacks()
                return "timeout"
            if self._stuck() and self.record:
                return "deadlock"

    def _deadline(self):
        """The limit is for the function: the clock starts when it has started everywhere. To end takes as long at most."""
        begun, returned = ([getattr(record, event) for record in self.records] for event in ("begun", "returned"))
        if None in begun:
            return self._begin + _STARTING_SECONDS + self.timeout
        return max(begun if None in returned else returned) + self.timeout

    def ending(self, rank) -> Ending:
        files = self.files[rank]
        packed = read_from(files.outcome)
        try:
            outcome = pickles.loads(packed) if packed else None
        except Exception:
            outcome = None  # cut short while it was written
        stack = read_from(files.stack, end=_LONGEST_STACK).decode(errors="replace")
        place = list(self.exit_codes).index(rank) if rank in self.exit_codes else len(self.exit_codes)
        return Ending(rank, self.exit_codes.get(rank), outcome, stack, place, self.processes.stopped.get(rank, 0))

    def output(self, rank) -> str:
        return as_text(read_from(self.files[rank].output, end=LONGEST_OUTPUT))

    def read_records(self) -> bool:
        return any([record.read(files.record) for record, files in zip(self.records, self.files, strict=True)])

    def _stuck(self):
        if self.read_records():
            self._moved = time.monotonic()
        quiet = time.monotonic() - self._moved
        if quiet < _QUIET_SECONDS:
            return False
        if deadlock(self.records, waits_unseen=quiet > _LONG_QUIET_SECONDS):
            return True
        halted = all(record.returned or record.waiting_in() or (record.open_calls() and quiet > _LONG_QUIET_SECONDS)
                     for record in self.records)
        return halted and any(difference.certain for difference in differences(self.records, finished=False))

    def _let_fellows_fail(self):
        """Others may be about to fail in the same way; on a busy machine some may not even have started."""
        until, latest = time.monotonic() + _FELLOW_SECONDS, time.monotonic() + _LONG_QUIET_SECONDS
        while time.monotonic() < until and len(self.exit_codes) < len(self.files):
            self.exit_codes.update(self.processes.wait(0.05))
            self.read_records()
            starting = [record.rank for record in self.records if record.begun is None and record.rank not in self.exit_codes]
            if starting and time.monotonic() < latest:
                until = time.monotonic() + _FELLOW_SECONDS

    def _ask_for_stacks(self):
        self.processes.signal(signal.SIGUSR1)
        until = time.monotonic() + _STACK_SECONDS
        while time.monotonic() < until and not all(os.fstat(files.stack).st_size for rank, files in enumerate(self.files)
                                                   if rank not in self.exit_codes and not self.processes.stopped.get(rank)):
            self.exit_codes.update({rank: code for rank, code in self.processes.wait(0.05).items() if code != -signal.SIGUSR1})

    def _stream(self):
        if not self.live:
            return
        for rank, files in enumerate(self.files):
            new = read_from(files.output, self._shown[rank], LONGEST_OUTPUT)
            complete = len(new) if rank in self.exit_codes else new.rfind(b"\n") + 1
            if complete:
                self._shown[rank] += complete
                show(rank, as_text(new[:complete]))
