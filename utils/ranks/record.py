"""Read what the ranks wrote down: calls, spans and how far each rank came."""
import contextlib
import json
from dataclasses import dataclass, field

from utils.ranks.scratch import read_from

Place = tuple[str, int, str]  # file name, line, function: where the reader's own code made a call


@dataclass
class Call:
    """One communication call of one rank. Times are seconds of the machine's monotonic clock."""
    rank: int
    number: int                  # counts this rank's calls and spans
    op: str                      # "all_reduce", "send", …
    group: str                   # name of the process group
    ranks: tuple[int, ...]       # the group's members, as global ranks
    elements: int                # of the full tensor: see utils.ranks.definitions
    dtype: str
    shape: tuple[int, ...]       # of this rank's own (first) tensor
    sent: float                  # bytes, by definition
    received: float              # bytes, by definition
    root: int | None             # global rank
    peer: int | None             # global rank; None for a recv from any source
    tag: int | None
    where: Place | None          # None: called by the autograd engine, in backward
    label: str | None            # the caller's name for the tensor
    start: float
    waited: float | None = None  # when this rank began to wait for it
    end: float | None = None
    failed: bool = False
    unseen: bool = False         # this rank may wait for it without our seeing that

    @property
    def point_to_point(self) -> bool:
        return self.op in ("send", "recv")


@dataclass
class Span:
    """One marked stretch of work of one rank."""
    rank: int
    name: str
    tags: dict
    start: float
    end: float | None = None


@dataclass
class Record:
    """All that one rank wrote down, read on demand and again while it runs."""
    rank: int
    calls: list[Call] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    new_groups: list[Call] = field(default_factory=list)  # of which this rank is a member: it waits there for the others
    connections: list | None = None   # the kernel's count per connection, see utils.ranks.wire
    begun: float | None = None        # the function started
    returned: float | None = None     # the function returned
    packed: float | None = None       # its result was ready to be sent
    unheard: str = ""                 # why the rank could not hand over its result or error
    _bytes_read: int = 0
    _tail: bytes = b""
    _open: dict = field(default_factory=dict)

    def read(self, fd: int) -> bool:
        """Take in what was added to the file; True when there was something."""
        data = read_from(fd, self._bytes_read).partition(b"\0")[0]  # zeros: not written yet
        self._bytes_read += len(data)
        self.add(data)
        return bool(data)

    def add(self, data: bytes) -> None:
        """Take in more lines; an unfinished last line waits for its rest."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # somebody else wrote over the line
                self._take(json.loads(line))

    def waiting_in(self) -> Call | None:
        """The call that this rank waits for right now, if it does."""
        waiting = [call for call in self.open_calls() if call.waited is not None]
        return waiting[-1] if waiting and not self.returned else None

    def open_calls(self) -> list[Call]:
        """The calls that have begun and not ended."""
        return [item for item in self._open.values() if isinstance(item, Call)]

    def _take(self, event):
        kind, time, number = event.pop("event"), event.pop("time"), event.pop("n", None)
        if kind == "call":
            event.update(ranks=tuple(event["ranks"]), shape=tuple(event["shape"]),
                         where=event["where"] and tuple(event["where"]), waited=time if event.pop("waits") else None)
            self._open[number] = Call(rank=self.rank, number=number, start=time, **event)
            self.calls.append(self._open[number])
        elif kind == "group":
            self._open[number] = Call(
                self.rank, number, "new_group", event["group"], tuple(event["ranks"]), elements=0, dtype="", shape=(), sent=0.0,
                received=0.0, root=None, peer=None, tag=None, where=event["where"] and tuple(event["where"]), label=None,
                start=time, waited=time if event["waits"] else None)
            self.new_groups.append(self._open[number])
        elif kind == "span":
            self._open[number] = Span(rank=self.rank, start=time, **event)
            self.spans.append(self._open[number])
        elif kind == "wait" and number in self._open:
            self._open[number].waited = time
        elif kind == "future" and number in self._open:
            self._open[number].unseen = True
        elif kind == "refused" and number in self._open:  # torch did not like its arguments: it never went out
            self.calls.remove(self._open.pop(number))
        elif kind in ("done", "failed") and number in self._open:
            item = self._open.pop(number)
            item.end = time
            if kind == "failed":
                item.failed = True
        elif kind == "wire":
            self.connections = event["connections"]
        elif kind == "begin":
            self.begun = time
        elif kind == "returned":
            self.returned = time
        elif kind == "packed":
            self.packed = time
        elif kind == "unheard":
            self.unheard = event["why"]
