"""Lesson 02's widget: what training takes on one rank under each ZeRO stage, beside a GPU's memory.

    plan_memory()           a widget; draw_memory(7.5e9, world_size=64, stage=2) is its picture alone
"""
import ipywidgets

from utils.theory.arguments import one_of
from utils.theory.hardware import CHIPS
from utils.theory.memory import MOMENT_BYTES, PRECISIONS, STAGES, build_recipe
from utils.theory.models import RECOMPUTATIONS
from utils.theory.presets import gpt_of_size
from utils.theory.zero import OFFLOADS, ZeroBytes, largest_gpt, zero_bytes_per_step, zero_rank_bytes
from utils.widgets import style
from utils.widgets.frame import Frame
from utils.widgets.style import bytes_text
from utils.widgets.zero_picture import count_text, draw_plan
from utils.widgets.zero_run import ZeroRun, last_run, measure_zero, predict_zero, ranks_for

__all__ = ["GPUS", "ZeroRun", "draw_memory", "measure_zero", "memory_sentence", "plan_memory", "predict_zero"]

GPUS = ("V100-32GB", "A100-80GB", "H100-80GB", "H200-141GB")
_STEPS = [digit * 10.0**power for power in (8, 9, 10, 11) for digit in (1, 1.5, 2, 3, 5, 7)]
SIZES = sorted([*_STEPS, 7.5e9, 1.3e10, 1.75e11, 1e12])
"""Ψ in about even steps of its logarithm, and the sizes that the papers speak of."""
WORLD_SIZES = [1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024]
MICRO_BATCHES = [1, 2, 4, 8, 16, 32, 64]
SEQUENCES = [512, 1024, 2048, 4096, 8192, 16384, 32768]


def plan_memory(parameters: float = 7.5e9, precision: str = "mixed", optimizer: str = "adam", world_size: int = 64,
                stage: int = 2, micro_batch: int = 1, micro_batches: int = 1, sequence: int = 1024,
                recomputation: str = "none", offload: str = "nothing", gpu: str = "V100-32GB") -> Frame:
    """A widget that plans the memory of one rank: all four ZeRO stages side by side, the chosen one marked.

    parameters     Ψ
    precision      "fp32", "mixed" (16 bytes with Adam), "mixed, fp32 gradients" (18), "mixed, both gradients" (20)
    optimizer      "adam", "momentum" or "sgd"
    world_size     N ranks of data parallelism
    stage          0 (nothing is sharded) to 3
    micro_batch    b sequences of `sequence` (s) tokens on each rank at a time; micro_batches of them (m) in a step
    recomputation  "none", "selective" or "full", see utils.theory.models.RECOMPUTATIONS
    offload        "nothing", "optimizer" (with the gradients) or "parameters" (all of the state), to the CPU's memory
    gpu            a name in GPUS

    Activations are those of a GPT of about Ψ parameters, `utils.theory.presets.gpt_of_size`. The button trains a small
    model in the chosen stage on min(N, 8) real ranks and lays the measured bytes beside the predicted ones.
    """
    controls = {
        "parameters": _slider("Ψ", parameters, SIZES, count_text),
        "precision": ipywidgets.Dropdown(value=precision, options=list(PRECISIONS), description="precision"),
        "optimizer": ipywidgets.Dropdown(value=optimizer, options=list(MOMENT_BYTES), description="optimizer"),
        "world_size": _slider("N ranks", world_size, WORLD_SIZES),
        "stage": ipywidgets.IntSlider(stage, STAGES[0], STAGES[-1], description="stage"),
        "micro_batch": _slider("b", micro_batch, MICRO_BATCHES),
        "micro_batches": _slider("m", micro_batches, MICRO_BATCHES),
        "sequence": _slider("s tokens", sequence, SEQUENCES),
        "recomputation": ipywidgets.Dropdown(value=recomputation, options=list(RECOMPUTATIONS), description="recompute"),
        "offload": ipywidgets.Dropdown(value=offload, options=list(OFFLOADS), description="offload"),
        "gpu": ipywidgets.Dropdown(value=gpu, options=list(GPUS), description="GPU"),
    }
    return Frame(
        controls, draw_memory, memory_sentence,
        measure=lambda precision, optimizer, world_size, stage, **_: measure_zero(precision, optimizer, world_size, stage),
        announce=lambda world_size, stage, **_: f"Training a small GPT in stage {stage} on {ranks_for(world_size)} real ranks …",
        presets={
            "ZeRO's figure 1: 7.5B on 64 GPUs":
                {"parameters": 7.5e9, "world_size": 64, "precision": "mixed", "optimizer": "adam"},
            "7B on 8 GPUs": {"parameters": 7e9, "world_size": 8},
            "13B on 8 GPUs, all recomputed": {"parameters": 1.3e10, "world_size": 8, "recomputation": "full"},
            "70B on 64 GPUs, all recomputed": {"parameters": 7e10, "world_size": 64, "recomputation": "full"},
            "175B on 1,024 GPUs, all recomputed": {"parameters": 1.75e11, "world_size": 1024, "recomputation": "full"},
        })


def memory_sentence(parameters=7.5e9, precision="mixed", optimizer="adam", world_size=64, stage=2, micro_batch=1,
                    micro_batches=1, sequence=1024, recomputation="none", offload="nothing", gpu="V100-32GB",
                    runs=()) -> str:
    """The state of every stage, the chosen stage's bytes, and what real ranks needed.

    >>> print(memory_sentence())
    7.5B parameters at 16 bytes on 64 ranks: state of 120, 31.4, 16.6 and 1.88 GB in stages 0 to 3 · \
stage 2 with activations: 27.2 GB of a V100-32GB's 34.4 GB, 7.16 GB are left; a rank sends 29.5 GB per step
    """
    ranks, memory = _ranks(parameters, precision, optimizer, world_size, micro_batch, sequence, recomputation, offload, gpu)
    recipe = build_recipe(precision, optimizer)
    chosen = ranks[one_of("stage", stage, STAGES)]
    left = memory - chosen.total_bytes
    sent = zero_bytes_per_step(parameters, recipe, stage, world_size, micro_batches)
    text = (f"{count_text(parameters)} parameters at {recipe.bytes_per_parameter} bytes on {world_size:,} "
            f"rank{'s' * (world_size > 1)}: state of {_listed([rank.state_bytes for rank in ranks])} in stages 0 to 3 · "
            f"stage {stage} with activations: {bytes_text(chosen.total_bytes)} of {_a(gpu)}'s {bytes_text(memory)}, "
            f"{bytes_text(abs(left))} are {'left' if left >= 0 else 'missing'}; a rank sends {bytes_text(sent)} per step")
    if chosen.cpu_bytes:
        text += f"; {bytes_text(chosen.cpu_bytes)} of its state lie in the CPU's memory"
    run = last_run(runs, precision, optimizer, world_size, stage)
    if run:
        predicted, measured = predict_zero(precision, optimizer, run.world_size, stage), run.measured
        text += (f" · on {run.world_size} real rank{'s' * (run.world_size > 1)}, a small GPT: "
                 f"{_measured(measured.state.total_bytes, predicted.state.total_bytes)} at rest, "
                 f"{_measured(measured.peak_bytes, predicted.peak_bytes)} at the peak, "
                 f"{_measured(measured.sent_bytes, predicted.sent_bytes)} sent per step; "
                 f"loss {run.losses[0]:.2f} → {run.losses[-1]:.2f} in {len(run.losses)} steps")
    return text


def draw_memory(parameters=7.5e9, precision="mixed", optimizer="adam", world_size=64, stage=2, micro_batch=1,
                micro_batches=1, sequence=1024, recomputation="none", offload="nothing", gpu="V100-32GB",
                runs=(), figure=None):
    """Draw the four stages as stacked bars against the GPU's memory, and below them a small GPT on real ranks.

    runs: ZeroRuns; those of the same precision, optimizer and N are drawn over the predictions of the small GPT.
    Returns the matplotlib Figure.
    """
    ranks, memory = _ranks(parameters, precision, optimizer, world_size, micro_batch, sequence, recomputation, offload, gpu)
    one_of("stage", stage, STAGES)
    recipe = build_recipe(precision, optimizer)
    choices = {"recipe": recipe, "world_size": world_size, "micro_batch": micro_batch, "recomputation": recomputation,
               "offload": offload}
    largest = [largest_gpt(memory, sequence, stage=each, **choices) for each in STAGES]
    sent = [zero_bytes_per_step(parameters, recipe, each, world_size, micro_batches) for each in STAGES]
    n = ranks_for(world_size)
    small = [predict_zero(precision, optimizer, n, each) for each in STAGES]
    measured = [last_run(runs, precision, optimizer, world_size, each) for each in STAGES]
    model = gpt_of_size(parameters, sequence)
    basis = (f"activations: a GPT with L = {model.layers}, h = {model.hidden:,}, s = {sequence:,}, b = {micro_batch}"
             f"{'' if recomputation == 'none' else f', {recomputation} recomputation'} · sent: m = {micro_batches}")
    with style.drawing(figure, height=4.9) as figure:
        draw_plan(figure, _title(ranks, stage, memory, gpu), basis, ranks, stage, memory, gpu, largest, sent, small, measured, n)
    return figure


def _ranks(parameters, precision, optimizer, world_size, micro_batch, sequence, recomputation, offload, gpu):
    """The ZeroBytes of a rank in every stage, and the GPU's bytes."""
    memory = CHIPS[one_of("gpu", gpu, GPUS)].memory_bytes
    model, recipe = gpt_of_size(parameters, sequence), build_recipe(precision, optimizer)
    return [zero_rank_bytes(parameters, model, recipe, stage, world_size, micro_batch, recomputation, offload)
            for stage in STAGES], memory


def _title(ranks: list[ZeroBytes], stage, memory, gpu):
    fitting = [each for each, rank in enumerate(ranks) if rank.total_bytes <= memory]
    if not fitting:
        return f"No stage fits {_a(gpu)}: stage 3 misses {bytes_text(ranks[-1].total_bytes - memory)}"
    if stage not in fitting:
        return f"Stage {stage} does not fit {_a(gpu)}; stage {fitting[0]} is the first that does"
    if stage == fitting[0]:
        return f"Stage {stage} is the first that fits {_a(gpu)}" if stage else f"Stage 0 fits {_a(gpu)}: no need to shard"
    return f"Stage {stage} fits {_a(gpu)}; stage {fitting[0]} would do"


def _a(gpu):
    return f"a{'n' * (gpu[0] in 'AH')} {gpu}"


def _slider(symbol, value, options, text="{:,}".format):
    """A slider over `options` and, wherever it lies between them, the value to start with."""
    options = sorted({*options, value})
    return ipywidgets.SelectionSlider(value=value, options=[(text(option), option) for option in options], description=symbol)


def _listed(sizes):
    """ "120, 31.4, 16.6 and 1.88 GB", or each with its own unit where they differ. """
    texts = [bytes_text(size) for size in sizes]
    unit = texts[0].split()[1]
    if all(text.endswith(f" {unit}") for text in texts):
        texts = [text.split()[0] for text in texts[:-1]] + texts[-1:]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _measured(measured, predicted):
    return f"{bytes_text(measured)} (ratio {measured / predicted:.2f})" if predicted else bytes_text(measured)
