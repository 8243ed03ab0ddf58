"""A pair of matrices cut by hand: choose columns or rows, see what each rank computes and where all must wait."""
import ipywidgets
import numpy as np

from utils.theory.arguments import one_of
from utils.theory.tensor import ACTIVATIONS, CUTS, CutProduct
from utils.widgets import style
from utils.widgets.frame import Frame
from utils.widgets.tensor_picture import (
    ACTIVATION_NAMES,
    COLLECTIVE_NAMES,
    draw_product,
    figure_height,
    number_text,
)
from utils.widgets.tensor_run import ELEMENT_BYTES, measure_cut

EXAMPLES = {
    "worked by hand": ([[1, 2]],
                       [[1, 0, 2, 1], [0, 1, 1, -1]],
                       [[1], [1], [1], [2]]),
    "wider": ([[1, 2, -1, 1]],
              [[1, 0, 2, 1], [0, 1, 1, -1], [2, 1, 0, 1], [-1, 2, 1, 0]],
              [[1, 0, 2, 1], [1, 1, 0, -1], [0, 2, 1, 1], [2, 1, -1, 0]]),
}
"""X, A and B by the names that readers see. The first is small enough for paper; every cut fits the second."""

TENSORS = (1, 2, 4)


def cut_matrices(cut_a: str = "columns", cut_b: str = "rows", tensor: int = 2, activation: str = "relu",
                 example: str = "worked by hand") -> Frame:
    """A widget that cuts Z = act(X·A)·B over t = `tensor` ranks, on numbers small enough to check in the head.

    cut_a, cut_b   "columns" or "rows": how A and how B is cut
    activation     "none", "relu" or "gelu", between the two products
    example        "worked by hand" (X = (1, 2), Z = 7) or "wider", which every cut fits

    The button runs the chosen cut on real ranks and shows the result, the recorded calls and the bytes.
    """
    controls = {
        "example": ipywidgets.Dropdown(value=example, options=list(EXAMPLES), description="numbers"),
        "cut_a": ipywidgets.Dropdown(value=cut_a, options=[(f"by {cut}", cut) for cut in CUTS], description="cut A"),
        "cut_b": ipywidgets.Dropdown(value=cut_b, options=[(f"by {cut}", cut) for cut in CUTS], description="cut B"),
        "tensor": ipywidgets.SelectionSlider(value=tensor, options=sorted({*TENSORS, tensor}), description="t ranks"),
        "activation": ipywidgets.Dropdown(value=activation, description="activation",
                                          options=[(ACTIVATION_NAMES[name] or "none", name) for name in ACTIVATIONS]),
    }
    return Frame(
        controls, draw_cut, cut_sentence,
        measure=lambda **state: measure_cut(_product(**state), _state(**state)),
        announce=lambda tensor, **_: f"Multiplying on {tensor} real rank{'s' * (tensor > 1)} …",
        presets={
            "Megatron-LM's cut": {"example": "worked by hand", "tensor": 2, "cut_a": "columns", "cut_b": "rows"},
            "A by rows: the sum comes first": {"example": "worked by hand", "tensor": 2, "cut_a": "rows", "cut_b": "rows"},
            "both by columns": {"example": "wider", "tensor": 2, "cut_a": "columns", "cut_b": "columns"},
            "Megatron-LM's cut, four ranks": {"example": "wider", "tensor": 4, "cut_a": "columns", "cut_b": "rows"},
            "A by rows, B by columns, four ranks": {"example": "wider", "tensor": 4, "cut_a": "rows", "cut_b": "columns"},
        })


def cut_sentence(cut_a="columns", cut_b="rows", tensor=2, activation="relu", example="worked by hand", runs=()) -> str:
    """Z, the synchronisations that the cut forces and their cost, and what real ranks did.

    >>> print(cut_sentence())
    A by columns, B by rows on 2 ranks: Z = 7 after 1 synchronisation, all-reduce of Z; each rank sends 4 bytes
    """
    product = _product(cut_a, cut_b, tensor, activation, example)
    syncs = product.synchronisations
    text = f"A by {cut_a}, B by {cut_b} on {tensor} rank{'s' * (tensor > 1)}: Z = {_vector(product.z)} "
    if syncs:
        names = " and ".join(f"{COLLECTIVE_NAMES[each.collective]} of {each.matrix}" for each in syncs)
        text += (f"after {len(syncs)} synchronisation{'s' * (len(syncs) > 1)}, {names}; "
                 f"each rank sends {ELEMENT_BYTES * product.elements_sent:g} bytes")
    else:
        text += "with nothing to synchronise"
    run = _last_run(runs, _state(cut_a, cut_b, tensor, activation, example))
    if run:
        calls = ", ".join(f"{COLLECTIVE_NAMES.get(op, op)} of {elements} element{'s' * (elements > 1)}"
                          for op, elements in run.calls)
        predicted = ELEMENT_BYTES * product.elements_sent
        ratio = f" (ratio {run.sent_bytes / predicted:.2f})" if predicted else ""
        text += (f" · on real ranks: {'every rank got' if run.right else 'WRONG, rank 0 got'} Z = {_vector(np.array(run.z))}; "
                 f"recorded {calls or 'no call'}, {run.sent_bytes:g} bytes{ratio}")
    return text


def draw_cut(cut_a="columns", cut_b="rows", tensor=2, activation="relu", example="worked by hand", runs=(), figure=None):
    """Draw the whole matrices and where they are cut, one lane per rank, and what the other cuts would cost.

    runs: CutRuns; those of the same numbers, t and activation are drawn over the predicted bytes.
    Returns the matplotlib Figure.
    """
    product = _product(cut_a, cut_b, tensor, activation, example)
    others, measured = {}, {}
    for cuts in ((a, b) for a in CUTS for b in CUTS[::-1]):
        try:
            others[cuts] = _product(*cuts, tensor, activation, example)
        except ValueError as error:
            others[cuts] = str(error).split(", which")[0]  # "B has 1 column"
        measured[cuts] = _last_run(runs, _state(*cuts, tensor, activation, example))
    with style.drawing(figure, height=figure_height(product)) as figure:
        draw_product(figure, product, _title(product), _reason(product), others, measured)
    return figure


def _product(cut_a, cut_b, tensor, activation, example):
    x, a, b = map(np.array, EXAMPLES[one_of("example", example, tuple(EXAMPLES))])
    return CutProduct(x, a, b, cut_a, cut_b, tensor, activation)


def _state(cut_a, cut_b, tensor, activation, example):
    return cut_a, cut_b, tensor, activation, example


def _last_run(runs, state):
    return next((run for run in reversed(runs) if run.state == state), None)


def _vector(matrix):
    texts = [number_text(value) for value in matrix.ravel()]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _title(product):
    if product.tensor == 1:
        return "One rank holds everything and waits for nobody"
    if len(product.synchronisations) == 1:
        return "Columns, then rows: the ranks meet once, at the end"
    return f"A by {product.cut_a}, B by {product.cut_b}: the ranks must meet before B too"


def _reason(product):
    """Two lines: why the cut needs what it needs, on the numbers shown."""
    act = ACTIVATION_NAMES[product.activation]
    if product.tensor == 1:
        return "Choose more ranks to see the matrices cut."
    if product.cut_a == "columns" and product.cut_b == "rows":
        return (f"Each rank has whole columns of Y, so {act or 'what follows'} needs nobody else, "
                "and its rows of B meet exactly them.\nOnly Z is a sum over the ranks.")
    if product.cut_a == "columns":
        return ("A column of B meets every column of Y, and each rank has only its own: all of them must be gathered first.\n"
                "Rows of B would have met the columns that are there; and in an MLP, Y is four times as wide as Z.")
    if product.activation == "none":
        return ("Each rank has a part of the sum Y. Without an activation the parts could be added later, but a rank has only\n"
                f"its {product.cut_b} of B, and they need finished numbers of Y.")
    column = int(np.argmax(np.abs(_activated_sum(product) - _sum_of_activated(product))[0]))
    terms = [part[0, column] for part in product.y_parts]
    return (f"{act} does not add up: {' + '.join(f'{act}({number_text(term)})' for term in terms)} = "
            f"{number_text(_sum_of_activated(product)[0, column])}, but {act}({number_text(sum(terms))}) = "
            f"{number_text(_activated_sum(product)[0, column])}.\n"
            f"Without adding Y first, Z would be {_vector(product.z_without_sum)}.")


def _activated_sum(product):
    return ACTIVATIONS[product.activation](product.y)


def _sum_of_activated(product):
    return sum(ACTIVATIONS[product.activation](part) for part in product.y_parts)
