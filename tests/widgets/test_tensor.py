import itertools
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

from utils.theory.hardware import CHIPS, LINKS, Cluster
from utils.theory.models import Transformer
from utils.theory.papers.megatron import tensor_scaling_efficiency
from utils.theory.presets import MODELS
from utils.theory.tensor import ACTIVATIONS, CUTS, CutProduct, tensor_efficiency, tensor_layer_seconds
from utils.widgets import style
from utils.widgets.style import seconds_text
from utils.widgets.tensor import (
    EXAMPLES,
    LINK_NAMES,
    CutRun,
    cut_matrices,
    cut_sentence,
    draw_cut,
    draw_layer_time,
    layer_time,
    layer_time_sentence,
    measure_cut,
    weak_scaling,
)
from utils.widgets.tensor_cut import TENSORS as CUT_TENSORS
from utils.widgets.tensor_picture import number_text
from utils.widgets.tensor_time import HIDDENS, LAYER_CHIPS, TENSORS

ALL_CUTS = list(itertools.product(CUTS, CUTS))


def product(cut_a, cut_b, tensor, activation, example="wider"):
    return CutProduct(*map(np.array, EXAMPLES[example]), cut_a, cut_b, tensor, activation)


def texts(figure):
    return [text.get_text() for part in (figure, *figure.axes) for text in part.texts]


def values(control):
    return [option[1] if isinstance(option, tuple) else option for option in control.options]


# ---- cut by hand


def test_the_first_state_is_the_example_worked_by_hand():
    frame = cut_matrices()
    assert frame.text == ("A by columns, B by rows on 2 ranks: Z = 7 after 1 synchronisation, all-reduce of Z; "
                          "each rank sends 4 bytes")
    assert frame.preset.value == "Megatron-LM's cut"


@pytest.mark.parametrize("cut_a, cut_b", ALL_CUTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tensor", CUT_TENSORS)
def test_the_texts_are_theorys_values(cut_a, cut_b, activation, tensor):
    cut = product(cut_a, cut_b, tensor, activation)
    sentence = cut_sentence(cut_a, cut_b, tensor, activation, "wider")
    assert f"Z = ({', '.join(map(number_text, cut.z.ravel()))})" in sentence
    shown = texts(draw_cut(cut_a, cut_b, tensor, activation, "wider"))
    if tensor == 1:
        assert "with nothing to synchronise" in sentence and shown.count("nowhere") == 4
        return
    assert sentence.endswith(f"each rank sends {4 * cut.elements_sent:g} bytes")
    assert f"after {len(cut.synchronisations)} synchronisation" in sentence
    for other in ALL_CUTS:
        assert f"{4 * product(*other, tensor, activation).elements_sent:g}" in shown


def test_the_reason_shows_the_sum_that_comes_too_late():
    reason = next(text for text in texts(draw_cut("rows", "rows")) if "add up" in text)
    assert reason == "ReLU does not add up: ReLU(1) + ReLU(−2) = 1, but ReLU(−1) = 0.\nWithout adding Y first, Z would be 9."
    assert not any("would be" in text for text in texts(draw_cut("columns", "rows")))
    assert any("Without an activation" in text for text in texts(draw_cut("rows", "rows", activation="none")))


@pytest.mark.parametrize("example, tensor", [("worked by hand", 2), ("worked by hand", 4), ("wider", 2), ("wider", 4)])
def test_every_cut_and_activation_has_a_picture_of_its_own(example, tensor):
    pictures, possible = set(), 0
    for (cut_a, cut_b), activation in itertools.product(ALL_CUTS, ACTIVATIONS):
        try:
            pictures.add(style.png(draw_cut(cut_a, cut_b, tensor, activation, example)))
            possible += 1
        except ValueError:
            assert example == "worked by hand"
    assert len(pictures) == possible >= 3


@pytest.mark.parametrize("tensor, activation", list(itertools.product(CUT_TENSORS, ACTIVATIONS)))
def test_no_two_texts_of_the_cuts_picture_overlap(tensor, activation):
    for cut_a, cut_b in ALL_CUTS:
        runs = [CutRun((*cuts, tensor, activation, "wider"), (), 36.0, ((7.0,),), True) for cuts in ALL_CUTS]
        _no_overlap(draw_cut(cut_a, cut_b, tensor, activation, "wider", runs))


def test_every_control_redraws_and_no_figure_stays_open():
    open_figures, frames = plt.get_fignums(), (cut_matrices(example="wider"), layer_time(gpus_per_server=4))
    for frame in frames:
        for name, control in vars(frame.controls).items():
            first, pictures = control.value, set()
            for value in (values(control)[0], values(control)[-1]):
                control.value = value
                pictures.add(bytes(frame.picture.value))
            assert len(pictures) == 2 and frame.note.value == "", name
            control.value = first
    assert plt.get_fignums() == open_figures


def test_all_presets_can_be_chosen():
    for frame in (cut_matrices(), layer_time()):
        for preset in frame.preset.options[:-1]:
            frame.preset.value = preset
            assert frame.preset.value == preset and frame.note.value == ""


def test_a_cut_that_does_not_fit_is_a_sentence_and_the_picture_stays():
    frame = cut_matrices()
    before = frame.picture.value
    frame.controls.cut_b.value = "columns"
    assert "B has 1 column, which 2 ranks cannot share equally. Cut B by rows" in frame.note.value
    assert frame.picture.value == before
    frame.run().join(10)
    assert "B has 1 column" in frame.note.value and not frame.runs
    frame.controls.example.value = "wider"
    assert frame.note.value == "" and frame.picture.value != before


@pytest.mark.parametrize("wrong, sentence", [
    ({"cut_a": "diagonals"}, "cut_a must be one of"),
    ({"cut_b": "diagonals"}, "cut_b must be one of"),
    ({"tensor": 0}, "tensor must be at least 1"),
    ({"tensor": 3}, "A has 4 columns, which 3 ranks"),
    ({"activation": "tanh"}, "activation must be one of"),
    ({"example": "mine"}, "example must be one of"),
])
def test_what_cannot_be_cut_is_refused(wrong, sentence):
    for function in (draw_cut, cut_sentence):
        with pytest.raises(ValueError, match=sentence):
            function(**wrong)


# ---- cut on real ranks


@pytest.mark.parametrize("cut_a, cut_b", ALL_CUTS)
@pytest.mark.parametrize("tensor, activation", [(2, "relu"), (4, "gelu")])
def test_real_ranks_meet_where_theory_says_and_send_what_it_says(cut_a, cut_b, tensor, activation):
    cut = product(cut_a, cut_b, tensor, activation)
    run = measure_cut(cut)
    assert run.right and run.z == pytest.approx(cut.z, rel=1e-5, abs=1e-6)
    assert run.calls == tuple((each.collective, each.elements) for each in cut.synchronisations)
    assert run.sent_bytes == 4 * cut.elements_sent


def test_one_real_rank_calls_nobody():
    run = measure_cut(product("rows", "rows", 1, "none"))
    assert run.right and run.calls == () and run.sent_bytes == 0


def test_the_buttons_runs_add_up_in_one_picture():
    frame = cut_matrices(activation="gelu")
    pictures = [bytes(frame.picture.value)]
    frame.run().join(300)
    assert frame.text.endswith("· on real ranks: every rank got Z = 6.48; recorded all-reduce of 1 element, 4 bytes (ratio 1.00)")
    pictures.append(bytes(frame.picture.value))
    frame.controls.cut_a.value = "rows"
    assert "real ranks" not in frame.text
    frame.run().join(300)
    assert frame.text.endswith("every rank got Z = 6.48; recorded reduce-scatter of 4 elements, all-reduce of 1 element, "
                               "12 bytes (ratio 1.00)")
    shown = texts(draw_cut("rows", "rows", activation="gelu", runs=frame.runs))
    assert {"4, measured 4 (1.00)", "12, measured 12 (1.00)"} <= set(shown)
    assert len({*pictures, bytes(frame.picture.value)}) == 3


def test_a_wrong_result_is_shouted():
    run = CutRun(("columns", "rows", 2, "relu", "worked by hand"), (("all_reduce", 1),), 4.0, ((9.0,),), False)
    assert "WRONG, rank 0 got Z = 9" in cut_sentence(runs=[run])


# ---- a layer's time


def a_cluster(chip, link, between, gpus_per_server):
    return Cluster(32, gpus_per_server, CHIPS[chip], LINKS[LINK_NAMES[link]], LINKS[LINK_NAMES[between]])


@pytest.mark.parametrize("hidden, chip, link, between, gpus, recomputation", [
    (3072, "V100-DGX-2H", "NVLink 2", "InfiniBand EDR", 16, "full"),
    (12288, "A100-80GB", "NVLink 3", "InfiniBand HDR", 8, "none"),
    (1024, "H100-80GB", "PCIe 5 x16", "Ethernet 25 Gb/s", 1, "selective"),
])
@pytest.mark.parametrize("tensor", TENSORS)
def test_seconds_and_efficiencies_are_theorys(hidden, chip, link, between, gpus, recomputation, tensor):
    state = {"hidden": hidden, "micro_batch": 4, "sequence": 2048, "tensor": tensor, "chip": chip, "link": link,
             "between": between, "gpus_per_server": gpus, "recomputation": recomputation}
    heads = {1024: 32, 3072: 32, 12288: 96}[hidden]
    model, cluster = Transformer(1, hidden, heads, sequence=2048), a_cluster(chip, link, between, gpus)
    parts = tensor_layer_seconds(model, cluster, tensor, 4, recomputation)
    seconds, efficiency = sum(parts.values()), tensor_efficiency(model, cluster, tensor, 4, recomputation)
    sentence, figure = layer_time_sentence(**state), draw_layer_time(**state)
    assert seconds_text(seconds) in sentence
    assert any(text.split("\n")[-1] == seconds_text(seconds) for text in texts(figure))
    line = figure.axes[1].lines[0]
    assert line.get_ydata()[TENSORS.index(tensor)] == efficiency
    if tensor > 1:
        used = link if tensor <= gpus else between
        assert f"on {tensor} over {used}, " in sentence
        shown = float(re.search(r"efficiency ([\d.]+) %", sentence)[1])
        assert shown == pytest.approx(100 * efficiency, rel=0.05)


def test_weak_scaling_is_megatrons_printed_row():
    rows = weak_scaling()
    assert [(row["tensor"], row["name"], row["printed"], row["printed_with_data"]) for row in rows] == [
        (1, "1.2B", "100", "96"), (2, "2.5B", "95", "83"), (4, "4.2B", "82", "79"), (8, "8.3B", "77", "74")]
    assert rows[-1]["predicted"] == tensor_scaling_efficiency(MODELS["megatron2019-8.3b"], 8)
    assert "Megatron-LM's 8.3B model at t = 8: 77 % printed, 86 % predicted" in layer_time_sentence()
    assert "Megatron" not in layer_time_sentence(tensor=16)
    squares = [line for line in draw_layer_time().axes[1].lines if line.get_marker() == "s"]
    assert [list(line.get_ydata()) for line in squares] == [[1, 0.95, 0.82, 0.77], [0.96, 0.83, 0.79, 0.74]]


@pytest.mark.parametrize("state", [
    {}, {"hidden": 1024, "micro_batch": 1, "sequence": 512, "gpus_per_server": 1, "between": "Ethernet 25 Gb/s"},
    {"hidden": HIDDENS[-1], "micro_batch": 32, "sequence": 8192, "gpus_per_server": 32, "chip": LAYER_CHIPS[-1]},
    {"gpus_per_server": 8, "between": "Ethernet 400 Gb/s", "link": "NVLink 5"},
])
def test_extreme_layers_have_pictures_without_overlaps(state):
    pictures = set()
    for tensor in TENSORS:
        figure = draw_layer_time(**state, tensor=tensor)
        pictures.add(style.png(figure))
        _no_overlap(figure)
    assert len(pictures) == len(TENSORS)


def test_a_size_between_the_sliders_steps_can_be_the_first():
    assert "h = 5,120, s = 3,000, b = 3" in layer_time(hidden=5120, sequence=3000, micro_batch=3).text


@pytest.mark.parametrize("wrong, sentence", [
    ({"hidden": 0}, "hidden must be at least 1"),
    ({"hidden": 1000}, "heads must divide hidden"),
    ({"micro_batch": 0}, "micro_batch must be at least 1"),
    ({"sequence": 0}, "sequence must be at least 1"),
    ({"tensor": 3}, "tensor must be one of"),
    ({"chip": "RTX"}, "chip must be one of"),
    ({"link": "carrier pigeon"}, "link must be one of"),
    ({"between": "carrier pigeon"}, "between must be one of"),
    ({"gpus_per_server": 0}, "gpus_per_server must be at least 1"),
    ({"recomputation": "some"}, "recomputation must be one of"),
])
def test_what_is_no_layer_is_refused(wrong, sentence):
    for function in (draw_layer_time, layer_time_sentence):
        with pytest.raises(ValueError, match=sentence):
            function(**wrong)


def _no_overlap(figure):
    """No text lies on another or is cut off by the figure's edge."""
    style.png(figure)
    width, height = figure.canvas.get_width_height()
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    shown = [text for part in (figure, *figure.axes) for text in part.texts if text.get_text().strip()] + legends
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    for name, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, name
    for (name, one), (other_name, other) in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), (name, other_name)
