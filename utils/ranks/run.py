"""What a finished run can tell: results, output, communication, time."""
from dataclasses import dataclass, field

from utils.ranks.record import Record
from utils.ranks.wire import bytes_between_ranks


@dataclass
class Run:
    """The outcome of `launch`, one entry per rank in `results` and `outputs`.

    `seconds` is the wall time of the whole run; `warnings` holds the sentences about what looked wrong although
    every rank returned.
    """
    results: list
    outputs: list[str]
    seconds: float
    backend: str
    devices: tuple[str, ...]
    records: list[Record] = field(repr=False)
    warnings: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        return len(self.records)

    @property
    def device(self) -> str:
        """The kind of device the ranks used: "cpu" or "cuda"."""
        return self.devices[0].split(":")[0]

    def calls(self):
        """Every communication call of every rank in order of time: a DataFrame, times in seconds from the run's start."""
        import pandas
        zero = self._zero()
        rows = [{"rank": call.rank, "op": call.op, "group": self._group(call), "peer": call.peer, "elements": call.elements,
                 "dtype": call.dtype, "shape": call.shape, "sent_bytes": call.sent, "received_bytes": call.received,
                 "start": call.start - zero, "end": None if call.end is None else call.end - zero, "number": call.number,
                 "line": None if call.where is None else call.where[1]}
                for record in self.records for call in record.calls]
        columns = ["rank", "op", "group", "peer", "elements", "dtype", "shape", "sent_bytes", "received_bytes",
                   "start", "end", "number", "line"]
        table = pandas.DataFrame(rows, columns=columns).sort_values(["start", "rank"], ignore_index=True)
        return table.astype({"peer": "Int64", "line": "Int64", "end": float})

    def comm(self):
        """What each rank communicated: a DataFrame with a row per rank, call, group and dtype.

        `elements` and the bytes are summed over the calls. `elements` counts the full tensor of each call (the output
        of an all_gather, the input of a reduce_scatter); `sent_bytes` and `received_bytes` are what the collective
        moves by its definition (utils.ranks.definitions).
        """
        calls = self.calls()
        keys = ["rank", "op", "group", "dtype"]
        return calls.groupby(keys, sort=True, as_index=False).agg(
            calls=("op", "size"), elements=("elements", "sum"),
            sent_bytes=("sent_bytes", "sum"), received_bytes=("received_bytes", "sum"))

    def sent_bytes(self) -> list[float]:
        """Bytes that each rank sent, by the definition of its calls."""
        return [sum(call.sent for call in record.calls) for record in self.records]

    def wire(self):
        """Bytes that the kernel counted on the ranks' sockets: a DataFrame, row = sender, column = receiver.

        Includes the headers of gloo's messages. Linux with gloo only; elsewhere every entry is missing.
        """
        import pandas
        names = pandas.RangeIndex(self.world_size, name="from"), pandas.RangeIndex(self.world_size, name="to")
        if any(not record.connections for record in self.records):
            return pandas.DataFrame(float("nan"), *names)
        return pandas.DataFrame(bytes_between_ranks([record.connections for record in self.records]), *names)

    def spans(self):
        """The stretches marked with `span`: a DataFrame, times in seconds from the run's start."""
        import pandas
        zero = self._zero()
        rows = [{"rank": span.rank, "name": span.name, **span.tags, "start": span.start - zero,
                 "end": None if span.end is None else span.end - zero}
                for record in self.records for span in record.spans]
        return pandas.DataFrame(rows, columns=None if rows else ["rank", "name", "start", "end"])

    def timeline(self, ax=None):
        """Draw one lane per rank with its spans and communication; returns the matplotlib figure."""
        from utils.ranks.timeline import draw_timeline
        return draw_timeline(self, ax)

    def save_trace(self, path) -> None:
        """Write the run as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open."""
        from utils.ranks.timeline import write_trace
        write_trace(self, path)

    def _zero(self):
        return min((record.begun for record in self.records if record.begun is not None), default=0.0)

    def _group(self, call):
        return "all" if len(call.ranks) == self.world_size else ",".join(map(str, call.ranks))
