"""The recorder sees every call, whoever makes it, with the bytes that the collective's definition gives."""
import json
import sys

import pytest
import rank_workers as workers

from utils import launch
from utils.ranks.definitions import bytes_by_definition

N, E = 4, 12  # ranks, elements; float32


def rows(run, rank=0):
    return {row.op: row for row in run.comm().query(f"rank == {rank}").itertuples()}


@pytest.fixture(scope="module")
def every_collective():
    return launch(workers.every_collective, E, world_size=N, echo=False)


@pytest.mark.parametrize("op, rank, calls, elements, sent, received", [
    ("all_reduce", 2, 1, E, 2 * 3 / 4 * E * 4, 2 * 3 / 4 * E * 4),
    ("broadcast", 1, 1, E, 3 * E * 4, 0),
    ("broadcast", 0, 1, E, 0, E * 4),
    ("reduce", 1, 1, E, 0, 3 * E * 4),
    ("reduce", 0, 1, E, E * 4, 0),
    ("all_gather", 3, 1, N * E, 3 * E * 4, 3 * E * 4),
    ("reduce_scatter", 3, 1, N * E, 3 * E * 4, 3 * E * 4),
    ("gather", 1, 1, N * E, 0, 3 * E * 4),
    ("gather", 0, 1, N * E, E * 4, 0),
    ("scatter", 1, 1, N * E, 3 * E * 4, 0),
    ("scatter", 2, 1, N * E, 0, E * 4),
    ("all_to_all", 0, 1, N * E, 3 * E * 4, 3 * E * 4),
    ("send", 0, 1, E, E * 4, 0),
    ("recv", 1, 1, E, 0, E * 4),
    ("barrier", 0, 1, 1, 0, 0),
])
def test_bytes_by_definition(every_collective, op, rank, calls, elements, sent, received):
    row = rows(every_collective, rank)[op]
    assert (row.calls, row.sent_bytes, row.received_bytes) == (calls, sent, received)
    if op != "barrier":
        assert (row.elements, row.dtype) == (elements, "float32")


def test_what_is_sent_is_received(every_collective):
    totals = every_collective.comm().groupby("op")[["sent_bytes", "received_bytes"]].sum()
    totals = {op: (row.sent_bytes, row.received_bytes) for op, row in totals.iterrows()}
    sent, received = totals.pop("send")[0], totals.pop("recv")[1]
    assert sent == received
    assert all(sent == received for sent, received in totals.values())


def test_calls_have_peers_times_and_lines(every_collective):
    calls = every_collective.calls()
    send = calls.query("op == 'send'").iloc[0]
    assert (send["rank"], send.peer, send.elements) == (0, 1, E)
    assert (calls.end >= calls.start).all()
    assert calls.line.notna().all()
    assert calls.groupby("rank").number.is_monotonic_increasing.all()


def test_uneven_all_to_all():
    run = launch(workers.uneven_all_to_all, world_size=2, echo=False)
    assert rows(run, 0)["all_to_all"].sent_bytes == 1 * 5 * 4
    assert rows(run, 0)["all_to_all"].received_bytes == 2 * 5 * 4
    assert rows(run, 1)["all_to_all"].sent_bytes == 2 * 5 * 4


def test_uneven_all_to_all_in_a_group():
    run = launch(workers.uneven_all_to_all_in_a_group, world_size=3, echo=False)
    assert rows(run, 0)["all_to_all"].sent_bytes == 2 * 5 * 4      # its own row stays
    assert rows(run, 0)["all_to_all"].received_bytes == 1 * 5 * 4
    assert rows(run, 2)["all_to_all"].sent_bytes == 1 * 5 * 4
    assert rows(run, 2)["all_to_all"].received_bytes == 2 * 5 * 4


def test_a_call_is_written_down_once_and_alike_through_either_door():
    run = launch(workers.through_either_door, 5, world_size=2, echo=False)
    calls = run.calls()
    for rank in range(2):
        own = calls[calls["rank"] == rank]
        p2p = ["send", "recv"][rank]
        assert list(own.op) == ["all_reduce", "all_reduce", p2p] * 2
        told = ["op", "group", "peer", "elements", "dtype", "shape", "sent_bytes", "received_bytes"]
        first, second = own.iloc[:3], own.iloc[3:]
        assert first[told].astype(str).values.tolist() == second[told].astype(str).values.tolist()
        assert own.end.notna().all() and own.line.notna().all()
    assert run.results[0][0].tolist() == [6.0] * 5 and run.results[0][1].tolist() == [24.0] * 5


def test_a_callback_may_make_tensors():
    assert launch(workers.works_in_a_callback, world_size=2, echo=False).results == [9.0, 9.0]


def test_waiting_in_any_order_ends_every_call():
    run = launch(workers.waits_out_of_order, world_size=2, echo=False)
    assert run.results == [[8.0] * 3] * 2
    assert len(run.calls()) == 8 and run.calls().end.notna().all()


def test_a_tensor_that_two_variables_hold_has_both_names():
    from utils.ranks.description import _names_of
    a, b = object(), object()
    assert _names_of(a, {"x": a, "y": b, "z": a}) == "x=z"
    assert _names_of(a, {"grads": [b, a], "table": {"w": a}}) == "grads[1]=table['w']"
    assert _names_of(a, {"b": b}) is None


@pytest.mark.parametrize("fn, args, op, elements", [
    (workers.trains_with_ddp, (3,), "all_reduce", 3 * 310),
    (workers.trains_with_fsdp, (), "reduce_scatter", 32 * 8 + 8),
    (workers.uses_dtensor, (), "all_gather", 24),
    (workers.uses_functional_collectives, (), "all_reduce", 6),
    (workers.in_inference_mode, (), "all_reduce", 6),
])
def test_calls_made_by_torch_itself_are_seen_once(fn, args, op, elements):
    run = launch(fn, *args, world_size=2, echo=False)
    assert rows(run)[op].elements == elements


def test_calls_of_backward_have_no_line_of_the_reader():
    calls = launch(workers.trains_with_ddp, 1, world_size=2, echo=False).calls().query("op == 'all_reduce' and elements == 310")
    assert len(calls) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters are Linux's")
@pytest.mark.parametrize("n", [2, 4])
def test_the_wire_agrees_with_the_definition(n):
    times, size = 3, 1_000_000
    run = launch(workers.one_megabyte, times, world_size=n, echo=False)
    on_the_wire, by_definition = run.wire().sum(axis=1), 2 * (n - 1) / n * size * times
    assert run.sent_bytes() == pytest.approx([by_definition] * n)
    assert ((on_the_wire / by_definition).between(1, 1.01)).all()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters are Linux's")
def test_the_wire_knows_the_peers():
    wire = launch(workers.ring_neighbours, 100_000, world_size=4, echo=False).wire()
    for rank in range(4):
        assert 400_000 <= wire.loc[rank, (rank + 1) % 4] < 404_000
        assert wire.loc[rank, (rank + 2) % 4] < 2_000


def test_without_a_record_there_are_results_only():
    run = launch(workers.every_collective, E, world_size=2, record=False)
    assert run.comm().empty and list(run.comm().columns)[:2] == ["rank", "op"]


def test_an_empty_run_has_empty_tables():
    run = launch(workers.rank_and_arguments, world_size=1)
    assert run.comm().empty and run.calls().empty and run.spans().empty
    run.timeline()


def test_spans():
    spans = launch(workers.marked_work, world_size=2, echo=False).spans()
    assert list(spans.name) == ["forward"] * 2 and list(spans.micro_batch) == [3, 3]
    assert ((spans.end - spans.start) >= 0.02).all()


def test_span_outside_a_run_does_nothing():
    from utils import span
    with span("forward"):
        pass


def test_timeline_has_a_lane_per_rank():
    import matplotlib.pyplot as plt
    figure = launch(workers.marked_work, world_size=3, echo=False).timeline()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["forward", "communication"]
    assert not plt.fignum_exists(figure.number), "a notebook would show it twice: returned, and held by pyplot"


def test_trace_is_chrome_trace_json(tmp_path):
    launch(workers.marked_work, world_size=2, echo=False).save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["name"]) for event in complete} == {
        (rank, name) for rank in range(2) for name in ("forward", "all_reduce")}
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in complete)


def test_the_definition_of_an_unknown_call():
    with pytest.raises(KeyError):
        bytes_by_definition("all_shout", 4, 2)
