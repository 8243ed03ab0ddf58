"""Pipeline schedules, each written as the order of actions that its paper describes."""

from .actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Schedule
from .arguments import divides, whole_number


def naive(pipeline, micro_batches=1):
    """One micro-batch at a time through all stages and back: one rank works, the others wait."""
    p, m = _sizes(pipeline, micro_batches)
    row = tuple(Action(kind, i) for i in range(m) for kind in (FORWARD, BACKWARD))
    return Schedule("naive", (row,) * p, m)


def gpipe(pipeline, micro_batches):
    """All forwards, then all backwards (GPipe, arXiv 1811.06965): m micro-batches are in flight."""
    p, m = _sizes(pipeline, micro_batches)
    row = tuple(Action(kind, i) for kind in (FORWARD, BACKWARD) for i in range(m))
    return Schedule("gpipe", (row,) * p, m)


def one_f_one_b(pipeline, micro_batches):
    """1F1B with a flush (PipeDream-Flush; Narayanan et al. 2021, section 2.2.1).

    Rank r runs p − 1 − r forwards ahead, then one forward and one backward in turn, so that it never has
    more than p − r micro-batches in flight.
    """
    p, m = _sizes(pipeline, micro_batches)
    return Schedule("1f1b", tuple(_one_by_one(range(m), range(m), p - 1 - rank) for rank in range(p)), m)


def interleaved_one_f_one_b(pipeline, micro_batches, chunks=2):
    """Interleaved 1F1B as Megatron-LM runs it (Narayanan et al. 2021, section 2.2.2).

    Micro-batches go in groups of p; each rank takes a group through its chunk 0, then through chunk 1…
    Rank r runs 2(p − 1 − r) + (v − 1)p forwards ahead. The number of micro-batches must be a multiple of p.
    """
    p, m = _sizes(pipeline, micro_batches)
    v = whole_number("chunks", chunks)
    divides("pipeline", p, "micro_batches", m)
    order = [
        (micro_batch, chunk)
        for group in range(0, m, p)
        for chunk in range(v)
        for micro_batch in range(group, group + p)
    ]
    forwards = [Action(FORWARD, micro_batch, chunk) for micro_batch, chunk in order]
    backwards = [Action(BACKWARD, micro_batch, v - 1 - chunk) for micro_batch, chunk in order]
    rows = tuple(_alternate(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * p) for rank in range(p))
    return Schedule("interleaved 1f1b", rows, m, v)


def looped_bfs(pipeline, micro_batches, chunks=2):
    """Breadth-first looping (Lamy-Poirier 2022, arXiv 2211.05953): all micro-batches, chunk after chunk.

    The bubble of interleaved 1F1B with all m micro-batches in flight, for any m.
    """
    p, m = _sizes(pipeline, micro_batches)
    v = whole_number("chunks", chunks)
    row = tuple(Action(FORWARD, i, chunk) for chunk in range(v) for i in range(m)) + tuple(
        Action(BACKWARD, i, chunk) for chunk in reversed(range(v)) for i in reversed(range(m))
    )
    return Schedule("looped bfs", (row,) * p, m, v)


def zb_h1(pipeline, micro_batches):
    """ZB-H1 (Zero Bubble, arXiv 2401.10241, section 2): 1F1B whose W's wait; the memory of 1F1B."""
    return _handcrafted_zero_bubble("zb-h1", pipeline, micro_batches, ahead=1)


def zb_h2(pipeline, micro_batches):
    """ZB-H2: twice as many forwards ahead, no bubble when T_F = T_B = T_W; 2p − 1 micro-batches in flight.

    Needs at least 2p − 1 micro-batches, and an optimizer step that does not synchronise the ranks.
    """
    p, m = _sizes(pipeline, micro_batches)
    if m < 2 * p - 1:
        raise ValueError(f"micro_batches must be at least 2 · pipeline − 1 = {2 * p - 1}, but {m} was given.")
    return _handcrafted_zero_bubble("zb-h2", p, m, ahead=2)


def zb_v(pipeline, micro_batches):
    """ZB-V: two chunks per rank in V order (section 6), in the memory of 1F1B.

    No bubble when T_F = T_B = T_W.
    With fewer than 2p − 1 micro-batches the order is that of 2p − 1 without the missing ones.
    """
    p, m = _sizes(pipeline, micro_batches)
    rows = tuple(
        tuple(action for action in _zb_v_rank(rank, p, max(m, 2 * p - 1)) if action.micro_batch < m)
        for rank in range(p)
    )
    return Schedule("zb-v", rows, m, 2, "v")


def dualpipe_v(pipeline, micro_batches):
    """DualPipeV (deepseek-ai/DualPipe): DualPipe folded into a V, one copy of the parameters; m ≥ 2p."""
    p, m = _sizes(pipeline, micro_batches)
    if m < 2 * p:
        raise ValueError(f"micro_batches must be at least 2 · pipeline = {2 * p}, but {m} was given.")
    rows = tuple(tuple(_dualpipe_rank(rank, p, m)) for rank in range(p))
    return Schedule("dualpipe-v", rows, m, 2, "v")


def dualpipe(pipeline, micro_batches):
    """DualPipe (DeepSeek-V3): micro-batches enter at both ends; every rank holds two stages.

    An even number of ranks and of micro-batches, at least 2p of them.
    """
    p, m = _sizes(pipeline, micro_batches)
    _even("pipeline", p)
    _even("micro_batches", m)
    if m < 2 * p:
        raise ValueError(f"micro_batches must be at least 2 · pipeline = {2 * p}, but {m} was given.")
    rows = []
    for rank in range(p):
        mirrored = rank >= p // 2
        rows.append(
            tuple(
                Action(kind, index + (m // 2) * (phase ^ mirrored), phase ^ mirrored, paired)
                for kind, index, phase, paired in _dualpipe_rank(min(rank, p - 1 - rank), p // 2, m // 2)
            )
        )
    return Schedule("dualpipe", tuple(rows), m, 2, "bidirectional")


def _sizes(pipeline, micro_batches):
    return whole_number("pipeline", pipeline), whole_number("micro_batches", micro_batches)


def _even(name, value):
    if value % 2:
        raise ValueError(f"{name} must be even for DualPipe, run from both ends, but {value} was given.")


def _one_by_one(forwards, backwards, ahead):
    return _alternate([Action(FORWARD, i) for i in forwards], [Action(BACKWARD, i) for i in backwards], ahead)


def _alternate(forwards, backwards, ahead):
    """`ahead` forwards, then one forward and one backward in turn, then the backwards that are left."""
    row = list(forwards[:ahead])
    for i, backward in enumerate(backwards):
        row.extend(forwards[ahead + i : ahead + i + 1])
        row.append(backward)
    return tuple(row)


def _handcrafted_zero_bubble(name, pipeline, micro_batches, ahead):
    """Rank r runs ahead · (p − 1 − r) forwards first, and starts its W's once ahead · r of them wait."""
    p, m = _sizes(pipeline, micro_batches)
    rows = []
    for rank in range(p):
        row = list(_one_by_one(range(m), range(m), ahead * (p - 1 - rank)))
        waiting = ahead * rank
        with_weights = []
        for action in row:
            if action.kind != BACKWARD:
                with_weights.append(action)
                continue
            with_weights.append(Action(BACKWARD_INPUT, action.micro_batch))
            if action.micro_batch >= waiting:
                with_weights.append(Action(BACKWARD_WEIGHT, action.micro_batch - waiting))
        with_weights.extend(Action(BACKWARD_WEIGHT, i) for i in range(max(m - waiting, 0), m))
        rows.append(tuple(with_weights))
    return Schedule(name, tuple(rows), m)


class _Counter:
    """Appends actions and numbers their micro-batches, one count for each kind and chunk."""

    def __init__(self):
        self.actions, self.next = [], {}

    def add(self, *steps):
        for kind, chunk in steps:
            index = self.next.get((kind, chunk), 0)
            self.next[kind, chunk] = index + 1
            self.actions.append(Action(kind, index, chunk))

    def count(self, kind, chunk):
        return self.next.get((kind, chunk), 0)


def _zb_v_rank(rank, p, m):
    """One rank's order for T_F = T_B = T_W: forwards down, forwards up with first backwards, then turns."""
    f0, f1, b0, b1 = (FORWARD, 0), (FORWARD, 1), (BACKWARD_INPUT, 0), (BACKWARD_INPUT, 1)
    w0, w1 = (BACKWARD_WEIGHT, 0), (BACKWARD_WEIGHT, 1)
    order = _Counter()
    order.add(*[f0] * (2 * (p - rank) - 1))
    order.add(*[f1, f0] * rank)
    order.add(*[f1, b1, w1] * (p - rank))
    while order.count(*f1) < m:
        order.add(*[f0] * (order.count(*f0) < m), b0, w0, f1, b1, w1)
    order.add(*[b0, b1] * rank)
    order.add(*[b0, w0] * (p - rank))
    order.add(*[w1] * (m - order.count(*w1)), *[w0] * (m - order.count(*w0)))
    return order.actions


def _dualpipe_rank(rank, p, m):
    """The eight steps of DualPipe for rank `rank` of a half of p ranks, as Actions whose chunk is the phase.

    Phase 0 runs towards the middle, phase 1 away from it; each has m micro-batches.
    """
    steps, counts, waiting = [], {}, []

    def add(kind, phase, paired=False):
        family = FORWARD if kind == FORWARD else BACKWARD
        index = counts.get((family, phase), 0)
        counts[family, phase] = index + 1
        steps.append(Action(kind, index, phase, paired))
        if kind == BACKWARD_INPUT:
            waiting.append(Action(BACKWARD_WEIGHT, index, phase))

    def add_pair(forward_phase, paired=True):
        add(FORWARD, forward_phase, paired)
        add(BACKWARD, 1 - forward_phase)

    def add_weight():
        if waiting:
            steps.append(waiting.pop(0))

    for _ in range(2 * (p - rank - 1)):
        add(FORWARD, 0)
    for _ in range(rank + 1):
        add(FORWARD, 0)
        add(FORWARD, 1)
    for _ in range(p - rank - 1):
        add(BACKWARD_INPUT, 1)
        add_weight()
        add(FORWARD, 1)
    for turn in range(m - 2 * p + rank + 1):
        add_pair(0, paired=turn > 0 or rank < p - 1)
        add_pair(1)
    for _ in range(p - rank - 1):
        add(BACKWARD, 1)
        add_pair(1)
    # The second half of the last backwards leaves its W's for the gaps of the drain.
    for i in range(2 * (rank + 1)):
        add(BACKWARD if i <= rank else BACKWARD_INPUT, 1 - i % 2)
    for _ in range(p - rank - 1):
        add_weight()
        add(BACKWARD_INPUT, 0)
    while waiting:
        add_weight()
    return steps
