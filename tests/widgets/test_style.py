import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from utils.palette import COLOURS
from utils.widgets import style


def size(png):
    return Image.open(io.BytesIO(png)).size


def test_a_figure_is_900_pixels_wide_opaque_white_and_small():
    with style.drawing(height=2) as figure:
        figure.add_axes([0.1, 0.1, 0.8, 0.8]).plot([1, 2], [2, 1])
    image = Image.open(io.BytesIO(style.png(figure)))
    assert image.size == (900, 288)
    assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    assert len(style.png(figure)) < 20_000


def test_few_colours_are_still_the_palettes():
    with style.drawing(height=1) as figure:
        axes = figure.add_axes([0, 0, 1, 1])
        for place, meaning in enumerate(COLOURS):
            axes.bar(place, 1, width=1, **style.measured(meaning))
            axes.text(place, 0.5, meaning)  # letters bring hundreds of shades
    pixels = np.asarray(Image.open(io.BytesIO(style.png(figure))).convert("RGB")).reshape(-1, 3)
    for colour in COLOURS.values():
        assert np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=1).min() <= 2


def test_a_figure_that_is_used_again_is_empty_and_takes_the_new_height():
    with style.drawing(height=2) as figure:
        figure.add_axes([0, 0, 1, 1])
    with style.drawing(figure, height=3) as again:
        assert again is figure and not again.axes
    assert size(style.png(again)) == (900, 432)


def test_drawing_leaves_the_notebooks_settings_and_its_figures_alone():
    before, open_figures = dict(matplotlib.rcParams), plt.get_fignums()
    with style.drawing() as figure:
        assert matplotlib.rcParams["axes.spines.top"] is False
    style.png(figure)
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == open_figures


def test_settings_are_given_back_after_an_error():
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), style.drawing():
        raise ZeroDivisionError
    assert dict(matplotlib.rcParams) == before


def test_use_style_gives_pyplot_the_look_of_the_course():
    with matplotlib.rc_context():
        style.use_style()
        assert {name: matplotlib.rcParams[name] for name in ("figure.dpi", "font.size")} == {"figure.dpi": 144, "font.size": 9}


def test_text_above_a_picture_makes_it_higher_by_its_lines():
    with style.drawing(height=2) as figure:
        pass
    _, plain = size(style.png(figure))
    _, one_line = size(style.png_with_text(figure, "short"))
    _, three_lines = size(style.png_with_text(figure, "word " * 50))
    assert plain < one_line < three_lines


@pytest.mark.parametrize("meaning", COLOURS)
def test_theory_is_the_palettes_colour_at_half_strength_and_measured_has_a_black_edge(meaning):
    half = [(1 + part) / 2 for part in to_rgb(COLOURS[meaning])]
    assert to_rgb(style.theory(meaning)["facecolor"]) == pytest.approx(half, abs=1 / 255)
    assert style.measured(meaning)["facecolor"] == COLOURS[meaning]
    assert style.measured(meaning)["edgecolor"] == "black"


def test_an_unknown_colour_is_refused_with_the_list():
    with pytest.raises(ValueError, match="no colour for 'pink'.*communication"):
        style.colour("pink")


def test_rank_lanes_have_rank_0_on_top():
    with style.drawing() as figure:
        axes = figure.add_axes([0, 0, 1, 1])
        style.rank_lanes(axes, 3)
        bottom, top = axes.get_ylim()
        assert bottom > 2 > 0 > top
        assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]


@pytest.mark.parametrize("n_bytes, text", [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (999_600, "1 MB"),
                                           (46_758_048, "46.8 MB"), (2_500, "2.5 KB"), (1.02e12, "1.02 TB")])
def test_bytes_have_three_digits_and_a_unit(n_bytes, text):
    assert style.bytes_text(n_bytes) == text


@pytest.mark.parametrize("seconds, text", [(0, "0 s"), (4e-9, "4 ns"), (1.1e-5, "11 µs"), (0.0123, "12.3 ms"),
                                           (0.9996, "1 s"), (40.94, "40.9 s"), (4096, "4,096 s")])
def test_seconds_have_three_digits_and_a_unit(seconds, text):
    assert style.seconds_text(seconds) == text
