"""Draw a run, or write it down for a trace viewer."""
import json

from utils.palette import COLOURS

_SPAN_COLOURS = {
    "update": COLOURS["optimizer state"], "optimizer": COLOURS["optimizer state"],
    "F": COLOURS["forward"], "B": COLOURS["backward"], "BW": COLOURS["backward"], "W": COLOURS["weight gradient"],
    **COLOURS,
}


def draw_timeline(run, ax=None):
    """One lane per rank: spans above, communication below, in milliseconds from the run's start."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
    if ax is None:
        figure, ax = plt.subplots(figsize=(9, 0.7 + 0.62 * run.world_size), layout="constrained")
        plt.close(figure)        # a notebook shows what a cell returns; what pyplot holds it would show once more
    legend = {}
    for item, lane, label, colour in _bars(run):
        if item.end is None:
            continue
        start, width = 1e3 * (item.start - run._zero()), 1e3 * (item.end - item.start)
        ax.barh(lane, width, left=start, height=0.38, color=colour, edgecolor="black", linewidth=0.4)
        legend.setdefault(label, Patch(facecolor=colour, edgecolor="black", linewidth=0.4, label=label))
    ax.set_yticks(range(run.world_size), [f"rank {rank}" for rank in range(run.world_size)])
    ax.invert_yaxis()
    ax.set_xlabel("time (ms)")
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(handles=list(legend.values()), loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False)
    return ax.figure


def _bars(run):
    """(span or call, height of its lane, legend label, colour) for everything that the ranks did."""
    for record in run.records:
        for span in record.spans:
            yield span, record.rank - 0.2, span.name, _SPAN_COLOURS.get(span.name, COLOURS["activations"])
        for call in record.calls:
            yield call, record.rank + 0.2, "communication", COLOURS["communication"]


def _details(run, call):
    return {"elements": call.elements, "dtype": call.dtype, "group": run._group(call), "peer": call.peer,
            "sent bytes": call.sent, "received bytes": call.received}


def write_trace(run, path):
    """Chrome trace JSON: one process per rank, one track for spans and one for communication; times in microseconds."""
    events = []
    for record in run.records:
        events += [{"ph": "M", "name": "process_name", "pid": record.rank, "args": {"name": f"rank {record.rank}"}},
                   {"ph": "M", "name": "thread_name", "pid": record.rank, "tid": 0, "args": {"name": "spans"}},
                   {"ph": "M", "name": "thread_name", "pid": record.rank, "tid": 1, "args": {"name": "communication"}}]
        items = [(span.name, 0, span, span.tags) for span in record.spans]
        items += [(call.op, 1, call, _details(run, call)) for call in record.calls]
        events += [{"ph": "X", "name": name, "pid": record.rank, "tid": track, "ts": 1e6 * (item.start - run._zero()),
                    "dur": 1e6 * (item.end - item.start), "args": args}
                   for name, track, item, args in items if item.end is not None]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
