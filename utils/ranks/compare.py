"""Do the ranks' records fit together? Collectives must match call by call, sends must match their recvs."""
from collections import defaultdict
from dataclasses import dataclass

from utils.ranks.record import Call, Record
from utils.ranks.wording import call_text, group_text, place_text, ranks_text, size_text, verb

_SIZE_MAY_DIFFER = {"all_to_all", "barrier"}
_GROUP_RULE = "Every rank must call new_group for every group, in the same order, also for groups that it is not in."
_RULE = "All ranks of a group must call the same collectives, in the same order, with the same sizes and dtypes."


@dataclass(frozen=True)
class Difference:
    """Two ranks did not do what belongs together. `certain` is False where the record can only suspect it."""
    sentence: str
    ranks: tuple[int, ...]
    certain: bool = True


def differences(records: list[Record], finished: bool) -> list[Difference]:
    """Compare the ranks' sequences of calls, group by group and pair by pair.

    `finished`: all ranks returned, so that a missing call is missing for good.
    """
    found = list(_compare_members(records))
    found += [difference for calls in collectives_by_group(records).values()
              for difference in _compare_group(calls, len(records), finished)]
    return found + _compare_pairs(records)


def collectives_by_group(records) -> dict[tuple, dict[int, list[Call]]]:
    """{(group name, members): {rank: its collectives in order}}, every member of the group present."""
    groups = {}
    for record in records:
        for call in record.calls:
            if not call.point_to_point:
                groups.setdefault((call.group, call.ranks), {rank: [] for rank in call.ranks})[record.rank].append(call)
    return groups


def _compare_members(records):
    """Ranks that made different groups as their n-th one: torch numbers groups by how many a rank has made."""
    known = {}
    for record in records:
        for call in record.new_groups + record.calls:
            other = known.setdefault(call.group, call)
            if other.ranks != call.ranks:
                yield Difference(
                    f"Ranks {other.rank} and {call.rank} made different groups at the same time: one with "
                    f"{ranks_text(other.ranks)}, one with {ranks_text(call.ranks)}. {_GROUP_RULE}", (other.rank, call.rank))
                return


def _compare_group(sequences, world_size, finished):
    members = tuple(sequences)
    for index, calls in enumerate(zip(*sequences.values(), strict=False)):
        head = f"Call {index + 1} in {group_text(members, world_size)}"
        for aspect, value, words in _ASPECTS:
            if aspect == "sizes" and calls[0].op in _SIZE_MAY_DIFFER:
                continue
            kinds = defaultdict(list)
            for call in calls:
                kinds[value(call)].append(call)
            if len(kinds) > 1:
                parts = "; ".join(f"{ranks_text(c.rank for c in same)} {words(same)} "
                                  f"({', '.join(sorted({place_text(c.where) for c in same}))})"
                                  for same in sorted(kinds.values(), key=len))
                subject = "different collectives" if aspect == "names" else f"{calls[0].op} with different {aspect}"
                yield Difference(f"The ranks called {subject}. {head}: {parts}. {_RULE}", members)
                return
    yield from _suspicious_order(sequences)
    counts = {rank: len(calls) for rank, calls in sequences.items()}
    if finished and len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.get), max(counts, key=counts.get)
        extra = sequences[most][counts[least]]
        yield Difference(
            f"Rank {most} called {counts[most]} collectives in {group_text(members, world_size)}, "
            f"rank {least} only {counts[least]}: "
            f"nobody answered rank {most}'s {extra.op} ({place_text(extra.where)}).", members, certain=False)


_ASPECTS = (
    ("names", lambda call: call.op, lambda same: f"called {same[0].op}"),
    ("dtypes", lambda call: call.dtype, lambda same: f"gave {same[0].dtype}"),
    ("sizes", lambda call: call.elements, lambda same: f"gave {size_text(same[0].elements, same[0].dtype)}"),
    ("roots", lambda call: call.root, lambda same: f"named rank {same[0].root} as the root"),
)


def _suspicious_order(sequences):
    """Same operations and sizes, but the callers' names (or lines) show that the tensors were taken in another order."""
    first, *others = sequences
    ours = [_identity(call) for call in sequences[first]]
    known = set(ours)
    for other in others:
        theirs = [_identity(call) for call in sequences[other]]
        known_there = set(theirs)
        crossed = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False))
                   if a != b and a is not None and b is not None and a in known_there and b in known]
        if crossed:
            i = crossed[0]
            call, their = sequences[first][i], sequences[other][i]
            yield Difference(
                f"Ranks {first} and {other} seem to take the same tensors in a different order: as call {i + 1}, "
                f"rank {first} gave {call.op} {_name(call)} "
                f"and rank {other} gave it {_name(their)}. The sizes are equal, so nothing stops, "
                f"but the numbers of different tensors were mixed.", (first, other), certain=False)
            return


def _identity(call):
    if call.label is not None:
        return call.op, call.elements, call.label
    return None if call.where is None else (call.op, call.elements, call.where)


def _name(call):
    return f"`{call.label}` ({place_text(call.where)})" if call.label else f"the tensor of {place_text(call.where)}"


def paired_calls(records) -> dict[tuple, tuple[list[Call], list[Call]]]:
    """{(group, sender, receiver, tag): (sends in order, recvs in order)}; a recv from any source has no pair."""
    pairs = defaultdict(lambda: ([], []))
    for record in records:
        for call in record.calls:
            if call.op == "send":
                pairs[call.group, call.rank, call.peer, call.tag][0].append(call)
            elif call.op == "recv" and call.peer is not None:
                pairs[call.group, call.peer, call.rank, call.tag][1].append(call)
    return pairs


def receives_from_any(records) -> set[tuple[str, int]]:
    """The (group, receiver) pairs in which some recv takes from any source: there, order proves nothing."""
    return {(call.group, call.rank) for record in records for call in record.calls if call.op == "recv" and call.peer is None}


def _compare_pairs(records):
    open_ended = receives_from_any(records)
    found = []
    for (group, sender, receiver, _), (sends, recvs) in paired_calls(records).items():
        if (group, receiver) in open_ended:
            continue
        for send, recv in zip(sends, recvs, strict=False):
            if (send.elements, send.dtype) != (recv.elements, recv.dtype):
                found.append(Difference(
                    f"A send and its recv do not fit. Rank {sender} sent {size_text(send.elements, send.dtype)} "
                    f"to rank {receiver} ({place_text(send.where)}); "
                    f"rank {receiver} received into {size_text(recv.elements, recv.dtype)} "
                    f"({place_text(recv.where)}). Both tensors must have the same size and dtype.", (sender, receiver)))
                break
    return found


def deadlock(records: list[Record], waits_unseen: bool = False) -> str | None:
    """If no rank can ever go on, the sentence that says why; None while some rank still may.

    A proof, not a guess: every rank has returned or waits in a call, and none of these calls can be completed,
    since its partners returned or wait elsewhere. Compiled code (DDP's backward, say) waits without our seeing it:
    with `waits_unseen` such a call that is open without its partners counts as waited for.
    """
    waiting = {record.rank: record.waiting_in() for record in records if not record.returned}
    if waits_unseen:
        waiting = {rank: call or next((call for call in records[rank].open_calls()
                                       if call.unseen and _partners_not_there(call, records)), None)
                   for rank, call in waiting.items()}
    if not waiting or any(call is None for call in waiting.values()):
        return None
    if any(_can_complete(call, records) for call in waiting.values()):
        return None
    returned = [record.rank for record in records if record.returned]
    missing = {rank for call in waiting.values() for rank in _partners_not_there(call, records)}
    gone = [rank for rank in returned if rank in missing]
    ops = {call.op for call in waiting.values()}
    if gone:
        head = (f"{ranks_text(gone).capitalize()} returned, but {ranks_text(waiting)} still {verb(waiting, 'waits', 'wait')} "
                f"in {' and '.join(sorted(ops))}: it would never end.")
    elif ops == {"recv"}:
        head = f"Deadlock: {ranks_text(waiting)} all wait in recv, and nobody sends."
    elif ops == {"send"}:
        head = f"Deadlock: {ranks_text(waiting)} all wait in send until the other side receives, and nobody receives."
    else:
        head = f"Deadlock: {_parties(waiting)}."
    lines = [waiting_text(call, len(records)) for call in waiting.values()] + [f"rank {rank} has returned" for rank in returned]
    rule = [_GROUP_RULE] if "new_group" in ops else []
    return "\n".join([head, *(f"  {line}" for line in lines), *rule])


def _parties(waiting) -> str:
    """Who waits for whom; of two parties, which wait in different calls, the smaller one first: it went astray."""
    parties = defaultdict(list)
    for rank, call in waiting.items():
        parties[call_text(call)].append(rank)
    if len(parties) != 2:
        return f"{ranks_text(waiting)} wait for each other"
    few, many = sorted(parties, key=lambda text: len(parties[text]))
    return (f"{ranks_text(parties[few])} {verb(parties[few], 'waits', 'wait')} in {few}, but {ranks_text(parties[many])} "
            f"{verb(parties[many], 'waits', 'wait')} in {many}")


def waiting_text(call: Call, world_size: int) -> str:
    """ "rank 0 waits in all_reduce (cell line 3: dist.all_reduce(x))", with the group when it is not everybody. """
    group = "" if call.point_to_point or len(call.ranks) == world_size else f" of {group_text(call.ranks, world_size)}"
    return f"rank {call.rank} waits in {call_text(call)}{group} ({place_text(call.where, with_source=True)})"


def _can_complete(call, records):
    """Have all partners of this waiting call made their side of it? Then it only takes time."""
    return not _partners_not_there(call, records)


def _partners_not_there(call, records) -> list[int]:
    """The ranks whose side of this call is still missing."""
    if call.op == "new_group":
        made = {record.rank for record in records for other in record.new_groups if other.group == call.group}
        return [rank for rank in call.ranks if rank not in made]
    if not call.point_to_point:
        sequences = collectives_by_group(records)[call.group, call.ranks]
        index = _index(call, sequences[call.rank])
        return [rank for rank, calls in sequences.items() if len(calls) <= index]
    if call.op == "recv" and call.peer is None:
        on_their_way = any(other.op == "send" and other.peer == call.rank and other.end is None
                           for record in records for other in record.calls)
        return [] if on_their_way else [rank for rank in call.ranks if rank != call.rank]
    sender, receiver = (call.rank, call.peer) if call.op == "send" else (call.peer, call.rank)
    if (call.group, receiver) in receives_from_any(records):
        return []
    sends, recvs = paired_calls(records)[call.group, sender, receiver, call.tag]
    ours, theirs = (sends, recvs) if call.op == "send" else (recvs, sends)
    return [] if len(theirs) > _index(call, ours) else [call.peer]


def _index(call, calls):
    return next(i for i, other in enumerate(calls) if other is call)
