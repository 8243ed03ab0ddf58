"""Cut a product of matrices on real ranks, in the terms of `utils.theory.tensor`: synchronisations and bytes."""
from dataclasses import dataclass

import numpy as np

from utils import launch
from utils.theory.tensor import CutProduct
from utils.theory.units import BYTES_PER_ELEMENT
from utils.widgets import tensor_on_ranks

ELEMENT_BYTES = BYTES_PER_ELEMENT["fp32"]


@dataclass(frozen=True)
class CutRun:
    """What a CutProduct did on real ranks.

    state        what was chosen; a run belongs to the same state of the widget
    calls        (collective, elements) of each recorded call, in order; the same on every rank
    sent_bytes   bytes that the busiest rank sent, by the definition of its calls
    z            the result on rank 0, as a tuple of rows
    right        whether every rank got Z
    """

    state: tuple
    calls: tuple[tuple[str, int], ...]
    sent_bytes: float
    z: tuple[tuple[float, ...], ...]
    right: bool


def measure_cut(product: CutProduct, state: tuple = ()) -> CutRun:
    """Run `product` on t real ranks. Raises RankError when a rank fails."""
    matrices = [matrix.tolist() for matrix in (product.x, product.a, product.b)]
    run = launch(tensor_on_ranks.cut_product, *matrices, product.cut_a, product.cut_b, product.activation,
                 world_size=product.tensor, timeout=60, echo=False)
    calls = {tuple((call.op, call.elements) for call in record.calls) for record in run.records}
    if len(calls) > 1:
        raise ValueError(f"The ranks made different calls: {calls}.")
    right = all(np.allclose(z, product.z, rtol=1e-5, atol=1e-6) for z in run.results)
    return CutRun(state, calls.pop(), max(run.sent_bytes()), tuple(map(tuple, run.results[0])), right)
