"""Lab 03, q6: the table of word vectors and the loss, both cut along the vocabulary."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from utils.checks.tensor_compare import CASES, check_calls, close, first_hint, in_words, made
from utils.checks.verdict import SubCheck, calls_only_in, outputs_of, wrong

_BATCH, _SEQUENCE, _HIDDEN = 2, 3, 4
_TOKENS = _BATCH * _SEQUENCE
_PADDING = 1e4  # what stands where no word is: large enough to be seen wherever it is counted
_IGNORED = -100


def _padded(array, ranks, padding=_PADDING):
    """Blocks of ceil(v / ranks) along the last dimension, the rest filled with `padding`: one for each rank."""
    per_rank = -(-array.shape[-1] // ranks)
    missing = per_rank * ranks - array.shape[-1]
    width = [(0, 0)] * (array.ndim - 1) + [(0, missing)]
    whole = np.pad(array, width, constant_values=padding)
    return [np.ascontiguousarray(part) for part in np.split(whole, ranks, axis=-1)]


# The table


def _look_up(call, seed, ranks, vocab):
    """Run the look-up of tokens that meet every rank's rows."""
    rng = np.random.default_rng([seed, 60, vocab])
    table, gradient = rng.standard_normal((vocab, _HIDDEN)), rng.standard_normal((_BATCH, _SEQUENCE, _HIDDEN))
    tokens = rng.permutation(np.arange(_TOKENS) * (vocab - 1) // (_TOKENS - 1)).reshape(_BATCH, _SEQUENCE)
    parts = [np.ascontiguousarray(part.T) for part in _padded(table.T, ranks)]
    given = f"{ranks} ranks, {vocab} words, {len(parts[0])} rows on each rank, {_BATCH} × {_SEQUENCE} tokens"
    outputs = outputs_of(
        call, "tensor.embedding", ranks, given, tokens=tokens, gradient=gradient, rows={"arrays": parts}
    )
    calls_only_in(outputs, CASES, given)
    return outputs, given, table, tokens, gradient, parts


def _embedding(call, seed):
    """The look-up of one process, and its gradient in each rank's rows."""
    ranks, vocab = 4, 10
    outputs, given, table, tokens, gradient, parts = _look_up(call, seed, ranks, vocab)
    right = table[tokens]
    slope = np.zeros_like(table)
    np.add.at(slope, tokens, gradient)
    per_rank = len(parts[0])
    slopes = np.zeros((per_rank * ranks, _HIDDEN))
    slopes[:vocab] = slope
    clamped = sum(part[np.clip(tokens - r * per_rank, 0, per_rank - 1)] for r, part in enumerate(parts))
    for rank, result in enumerate(outputs["results"]):
        if not close(result["y"], right):
            mine = (tokens // per_rank == rank)[..., None]
            hint = None
            if close(result["y"], np.where(mine, right, 0)):
                hint = "the words of other ranks are missing: add the ranks' results up"
            elif close(result["y"], clamped):
                hint = "a rank must give zeros for a word that it does not hold, not one of its own rows"
            raise wrong(f"Rank {rank} does not look up the right vectors.", given, result["y"], right, hint)
        expected = slopes[rank * per_rank : (rank + 1) * per_rank]
        if not close(result["dx"], expected):
            hint = None
            if close(result["dx"], expected * ranks):
                hint = f"{ranks} times too large: g hands the gradient on as it is"
            raise wrong(f"The gradient of rank {rank}'s rows is wrong.", given, result["dx"], expected, hint)
    check_calls(outputs, given, [_TOKENS * _HIDDEN], [], {"forward": "one sum of b·s·h elements"})


# The loss


@dataclass(frozen=True)
class _Batch:
    """Logits (b, s, v) and targets (b, s) for so many ranks; `number` is its place in the run."""

    number: int
    ranks: int
    logits: np.ndarray
    targets: np.ndarray

    @property
    def vocab(self):
        return self.logits.shape[-1]

    @property
    def given(self):
        """In words."""
        per_rank, largest = -(-self.vocab // self.ranks), abs(self.logits).max()
        padding, ignored = per_rank * self.ranks - self.vocab, (self.targets == _IGNORED).sum()
        words = f"{self.ranks} ranks, {self.vocab} words, {per_rank} columns on each rank"
        words += f", {padding} of them padding" if padding else ""
        words += f", logits up to {largest:,.0f}" if largest > 100 else ""
        return words + (f", {ignored} of {_TOKENS} targets are {_IGNORED}" if ignored else "")

    def on_one_process(self):
        """The loss, and its gradient as each rank has it: zero where there is no word."""
        whole = torch.tensor(self.logits, requires_grad=True)
        targets = torch.from_numpy(self.targets).flatten()
        loss = F.cross_entropy(whole.flatten(0, 1), targets, ignore_index=_IGNORED)
        loss.backward()
        return float(loss.detach()), _padded(whole.grad.numpy(), self.ranks, 0.0)


def _batch(seed, number, ranks, vocab, scale=1.0, ignored=0):
    """A batch whose targets lie on every rank."""
    rng = np.random.default_rng([seed, 61, number, ranks])
    logits = scale * rng.standard_normal((_BATCH, _SEQUENCE, vocab))
    targets = rng.permutation(np.arange(_TOKENS) * (vocab - 1) // (_TOKENS - 1))
    targets[:ignored] = _IGNORED
    return _Batch(number, ranks, logits, targets.reshape(_BATCH, _SEQUENCE))


def _batches(seed):
    """Those that are run together: on 3 ranks plain, with ignored targets, with large logits; on 4 ranks padded."""
    plain = _batch(seed, 0, 3, 9), _batch(seed, 1, 3, 9, ignored=2), _batch(seed, 2, 3, 9, scale=1000.0)
    padded = _batch(seed, 0, 4, 22), _batch(seed, 1, 4, 5)  # of 5 words the last rank holds none
    return plain, padded


def _losses(call, batches):
    """Run the loss of all batches; return each rank's results in each batch, and the outputs."""
    ranks, given = batches[0].ranks, batches[0].given
    outputs = outputs_of(
        call, "tensor.cross_entropy", ranks, given,
        batches=[
            {"logits": {"arrays": _padded(batch.logits, ranks)}, "targets": batch.targets, "vocab": batch.vocab}
            for batch in batches
        ],
    )  # fmt: skip
    calls_only_in(outputs, [f"{way} {batch.number}" for batch in batches for way in CASES], given)
    return [[result[batch.number] for result in outputs["results"]] for batch in batches], outputs


def _wrong_losses(batch, loss):
    """(value, what has been done) for the classical mistakes."""
    logits, targets, ranks = batch.logits, batch.targets, batch.ranks
    parts = _padded(logits, ranks)
    per_rank = parts[0].shape[-1]
    counts, words = targets != _IGNORED, np.where(targets == _IGNORED, 0, targets)
    owner = words // per_rank
    maximum = logits.max(-1)
    log_sum = np.log(np.exp(logits - maximum[..., None]).sum(-1))  # of the shifted logits
    hit = np.take_along_axis(logits, words[..., None], -1)[..., 0] - maximum

    yield loss * counts.sum() / counts.size, f"the mean is over all tokens, but targets of {_IGNORED} do not count"
    for logit in (0, -maximum, hit):  # of a word that is on no rank
        as_word = (log_sum - np.where(counts, hit, logit)).mean()
        yield as_word, f"targets of {_IGNORED} count as words"

    inside = [np.clip(words - rank * per_rank, 0, per_rank - 1)[..., None] for rank in range(ranks)]
    clamped = [np.take_along_axis(part, at, -1)[..., 0] - maximum for part, at in zip(parts, inside, strict=True)]
    yield (log_sum - sum(clamped))[counts].mean(), (
        "the target's logit is added up over all ranks, but only one of them holds that word: the others give 0"
    )

    own_maximum = np.stack([part.max(-1) for part in parts])
    sums = [np.exp(part - m[..., None]).sum(-1) for part, m in zip(parts, own_maximum, strict=True)]
    own_hit = hit + maximum - np.take_along_axis(own_maximum, owner[None], 0)[0]
    yield (np.log(sum(sums)) - own_hit)[counts].mean(), (
        "each rank takes its own maximum away, and such sums cannot be added: take the maximum over the ranks"
    )
    for rank in range(ranks):
        alone = np.log(sums[rank]) - np.where(owner == rank, own_hit, 0)
        yield alone[counts].mean(), "this is the loss over one rank's own columns"


def _check_loss(batch, results, loss, otherwise=None):
    for rank, result in enumerate(results):
        came = result["loss"]
        if close(came, loss):
            continue
        look_at = first_hint(came, _wrong_losses(batch, loss)) or otherwise
        raise wrong(f"The loss on rank {rank} is not that of one process.", batch.given, came, loss, look_at)


def _check_slopes(batch, results, slopes):
    for rank, (result, right) in enumerate(zip(results, slopes, strict=True)):
        came = result["gradient"]
        if close(came, right):
            continue
        too_large = close(came, right * batch.ranks)
        hint = f"{batch.ranks} times too large: g hands the gradient on as it is" if too_large else None
        sentence = f"The gradient of rank {rank}'s logits is not that of one process."
        raise wrong(sentence, batch.given, came, right, hint)


_PLAIN, _WITH_IGNORED, _LARGE = range(3)


def _on_three_ranks(call, seed, number):
    """A batch, each rank's results, and what one process gets: loss and gradients."""
    batches, _ = _batches(seed)
    results, _ = _losses(call, batches)
    return batches[number], results[number], *batches[number].on_one_process()


def _value(call, seed):
    batch, results, loss, _ = _on_three_ranks(call, seed, _PLAIN)
    _check_loss(batch, results, loss)


def _gradients(call, seed):
    batch, results, _, slopes = _on_three_ranks(call, seed, _PLAIN)
    _check_slopes(batch, results, slopes)


def _ignored(call, seed):
    batch, results, loss, slopes = _on_three_ranks(call, seed, _WITH_IGNORED)
    _check_loss(batch, results, loss)
    _check_slopes(batch, results, slopes)


def _large(call, seed):
    """Logits whose exponentials are beyond every number: only the global maximum helps."""
    batch, results, loss, slopes = _on_three_ranks(call, seed, _LARGE)
    hint = "exp of a large number overflows; take the maximum away first, the same one on all ranks"
    for result in results:
        if not np.isfinite(result["loss"]):
            raise wrong("The loss is not a finite number.", batch.given, result["loss"], loss, hint)
    _check_loss(batch, results, loss, hint)
    _check_slopes(batch, results, slopes)


def _padding(call, seed):
    """Columns beyond the vocabulary count nowhere, even if a rank has no other."""
    _, batches = _batches(seed)
    of_batches, _ = _losses(call, batches)
    for batch, results in zip(batches, of_batches, strict=True):
        loss, slopes = batch.on_one_process()
        zeros = torch.from_numpy(np.concatenate(_padded(batch.logits, batch.ranks, 0.0), axis=-1))
        as_zero = F.cross_entropy(zeros.flatten(0, 1), torch.from_numpy(batch.targets).flatten())
        hint = (
            "columns from the vocabulary's size on are no words: they belong neither in the sum of the exponentials "
            "nor in the maximum"
        )
        if any(close(result["loss"], as_zero) for result in results):
            hint = "padding that is set to 0 still counts, as exp(0) = 1: set it to minus infinity"
        _check_loss(batch, results, loss, hint)
        _check_slopes(batch, results, slopes)


def _exchanged(call, seed):
    """b·s numbers for the maximum, the sum and the target each; nothing backward."""
    _, (batch, other) = _batches(seed)
    _, outputs = _losses(call, (batch, other))
    right = f"at most 3 all-reduces of {_TOKENS} elements: the maximum, the sum, the target's logit"
    for rank in range(batch.ranks):
        forward, backward = (made(outputs, rank, f"{way} {batch.number}") for way in CASES)
        elements = sum(elements for _, elements in forward)
        if elements >= _TOKENS * batch.vocab:
            raise wrong(
                f"Rank {rank} takes part in an exchange of whole logits: b·s·v numbers.", batch.given,
                in_words(forward), right, "each rank sums its own columns; only the sums travel",
            )  # fmt: skip
        if not 2 <= len(forward) <= 3 or elements > 3 * _TOKENS or {op for op, _ in forward} != {"all_reduce"}:
            raise wrong(
                f"Rank {rank} does not exchange what the loss needs.", batch.given, in_words(forward), right
            )
        if backward:
            raise wrong(f"Rank {rank} communicates in backward.", batch.given, in_words(backward), "no call")


QUESTIONS = {
    "q6": (
        SubCheck("looking words up", _embedding),
        SubCheck("the loss of one process", _value),
        SubCheck("its gradients", _gradients),
        SubCheck("targets that do not count", _ignored),
        SubCheck("large logits", _large),
        SubCheck("a vocabulary that the number of ranks does not divide", _padding),
        SubCheck("numbers exchanged", _exchanged),
    ),
}
