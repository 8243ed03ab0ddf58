"""Transformers as numbers: exact parameters of each part, and floating point operations of a step."""

from dataclasses import dataclass

from .arguments import divides, non_negative, one_of, positive, whole_number
from .units import SECONDS_PER_DAY

ACTIVATIONS = ("gelu", "relu", "swiglu")
RECOMPUTATIONS = ("none", "selective", "full")
"""What the forward pass forgets and the backward pass computes again.

none       nothing: every saved tensor stays
selective  the attention core (scores, softmax, dropout, weighted sum), Korthikanti et al. 2022, section 5
full       whole layers: only the input of each layer stays
"""


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer.

    layers, hidden, heads: L, h, a.
    kv_heads: key and value heads; fewer than `heads` is grouped-query attention. Default: heads.
    ffn: width of the MLP. Default: 4 · hidden.
    vocab, sequence: V (padded as it is stored) and s.
    activation: "gelu" or "relu" (two matrices) or "swiglu" (three).
    tied: whether the output head shares the embedding's matrix.
    gpt_style: biases, LayerNorm, learned positions and dropout, as in GPT-2; otherwise no biases, RMSNorm,
        rotary positions and no dropout, as in Llama. Default: True unless the activation is "swiglu".
    learned_positions: a table of s · h positions. Default: gpt_style.
    experts, experts_per_token: a mixture of experts in every layer; 1 and 1 is a dense model.

    >>> f"{Transformer(layers=96, hidden=12288, heads=96).parameters / 1e9:.1f}"
    '174.6'
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int = 51200
    sequence: int = 2048
    activation: str = "gelu"
    tied: bool = True
    gpt_style: bool | None = None
    learned_positions: bool | None = None
    experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "vocab", "sequence", "experts", "experts_per_token"):
            whole_number(name, getattr(self, name))
        one_of("activation", self.activation, ACTIVATIONS)
        defaults = {
            "kv_heads": self.heads,
            "ffn": 4 * self.hidden,
            "gpt_style": self.activation != "swiglu",
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.learned_positions is None:
            object.__setattr__(self, "learned_positions", self.gpt_style)
        whole_number("ffn", self.ffn)
        whole_number("kv_heads", self.kv_heads)
        whole_number("experts_per_token", self.experts_per_token, maximum=self.experts)
        divides("heads", self.heads, "hidden", self.hidden)
        divides("kv_heads", self.kv_heads, "heads", self.heads)

    @property
    def kv_hidden(self):
        """Width of the keys (and of the values): h · kv_heads / a."""
        return self.hidden * self.kv_heads // self.heads

    @property
    def mlp_matrices(self):
        """Matrices in one MLP: 2, or 3 for a gated one."""
        return 3 if self.activation == "swiglu" else 2

    @property
    def parameters(self):
        """Ψ, the number of parameters; without the final norm, for GPT, eq. (2) of Narayanan et al. 2021."""
        return sum(self.parameters_by_part().values())

    @property
    def layer_parameters(self):
        """Parameters of one layer: 12h² + 13h for GPT."""
        h, biased = self.hidden, self.gpt_style
        attention = 2 * h * h + 2 * h * self.kv_hidden + biased * (2 * h + 2 * self.kv_hidden)
        return attention + self.mlp_parameters + 2 * self.norm_parameters

    @property
    def mlp_parameters(self):
        """Parameters of one layer's MLP, all experts and their router included."""
        widths_out = (self.mlp_matrices - 1) * self.ffn + self.hidden
        expert = self.mlp_matrices * self.hidden * self.ffn + self.gpt_style * widths_out
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.experts * expert + router

    @property
    def norm_parameters(self):
        """Parameters of one norm: scale and shift, or the scale alone."""
        return (1 + self.gpt_style) * self.hidden

    def parameters_by_part(self):
        """Parameters of each part of the model; a dict whose values add up to `parameters`."""
        norms = 2 * self.norm_parameters
        return {
            "embedding": self.vocab * self.hidden,
            "positions": self.learned_positions * self.sequence * self.hidden,
            "attention": self.layers * (self.layer_parameters - self.mlp_parameters - norms),
            "mlp": self.layers * self.mlp_parameters,
            "norms": self.layers * norms,
            "final_norm": self.norm_parameters,
            "head": 0 if self.tied else self.vocab * self.hidden,
        }


# Floating point operations: a multiplication and an addition are two; matrix products only


def layer_matmul_flops(model, batch):
    """Forward operations of one layer's weight matrices on `batch` sequences: 24bsh² for GPT."""
    h = model.hidden
    projections = 2 * h * h + 2 * h * model.kv_hidden
    mlp = model.mlp_matrices * h * model.ffn * model.experts_per_token
    return 2 * positive("batch", batch) * model.sequence * (projections + mlp)


def layer_attention_flops(model, batch):
    """Forward operations of one layer's attention core, QKᵀ and weights times V: 4bs²h, no causal saving."""
    return 4 * positive("batch", batch) * model.sequence**2 * model.hidden


def logits_flops(model, batch):
    """Forward operations of the output head: 2bshV."""
    return 2 * positive("batch", batch) * model.sequence * model.hidden * model.vocab


def model_flops(model, batch):
    """Operations that one training step on `batch` sequences needs: forward once, backward twice as much.

    For GPT: 72BLsh²(1 + s/(6h) + V/(12hL)), Korthikanti et al. 2022, eq. (7).
    """
    return hardware_flops(model, batch, recomputation="none")


def hardware_flops(model, batch, recomputation="full"):
    """Operations that one training step really executes, recomputation included, as the papers count them.

    full       every layer's forward twice: 96BsLh²(1 + s/(6h) + V/(16Lh)), Narayanan et al. 2021, eq. (3)
    selective  72BLsh²(1 + s/(3h) + V/(12hL)), Korthikanti et al. 2022, eq. (8). As printed: it adds
               12Bs²h per layer, three times the 4Bs²h of the forward products that are computed again.
    none       eq. (7)
    """
    whole_number("batch", batch)
    one_of("recomputation", recomputation, RECOMPUTATIONS)
    matmul, attention = layer_matmul_flops(model, batch), layer_attention_flops(model, batch)
    again = {"none": 0, "selective": 3 * attention, "full": matmul + attention}[recomputation]
    return model.layers * (3 * (matmul + attention) + again) + 3 * logits_flops(model, batch)


def flops_utilization(flops, seconds, gpus, peak_flops_per_second):
    """Share of the peak that `flops` in `seconds` on `gpus` chips is: MFU or HFU, by which flops go in."""
    positive("seconds", seconds)
    positive("peak_flops_per_second", peak_flops_per_second)
    return non_negative("flops", flops) / (seconds * whole_number("gpus", gpus) * peak_flops_per_second)


def training_days(model, tokens, batch, gpus, flops_per_second_per_gpu, recomputation="full"):
    """Days to train on `tokens` tokens at the achieved rate per GPU, with exact operations per step."""
    steps = positive("tokens", tokens) / (whole_number("batch", batch) * model.sequence)
    rate = whole_number("gpus", gpus) * positive("flops_per_second_per_gpu", flops_per_second_per_gpu)
    return steps * hardware_flops(model, batch, recomputation) / rate / SECONDS_PER_DAY


def training_days_estimate(parameters, tokens, gpus, flops_per_second_per_gpu):
    """Days to train by 8TΨ/(nX), full recomputation, Narayanan et al. 2021, eq. (4); leaves out s and V."""
    work = 8 * positive("tokens", tokens) * positive("parameters", parameters)
    rate = whole_number("gpus", gpus) * positive("flops_per_second_per_gpu", flops_per_second_per_gpu)
    return work / rate / SECONDS_PER_DAY
