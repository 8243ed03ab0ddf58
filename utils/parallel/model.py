"""The language model that runs through the course: a decoder-only transformer, small enough for a laptop.

One `utils.theory.models.Transformer` describes it in numbers and in torch, so both have the same parameters:

>>> from utils.theory.models import Transformer
>>> config = Transformer(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=65, activation="swiglu", tied=False)
>>> sum(parameter.numel() for parameter in LanguageModel(config).parameters()) == config.parameters
True

With "swiglu" it is a Llama (Touvron et al. 2023, arXiv 2302.13971): RMSNorm, rotary positions, no biases. With
`gpt_style` it is a GPT-2: LayerNorm, biases, learned positions, dropout. The modules have Llama's names
(`layers.0.attention.wq`, `feed_forward.w1`, …), as PyTorch's own plans for tensor parallelism expect them.

Shapes: b sequences of s tokens, h hidden elements; an attention head has h/a of them.
"""

import contextlib
import math

import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "swiglu": F.silu}
"""The function behind w1, under the names of `utils.theory.models.ACTIVATIONS`."""

INITIAL_STD = 0.02
"""Standard deviation of fresh weights; wo and w2, which write to the residual stream, have 0.02/√(2L) (GPT-2)."""

ROPE_BASE = 10_000.0


class LanguageModel(nn.Module):
    """A decoder as `config` describes it: tokens (b, s) to logits (b, s, vocab).

    config   a Transformer; mixtures of experts are refused with a ValueError
    dropout  the probability, applied where GPT-2 does: to embeddings, attention weights, and the two outputs of a block
    fused    whether attention runs in one fused kernel that keeps no scores; by default not for `gpt_style`, and
             never while dropout is active
    seed     the same seed gives the same weights, whatever else has drawn random numbers
    dtype    torch.float64 for exact comparisons

    Built on `torch.device("meta")` or under `FakeTensorMode` it has shapes and no numbers: a model of any size.
    """

    def __init__(self, config, dropout=0.0, fused=None, seed=0, dtype=torch.float32):
        super().__init__()
        if config.experts > 1:
            raise ValueError(
                f"This model is dense, but a config with {config.experts} experts was given. "
                "Pass a Transformer with experts=1."
            )
        self.config = config
        with default_dtype(dtype):
            self.tok_embeddings = nn.Embedding(config.vocab, config.hidden)
            self.pos_embeddings = (
                nn.Embedding(config.sequence, config.hidden) if config.learned_positions else None
            )
            self.dropout = Dropout(dropout)
            self.layers = nn.ModuleList(Block(config, dropout, fused) for _ in range(config.layers))
            self.norm = new_norm(config)
            self.output = nn.Linear(config.hidden, config.vocab, bias=False)
        if config.tied:
            self.output.weight = self.tok_embeddings.weight
        initialise(self, seed)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def embed(self, tokens):
        """What comes before the blocks: tokens (b, s) to (b, s, h)."""
        x = self.tok_embeddings(tokens)
        if self.pos_embeddings is not None:
            x = x + self.pos_embeddings(positions(tokens, self.config))
        return self.dropout(x)

    def head(self, x):
        """What comes after the blocks: (b, s, h) to logits (b, s, vocab)."""
        return self.output(self.norm(x))

    def loss(self, tokens, targets):
        """Mean cross-entropy of predicting `targets` (b, s); a target of −100 does not count."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and beside a shortcut; (b, s, h) to (b, s, h)."""

    def __init__(self, config, dropout=0.0, fused=None):
        super().__init__()
        self.attention_norm, self.ffn_norm = new_norm(config), new_norm(config)
        self.attention = Attention(config, dropout, fused)
        self.feed_forward = MLP(config)
        self.dropout = Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.ffn_norm(x)))


class Attention(nn.Module):
    """Causal self-attention with `kv_heads` ≤ `heads` (Ainslie et al. 2023, arXiv 2305.13245); (b, s, h) to (b, s, h)."""

    def __init__(self, config, dropout=0.0, fused=None):
        super().__init__()
        self.config = config
        self.fused = not config.gpt_style if fused is None else fused
        self.wq = nn.Linear(config.hidden, config.hidden, bias=config.gpt_style)
        self.wk = nn.Linear(config.hidden, config.kv_hidden, bias=config.gpt_style)
        self.wv = nn.Linear(config.hidden, config.kv_hidden, bias=config.gpt_style)
        self.wo = nn.Linear(config.hidden, config.hidden, bias=config.gpt_style)
        self.dropout = Dropout(dropout)
        self.core = attention_core

    def forward(self, x):
        return self.wo(attend(self, x))


class MLP(nn.Module):
    """w2(act(w1 x)), or gated, w2(silu(w1 x) · w3 x), for "swiglu"; (b, s, h) to (b, s, h)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.w1 = nn.Linear(config.hidden, config.ffn, bias=config.gpt_style)
        self.w2 = nn.Linear(config.ffn, config.hidden, bias=config.gpt_style)
        gated = config.activation == "swiglu"
        self.w3 = nn.Linear(config.hidden, config.ffn, bias=config.gpt_style) if gated else None

    def forward(self, x):
        return self.w2(activate(self, x))


class Dropout(nn.Dropout):
    """nn.Dropout that keeps a mask of one byte per element on every device, as the papers count it."""

    def forward(self, x):
        return torch.native_dropout(x, self.p, True)[0] if self.training and self.p > 0 else x


def attend(attention, x):
    """Everything of attention before wo, for as many heads as wq, wk and wv have: (b, s, h) to (b, s, heads · h/a)."""
    head_size = attention.config.hidden // attention.config.heads
    q, k, v = (
        project(x).unflatten(-1, (-1, head_size)).transpose(1, 2)
        for project in (attention.wq, attention.wk, attention.wv)
    )
    if not attention.config.learned_positions:
        q, k = rotate(q), rotate(k)
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (heads.repeat_interleave(repeats, dim=1) for heads in (k, v))
    dropout = attention.dropout
    if attention.fused and not (dropout.training and dropout.p > 0):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        out = attention.core(q, k, v, dropout)
    return out.transpose(1, 2).flatten(2)


def attention_core(q, k, v, dropout):
    """softmax(QKᵀ/√d)V with a causal mask, written out: it keeps the scores, 5as²b bytes in half precision."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return dropout(scores.masked_fill(future, -math.inf).softmax(-1)) @ v


def activate(mlp, x):
    """Everything of the MLP before w2, for as many columns as w1 (and w3) have: (b, s, h) to (b, s, columns)."""
    inner = ACTIVATIONS[mlp.config.activation](mlp.w1(x))
    return inner if mlp.w3 is None else inner * mlp.w3(x)


def rotate(heads):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): turn pairs (i, i + d/2) of (b, heads, s, d) by their position.

    Raises ValueError when the size d of a head is odd.
    """
    sequence, size = heads.shape[-2:]
    if size % 2:
        raise ValueError(
            f"Rotary positions turn pairs of numbers, but a head has {size}. Choose hidden and heads so that "
            "hidden / heads is even."
        )
    exact = {"dtype": torch.float64, "device": heads.device}
    speeds = ROPE_BASE ** (-torch.arange(0, size, 2, **exact) / size)
    angles = torch.outer(torch.arange(sequence, **exact), speeds)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def positions(tokens, config):
    """0 … s − 1 for tokens (b, s); ValueError when there are more than the table of positions holds."""
    if tokens.shape[-1] > config.sequence:
        raise ValueError(
            f"The model has {config.sequence} learned positions, but sequences of {tokens.shape[-1]} tokens were given."
        )
    return torch.arange(tokens.shape[-1], device=tokens.device)


def new_norm(config):
    """LayerNorm for `gpt_style`, RMSNorm otherwise, over the hidden elements."""
    return (
        nn.LayerNorm(config.hidden, eps=1e-5) if config.gpt_style else nn.RMSNorm(config.hidden, eps=1e-5)
    )


@contextlib.contextmanager
def default_dtype(dtype):
    """New tensors have this dtype inside the `with` block; a fake tensor's dtype cannot be changed later."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def initialise(model, seed):
    """Draw all matrices from N(0, 0.02²), wo and w2 narrower; biases 0, norms 1.

    The numbers come from their own generator on the CPU, in the order of the parameters: the same weights on every
    rank and every device. On the meta device there is nothing to fill.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if parameter.dim() == 2:
            narrower = math.sqrt(2 * model.config.layers) if name.endswith(("wo.weight", "w2.weight")) else 1
            drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
            parameter.copy_(drawn * (INITIAL_STD / narrower))
        elif name.endswith("bias"):
            parameter.zero_()
