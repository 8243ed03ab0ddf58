"""Lab 04, q6: what a schedule keeps on a rank, and the fastest step that fits into a memory limit."""

import math

import numpy as np

from utils.checks.numbers import answers, compare, in_words
from utils.checks.verdict import SubCheck, wrong
from utils.theory.pipeline import Costs, bubble_time, in_flight_micro_batches
from utils.theory.units import GB

_CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved 1f1b": 2}
_CHOICES = ("1f1b", "interleaved 1f1b")


def activation_bytes(schedule, ranks, micro_batches, rank, micro_batch_bytes):
    """Peak bytes of activations on a rank, for a micro-batch that takes `micro_batch_bytes` in the rank's layers."""
    return in_flight_micro_batches(schedule, ranks, micro_batches, rank, _CHUNKS[schedule]) * micro_batch_bytes


def step_seconds(schedule, ranks, batch, micro_batches, visit_seconds, sample_seconds):
    """The work of a rank and its bubble; each visit of a chunk costs `visit_seconds`, however few samples come."""
    seconds = _micro_batch_seconds(schedule, batch, micro_batches, visit_seconds, sample_seconds)
    costs = Costs(seconds / 3, seconds / 3, seconds / 3)
    return micro_batches * seconds + bubble_time(schedule, ranks, micro_batches, costs, _CHUNKS[schedule])


def _micro_batch_seconds(schedule, batch, micro_batches, visit_seconds, sample_seconds):
    return _CHUNKS[schedule] * visit_seconds + batch / micro_batches * sample_seconds


def possible(ranks, batch):
    """(schedule, micro-batches) pairs that divide the batch and suit the schedule."""
    return [
        (schedule, m)
        for schedule in _CHOICES
        for m in range(1, batch + 1)
        if batch % m == 0 and (schedule == "1f1b" or m % ranks == 0)
    ]


def _fits(choice, ranks, batch, sample_bytes, limit_bytes):
    schedule, m = choice
    return activation_bytes(schedule, ranks, m, 0, batch // m * sample_bytes) <= limit_bytes


def _best(ranks, batch, sample_bytes, limit_bytes, visit_seconds, sample_seconds, seconds_of=step_seconds):
    """(schedule, m) of the fastest that fits; None if nothing does."""
    fitting = [each for each in possible(ranks, batch) if _fits(each, ranks, batch, sample_bytes, limit_bytes)]
    times = {
        (schedule, m): seconds_of(schedule, ranks, batch, m, visit_seconds, sample_seconds)
        for schedule, m in fitting
    }
    return min(times, key=times.get) if times else None


def _memory(schedule):
    def check(call, seed):
        rng = np.random.default_rng([seed, 60])
        n_bytes = int(rng.integers(1, 900)) * 1_000_000
        sizes = [(4, 8), (3, 6), (4, 4), (1, 2)] + ([] if schedule.startswith("inter") else [(4, 2), (5, 3), (3, 7)])
        questions = [[schedule, p, m, rank, n_bytes] for p, m in sizes for rank in range(p)]
        expected = [activation_bytes(*question) for question in questions]
        came = answers(call, 0, questions, "activation_bytes")
        compare(came, expected, "activation_bytes", questions, _look_at_memory)

    return check


def _look_at_memory(question, value, right):
    schedule, p, m, rank, n_bytes = question
    in_flight = value / n_bytes
    if schedule.startswith("inter") and math.isclose(value, 2 * right):
        return "a forward is that of one chunk, which is half of the rank's layers"
    if in_flight > m:
        return "there are only m micro-batches: no more can be in flight"
    if schedule == "1f1b" and in_flight == min(m, p - rank - 1):
        return "one too few: the p − 1 − r forwards that a rank runs ahead, and the one that it does next"
    if schedule == "1f1b" and in_flight == min(m, p):
        return "p is for rank 0; each rank further on runs one forward less ahead"
    if schedule.startswith("inter"):
        return "2(p − 1 − r) + (v − 1)p forwards ahead and the next one, each of one chunk: 1/v of the rank's layers"
    return None


def _questions(seed):
    """Large and small limits, cheap and dear visits; one that fits to the byte, and some where nothing fits."""
    rng = np.random.default_rng([seed, 61])
    questions = [
        [4, 32, GB, 100 * GB, 0.001, 0.1],
        [4, 32, GB, 100 * GB, 0.2, 0.1],
        [4, 32, GB, 16 * GB, 0.2, 0.1],
        [4, 32, GB, 18 * GB, 0.001, 0.1],
        [4, 32, GB, 4 * GB, 0.001, 0.1],
        [4, 32, GB, 4 * GB - 1, 0.001, 0.1],
        [3, 40, GB, 11 * GB, 0.01, 0.1],
        [3, 40, GB, 15 * GB, 0.15, 0.1],
        [8, 6, GB, 6 * GB, 0.05, 0.1],
        [8, 6, GB, 5 * GB, 0.05, 0.1],
        [1, 12, GB, 3 * GB, 0.05, 0.1],
        [6, 36, GB, 21 * GB, 0.04, 0.1],
    ]
    for _ in range(8):
        p, batch = int(rng.integers(2, 9)), int(rng.integers(2, 9)) * 6
        visit, sample = (float(f"{number:.2g}") for number in (rng.uniform(0.002, 0.3), rng.uniform(0.05, 0.2)))
        questions.append([p, batch, GB, int(rng.integers(1, batch + 1)) * GB, visit, sample])
    return questions


def _asked(call, seed):
    """Each question with what came, what is best, and the question in words."""
    questions = _questions(seed)
    for question, came in zip(questions, answers(call, 1, questions, "choose"), strict=True):
        yield question, came, _best(*question), in_words("choose", question)


def _fits_check(call, seed):
    """A choice that exists and fits; None exactly where nothing does."""
    for question, came, best, given in _asked(call, seed):
        ranks, batch, sample_bytes, limit_bytes, *_ = question
        if came is None and best is not None:
            raise wrong("choose finds nothing, but something fits.", given, "None", f"for example {best}")
        if came is None:
            continue
        if not isinstance(came, (list, tuple)) or len(came) != 2 or came[0] not in _CHOICES or type(came[1]) is not int:
            raise wrong("choose must return (schedule, micro-batches) or None.", given, str(came), str(best))
        schedule, m = came
        if m < 1 or batch % m:
            raise wrong(f"{m} micro-batches do not divide a batch of {batch} samples.", given, str(tuple(came)))
        if tuple(came) not in possible(ranks, batch):
            raise wrong(
                "Interleaved 1F1B takes the micro-batches in groups of p.", given, str(tuple(came)),
                look_at=f"{m} is no multiple of {ranks}",
            )  # fmt: skip
        if not _fits(tuple(came), ranks, batch, sample_bytes, limit_bytes):
            needed = activation_bytes(schedule, ranks, m, 0, batch // m * sample_bytes)
            raise wrong(
                "Nothing fits here, and choose must say so with None." if best is None else
                "What choose returns does not fit.", given, f"{tuple(came)}, which takes {needed:,.0f} bytes",
                str(best), "every rank must have room, and rank 0 holds most",
            )  # fmt: skip


def _fastest(call, seed):
    """Nothing that fits is faster."""
    _fits_check(call, seed)
    for question, came, best, given in _asked(call, seed):
        if best is None:
            continue
        ranks, batch, _, _, *costs = question
        slow, fast = (step_seconds(schedule, ranks, batch, m, *costs) for schedule, m in (came, best))
        if slow > fast * (1 + 1e-9):
            look_at = [hint for seconds_of, hint in _MISTAKES if _best(*question, seconds_of) == tuple(came)]
            raise wrong(
                "choose returns a step that is slower than need be.", given, f"{tuple(came)}, {slow:.4g} s",
                f"{best}, {fast:.4g} s", (look_at or [None])[0],
            )  # fmt: skip


def _free_visits(schedule, ranks, batch, m, visit_seconds, sample_seconds):
    return step_seconds(schedule, ranks, batch, m, 0, sample_seconds)


def _one_visit(schedule, ranks, batch, m, visit_seconds, sample_seconds):
    return step_seconds(schedule, ranks, batch, m, visit_seconds / _CHUNKS[schedule], sample_seconds)


def _no_bubble(schedule, ranks, batch, m, *costs):
    return m * _micro_batch_seconds(schedule, batch, m, *costs)


def _whole_bubble(schedule, ranks, batch, m, *costs):
    return (m + ranks - 1) * _micro_batch_seconds(schedule, batch, m, *costs)


_MISTAKES = (
    (_free_visits, "every visit costs visit_seconds: more micro-batches, more visits"),
    (_one_visit, "with two chunks each micro-batch visits a rank twice, and pays twice for it"),
    (_no_bubble, "more micro-batches make a smaller bubble: it is (p − 1)T, with T of one micro-batch"),
    (_whole_bubble, "the bubble of interleaved 1F1B is (p − 1)T/2"),
)
"""What is the fastest to somebody who forgets something, and what to look at then."""


QUESTIONS = {
    "q6": (
        *(SubCheck(f"what {schedule} keeps", _memory(schedule)) for schedule in _CHUNKS),
        SubCheck("a choice that fits", _fits_check),
        SubCheck("the fastest that fits", _fastest),
    ),
}
