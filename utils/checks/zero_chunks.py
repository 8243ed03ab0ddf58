"""Lab 02: who owns which chunk, how large it is, and what a rank must send for it."""

import numpy as np

from utils.theory.collectives import all_gather_elements_sent, chunk_sizes, reduce_scatter_elements_sent

RANKS = 3
FP64_BYTES = 8
CLOSE = 1e-9  # fp64; the ranks add in another order than one process


def close(a, b):
    """Are two arrays of one shape equal but for the order of additions?"""
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=0, atol=CLOSE))


def own(flat, rank, ranks=RANKS):
    """Rank r's chunk of a flat array: chunk (r + 1) mod N, where a reduce-scatter round a ring leaves the sum."""
    return np.array_split(flat, ranks)[(rank + 1) % ranks]


def own_elements(elements, rank, ranks=RANKS):
    """How many of `elements` numbers are in rank r's chunk."""
    return int(chunk_sizes(elements, ranks)[(rank + 1) % ranks])


def own_bytes(elements, rank):
    """Bytes of rank r's chunk of `elements` numbers in fp64."""
    return FP64_BYTES * own_elements(elements, rank)


def scattered(elements, rank):
    """Elements that a rank sends in a reduce-scatter of `elements` numbers."""
    return int(reduce_scatter_elements_sent("ring", elements, RANKS)[rank])


def gathered(elements, rank):
    """Elements that a rank sends in an all-gather of `elements` numbers."""
    return int(all_gather_elements_sent("ring", elements, RANKS)[rank])


def sent(calls, case):
    """Elements in fp64 that a rank sent in a case."""
    return round(sum(made["sent_bytes"] for made in calls if made["case"] == case) / FP64_BYTES)


def sizes_in_words(elements):
    """The chunks' sizes: "13, 13, 12"."""
    return ", ".join(map(str, chunk_sizes(elements, RANKS)))
