"""Lab 03, q6: the table of word vectors and the loss, both cut along the vocabulary."""

import numpy as np
import torch
import torch.nn.functional as F

from utils.checks.tensor_compare import CASES, check_calls, close, made
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
    for ranks, vocab in ((2, 8), (4, 10)):
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


def _loss(call, seed, ranks, vocab, scale=1.0, ignored=0):
    """Run the loss; return (outputs, description, whole logits, targets, right loss, each rank's right gradient)."""
    rng = np.random.default_rng([seed, 61, vocab, ignored])
    logits = scale * rng.standard_normal((_BATCH, _SEQUENCE, vocab))
    targets = rng.permutation(np.arange(_TOKENS) * (vocab - 1) // (_TOKENS - 1))
    targets[:ignored] = _IGNORED
    targets = targets.reshape(_BATCH, _SEQUENCE)
    parts = _padded(logits, ranks)
    per_rank = parts[0].shape[-1]
    given = f"{ranks} ranks, {vocab} words, {per_rank} columns on each rank"
    given += f", {per_rank * ranks - vocab} of them padding" if per_rank * ranks > vocab else ""
    given += f", logits up to {abs(logits).max():,.0f}" if scale > 1 else ""
    given += f", {ignored} of {_TOKENS} targets are {_IGNORED}" if ignored else ""
    outputs = outputs_of(
        call, "tensor.cross_entropy", ranks, given, logits={"arrays": parts}, targets=targets, vocab=vocab
    )
    calls_only_in(outputs, CASES, given)
    whole = torch.tensor(logits, requires_grad=True)
    loss = F.cross_entropy(whole.flatten(0, 1), torch.from_numpy(targets).flatten(), ignore_index=_IGNORED)
    loss.backward()
    missing = per_rank * ranks - vocab
    slopes = np.split(np.pad(whole.grad.numpy(), [(0, 0), (0, 0), (0, missing)]), ranks, axis=-1)
    return outputs, given, logits, targets, float(loss.detach()), slopes


def _wrong_losses(logits, targets, ranks, loss):
    """(value, what has been done) for the classical mistakes."""
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


def _check_loss(outputs, given, logits, targets, loss, ranks, otherwise=None):
    for rank, result in enumerate(outputs["results"]):
        came = result["loss"]
        if close(came, loss):
            continue
        look_at = next(
            (words for value, words in _wrong_losses(logits, targets, ranks, loss) if close(came, value)), None
        )
        raise wrong(f"The loss on rank {rank} is not that of one process.", given, came, loss, look_at or otherwise)


def _value(call, seed):
    for ranks, vocab in ((2, 8), (3, 9)):
        outputs, given, logits, targets, loss, _ = _loss(call, seed, ranks, vocab)
        _check_loss(outputs, given, logits, targets, loss, ranks)


def _padding(call, seed):
    """Columns beyond the vocabulary count nowhere, even if a rank has no other."""
    for ranks, vocab in ((2, 7), (4, 5)):
        outputs, given, logits, targets, loss, slopes = _loss(call, seed, ranks, vocab)
        hint = (
            "columns from the vocabulary's size on are no words: they belong neither in the sum of the exponentials "
            "nor in the maximum"
        )
        with_zeros = np.concatenate(_padded(logits, ranks, 0.0), axis=-1)
        as_zero = F.cross_entropy(torch.from_numpy(with_zeros).flatten(0, 1), torch.from_numpy(targets).flatten())
        for result in outputs["results"]:
            if close(result["loss"], as_zero):
                hint = "padding that is set to 0 still counts, as exp(0) = 1: set it to minus infinity"
        _check_loss(outputs, given, logits, targets, loss, ranks, hint)
        _check_slopes(outputs, given, slopes)


def _large(call, seed):
    """Logits whose exponentials are beyond every number: only the global maximum helps."""
    ranks = 3
    outputs, given, logits, targets, loss, slopes = _loss(call, seed, ranks, 9, scale=1000.0)
    hint = "exp of a large number overflows; take the maximum away first, the same one on all ranks"
    if not all(np.isfinite(result["loss"]) for result in outputs["results"]):
        raise wrong("The loss is not a finite number.", given, outputs["results"][0]["loss"], loss, hint)
    _check_loss(outputs, given, logits, targets, loss, ranks, hint)
    _check_slopes(outputs, given, slopes)


def _ignored(call, seed):
    outputs, given, logits, targets, loss, slopes = _loss(call, seed, 2, 8, ignored=2)
    _check_loss(outputs, given, logits, targets, loss, 2)
    _check_slopes(outputs, given, slopes)


def _gradients(call, seed):
    outputs, given, *_, slopes = _loss(call, seed, 3, 9)
    _check_slopes(outputs, given, slopes)


def _check_slopes(outputs, given, slopes):
    ranks = len(slopes)
    for rank, result in enumerate(outputs["results"]):
        came, right = result["gradient"], slopes[rank]
        if close(came, right):
            continue
        hint = f"{ranks} times too large: g hands the gradient on as it is" if close(came, right * ranks) else None
        raise wrong(f"The gradient of rank {rank}'s logits is not that of one process.", given, came, right, hint)


def _exchanged(call, seed):
    """b·s numbers for the maximum, the sum and the target each; nothing backward."""
    ranks, vocab = 4, 22
    outputs, given, *_ = _loss(call, seed, ranks, vocab)
    for rank in range(ranks):
        forward, backward = (made(outputs, rank, case) for case in ("forward", "backward"))
        elements = sum(elements for _, elements in forward)
        shown = ", ".join(f"{op} of {n} elements" for op, n in forward) or "no call"
        right = f"at most 3 all-reduces of {_TOKENS} elements: the maximum, the sum, the target's logit"
        if elements >= _TOKENS * vocab:
            raise wrong(
                f"Rank {rank} takes part in an exchange of whole logits: b·s·v numbers.", given, shown, right,
                "each rank sums its own columns; only the sums travel",
            )  # fmt: skip
        if len(forward) > 3 or elements > 3 * _TOKENS or {op for op, _ in forward} != {"all_reduce"}:
            raise wrong(f"Rank {rank} exchanges more than the loss needs.", given, shown, right)
        if backward:
            shown = ", ".join(f"{op} of {n} elements" for op, n in backward)
            raise wrong(f"Rank {rank} communicates in backward.", given, shown, "no call")


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
