import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.theory.collectives import all_reduce_elements_sent, all_reduce_seconds, all_reduce_steps
from utils.theory.units import GB, KB, MB
from utils.widgets import style
from utils.widgets.all_reduce import (
    LINKS,
    AllReduceRun,
    algorithms_sentence,
    compare_algorithms,
    draw_algorithms,
    draw_ring_step,
    measure_all_reduce,
    ring_contents,
    ring_sent_so_far,
    ring_step_sentence,
    ring_steps,
    tree_wins_below_bytes,
)
from utils.widgets.all_reduce_algorithms import ALGORITHMS, LOOPBACK, SIZES, WORLD_SIZES
from utils.widgets.style import bytes_text, seconds_text

# ---- the ring, step by step


@pytest.mark.parametrize("n", range(2, 9))
def test_what_the_ranks_hold_is_what_a_ring_of_numbers_holds(n):
    """Each rank contributes its own power of two, so that a sum tells whose numbers are inside."""
    held = np.repeat(2 ** np.arange(n)[:, None], n, axis=1)
    for step in range(2 * (n - 1)):
        arrived = {}
        for rank in range(n):
            chunk = (rank - step) % n  # the all-gather goes on where the reduce-scatter stopped
            arrived[(rank + 1) % n, chunk] = held[rank, chunk]
        for (rank, chunk), value in arrived.items():
            held[rank, chunk] = value + (held[rank, chunk] if step < n - 1 else 0)
        assert (ring_contents(n, step + 1) @ (2 ** np.arange(n)) == held).all()
    assert (held == 2**n - 1).all()


@given(st.integers(2, 8), st.integers(0, 10**7))
def test_after_the_last_step_each_rank_has_sent_what_theory_says(n, elements):
    assert (ring_sent_so_far(n, elements, 2 * (n - 1)) == all_reduce_elements_sent("ring", elements, n)).all()
    assert ring_contents(n, 2 * (n - 1)).all()


def test_the_steps_sentence():
    assert ring_step_sentence(4, 1000, 0) == (
        "step 0 of 6: each rank holds its own numbers, cut into 4 chunks · sent so far per rank: 0 of 1,500 elements")
    assert ring_step_sentence(4, 1000, 4) == (
        "step 4 of 6: rank 1 sends chunk 2 to rank 2, which keeps it · sent so far per rank: 1,000 of 1,500 elements")
    assert ring_step_sentence(3, 10, 2) == (
        "step 2 of 4: rank 1 sends chunk 0 to rank 2, which adds it · sent so far per rank: 6 to 7 of 13 to 14 elements")


@pytest.mark.parametrize("n", [2, 5, 8])
def test_every_step_has_a_picture_of_its_own(n):
    pictures = [style.png(draw_ring_step(n, 1000, step)) for step in range(2 * (n - 1) + 1)]
    assert len(set(pictures)) == len(pictures)


@pytest.mark.parametrize("arguments, sentence", [
    ((9, 1000, 1), "world_size must be at most 8"),
    ((1, 1000, 0), "world_size must be at least 2"),
    ((4, 0, 0), "elements must be at least 1"),
    ((4, 1000, 7), "step must be at most 6"),
])
def test_a_step_that_does_not_exist_is_refused(arguments, sentence):
    for function in (draw_ring_step, ring_step_sentence):
        with pytest.raises(ValueError, match=sentence):
            function(*arguments)


def test_the_step_slider_ends_where_the_ring_ends():
    frame = ring_steps(8, 1000, 14)
    frame.controls.world_size.value = 2
    assert frame.values == {"world_size": 2, "elements": 1000, "step": 2} and frame.text.startswith("step 2 of 2")
    frame.controls.world_size.value = 5
    assert frame.controls.step.max == 8


# ---- algorithms compared


@pytest.mark.parametrize("n", [4, 5, 8, 64, 1024])
@pytest.mark.parametrize("link", LINKS)
def test_the_tree_wins_below_the_crossing_and_loses_above(n, link):
    crossing = tree_wins_below_bytes(n, link)

    def lead_of_the_tree(n_bytes):
        ring, tree = (all_reduce_seconds(name, n_bytes, n, LINKS[link]) for name in ("ring", "tree"))
        return ring - tree

    assert lead_of_the_tree(0.99 * crossing) > 0 > lead_of_the_tree(1.01 * crossing)
    assert bytes_text(crossing) in algorithms_sentence(n, MB, link)


@pytest.mark.parametrize("n", [2, 3])
def test_the_tree_never_wins_where_it_saves_no_step(n):
    assert tree_wins_below_bytes(n, "NVLink 3") == 0
    assert all_reduce_steps("tree", n) == all_reduce_steps("ring", n)
    assert "the tree never beats the ring" in algorithms_sentence(n)


@pytest.mark.parametrize("algorithm, n, n_bytes", [*itertools.product(ALGORITHMS, (2, 6, 8, 1024), (KB, 25 * MB, GB))])
def test_the_sentences_numbers_are_those_of_theory(algorithm, n, n_bytes):
    sentence = algorithms_sentence(n, n_bytes, "PCIe 4 x16", algorithm)
    seconds = all_reduce_seconds(algorithm, n_bytes, n, LINKS["PCIe 4 x16"])
    sent = 4 * all_reduce_elements_sent(algorithm, n_bytes // 4, n).max()
    assert sentence.startswith(f"{ALGORITHMS[algorithm]} on {n:,} ranks, {bytes_text(n_bytes)} over PCIe 4 x16: "
                               f"{all_reduce_steps(algorithm, n):,} steps, {seconds_text(seconds)}, {bytes_text(sent)} sent ")


@pytest.mark.parametrize("n, n_bytes, link", [
    (2, SIZES[0], "NVLink 4"), (8, SIZES[-1], LOOPBACK), (1024, MB, "Ethernet 25 Gb/s")])
def test_extreme_states_have_a_picture(n, n_bytes, link):
    pictures = {style.png(draw_algorithms(n, n_bytes, link, algorithm)) for algorithm in ALGORITHMS}
    assert len(pictures) == len(ALGORITHMS)


@pytest.mark.parametrize("wrong, sentence", [
    ({"n_bytes": 1001}, "multiple of 4"),
    ({"link": "carrier pigeon"}, "link must be one of"),
    ({"algorithm": "star"}, "algorithm must be one of"),
])
def test_what_cannot_be_compared_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw_algorithms(**wrong)


def test_all_sizes_are_whole_elements_and_all_presets_can_be_chosen():
    assert all(size % 4 == 0 for size in SIZES) and WORLD_SIZES[0] == 2
    frame = compare_algorithms()
    for preset in frame.preset.options[:-1]:
        frame.preset.value = preset
        assert frame.preset.value == preset
        assert frame.note.value == ""


def test_redraws_leave_no_figure_open():
    open_figures, algorithms, ring = plt.get_fignums(), compare_algorithms(), ring_steps()
    for n in range(2, 9):
        algorithms.controls.world_size.value = ring.controls.world_size.value = n
    assert plt.get_fignums() == open_figures


# ---- real ranks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [3, 4])
def test_real_ranks_send_and_step_as_theory_says(algorithm, n):
    run = measure_all_reduce(algorithm, 1001, n)
    assert run.sent_bytes == tuple(4 * all_reduce_elements_sent(algorithm, 1001, n))
    assert [sum(sends) for sends in run.sends] == list(all_reduce_elements_sent(algorithm, 1001, n))
    assert run.steps == all_reduce_steps(algorithm, n)
    assert run.exact and run.seconds > 0
    if run.wire_bytes:
        assert all(wire >= sent for wire, sent in zip(run.wire_bytes, run.sent_bytes))


def test_the_rings_button_lays_its_run_over_the_theory_of_the_same_n_and_size():
    frame = ring_steps(3, 10, 2)
    before = frame.picture.value
    frame.run().join(300)
    assert frame.text.endswith("· on real ranks: 6 to 7 (ratio 1.00), 4 steps in all, every rank got the exact sum")
    assert frame.picture.value != before
    frame.controls.elements.value = 11
    assert "real ranks" not in frame.text
    frame.controls.elements.value = 10
    assert "real ranks" in frame.text


def test_the_buttons_of_several_algorithms_add_up_in_one_picture():
    frame = compare_algorithms(3, KB, LOOPBACK, "tree")
    pictures = [frame.picture.value]
    for algorithm in ("tree", "ring"):
        frame.controls.algorithm.value = algorithm
        pictures.append(frame.picture.value)
        frame.run().join(300)
        pictures.append(frame.picture.value)
        assert "on real ranks: 4 steps, " in frame.text and "(ratio 1.00)" in frame.text
    assert len({bytes(picture) for picture in pictures}) == 4  # the first two show the same state
    assert [run.algorithm for run in frame.runs] == ["tree", "ring"]


@pytest.mark.parametrize("values, sentence", [({"world_size": 16}, "at most 8 of them; 16 were asked for"),
                                              ({"n_bytes": GB}, "at most 64 MB on real ranks; 1,000 MB were asked for")])
def test_too_much_for_one_machine_is_a_sentence(values, sentence):
    frame = compare_algorithms(**values)
    frame.run().join(10)
    assert sentence in frame.note.value and not frame.runs


def test_a_wrong_sum_is_shouted():
    run = AllReduceRun("ring", 4, 1000, (6000,) * 4, None, ((250,) * 6,) * 4, 6, 0.01, exact=False)
    assert "the sum is WRONG" in ring_step_sentence(4, 1000, 3, [run])
    assert "the sum is WRONG" in algorithms_sentence(4, 4000, algorithm="ring", runs=[run])
