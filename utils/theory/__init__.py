"""Distributed training as numbers: volumes, memory, schedules, step times, layouts.

Everything here is arithmetic. It needs numpy, never torch, and it starts no process.
A lesson, a widget, a lab check and a test that need the same number call the same function.

Modules
-------
units        GB, GiB and the other sizes, and conversions that name their unit
arguments    the sentences that refuse a wrong argument
hardware     chips, links and clusters
collectives  what each rank sends in a collective, in how many steps, in how many seconds (with `ring`)
traffic      which collectives each kind of parallelism needs, and of what size
             (`layout_traffic`: the same for one rank of a layout, by dimension)
models       transformers: parameters, floating point operations; `presets` has those of the papers
memory       training state, what fits, fine-tuning, offload; `resnet` for the first lesson's model
activations  what a transformer's layers keep for the backward pass
zero         a ZeRO rank as a whole: state, activations, offload, peak, and the largest model that fits
tensor       a pair of matrices cut over ranks, what each computes, where they must synchronise; a layer's time over t
pipeline     schedules as data and a simulator that times them (`actions`, `generators`, `simulation`)
throughput   the seconds of one training step, as a sum of named parts
layout       ranks on a grid and their groups (`grid`), and a planner that ranks every layout
advice       the decision guide: for a model and a machine, one sentence that says what to use
papers       the published tables, recomputed: ``python -m utils.theory.papers``

Notation
--------
The symbols are those of the papers, in docstrings and comments; argument names are spelled out.

====  =====================  ====================================================================
Ψ     parameters             number of parameters of the model (P in Narayanan et al.)
N     world_size             number of ranks that take part
K     optimizer_bytes        bytes of optimizer state per parameter (12 for mixed-precision Adam)
p     pipeline               pipeline stages (K in GPipe)
m     micro_batches          micro-batches in one step of one pipeline (M in GPipe)
t     tensor                 tensor-parallel ranks
d     data                   data-parallel ranks (N_d in ZeRO)
c     context                context-parallel ranks
v     chunks                 model chunks per pipeline rank (the interleaving factor)
s     sequence               tokens in one sequence
b     micro_batch            sequences in one micro-batch
B     batch                  sequences in one step, over all ranks
L     layers                 transformer layers (l in Narayanan et al.)
h     hidden                 width of the residual stream
a     heads                  attention heads
V     vocab                  rows of the embedding (v in Korthikanti et al.)
α     alpha_seconds          latency of one message
β     1 / bandwidth          seconds per byte
====  =====================  ====================================================================

GB is 10⁹ bytes and GiB is 2³⁰ bytes; every name that holds a size or a time says its unit.
"""
