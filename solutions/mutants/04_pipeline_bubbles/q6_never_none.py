"""Nothing fits here, and choose must say so with None.

Where nothing fits, as many micro-batches as samples.
"""

def activation_bytes(schedule, ranks, micro_batches, rank, micro_batch_bytes):
    """Bytes of activations that a rank keeps at its peak."""
    in_flight = {
        "gpipe": micro_batches,
        "1f1b": ranks - rank,
        "interleaved 1f1b": (2 * (ranks - 1 - rank) + ranks + 1) / 2,
    }[schedule]
    return min(in_flight, micro_batches) * micro_batch_bytes


def choose(ranks, batch, sample_bytes, limit_bytes, visit_seconds, sample_seconds):
    """(schedule, micro-batches) of the fastest step that fits on every rank; None if nothing fits."""
    seconds_of = {}
    for schedule, chunks in (("1f1b", 1), ("interleaved 1f1b", 2)):
        for m in range(1, batch + 1):
            if batch % m or (chunks == 2 and m % ranks):
                continue
            if activation_bytes(schedule, ranks, m, 0, batch // m * sample_bytes) <= limit_bytes:
                visit = chunks * visit_seconds + batch // m * sample_seconds
                seconds_of[schedule, m] = m * visit + (ranks - 1) * visit / chunks
    return min(seconds_of, key=seconds_of.get) if seconds_of else ("1f1b", batch)
