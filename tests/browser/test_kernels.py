"""Kernels and ranks behind the page: a restart in the middle of a run, two notebooks at once."""
import psutil
import pytest

SLEEP = """
import time

from utils.ranks import launch

def sleep_long():
    time.sleep(3600)
"""
IN_A_CELL = SLEEP + "launch(sleep_long, world_size=3, timeout=3600)"
BEHIND_A_BUTTON = SLEEP + """
import ipywidgets

from utils.widgets import style
from utils.widgets.frame import Frame

def draw(n, runs, figure):
    with style.drawing(figure, height=1) as figure:
        return figure

Frame({"n": ipywidgets.IntSlider(3, description="n")}, draw, say=lambda n, runs: "three ranks sleep",
      measure=lambda n: launch(sleep_long, world_size=n, timeout=3600))"""


@pytest.mark.parametrize("source", [IN_A_CELL, BEHIND_A_BUTTON], ids=["in a cell", "behind a button"])
def test_a_kernel_that_is_restarted_in_the_middle_of_a_run_leaves_no_rank(jupyter, window, source):
    notebook = jupyter.open(window, jupyter.write("lessons/restarted.ipynb", source))
    if source == IN_A_CELL:
        notebook.start_all()
    else:
        notebook.run_all()
        notebook.frames()[0].button.click()
    notebook.wait_for(lambda: len(jupyter.ranks_of(notebook)) == 3)
    engine = jupyter.kernel_of(notebook).children(recursive=True)
    notebook.choose("Kernel", "Restart Kernel")
    window.get_by_role("button", name="Confirm Kernel Restart").click()
    psutil.wait_procs(engine, timeout=60)
    assert not any(process.is_running() for process in engine)
    notebook.ask("panel.sessionContext.session?.kernel?.status == 'idle'", wait=True)
    assert jupyter.ranks_of(notebook) == []


def test_two_notebooks_run_their_ranks_at_the_same_time(jupyter, browser, window):
    cells = ["from utils.widgets.all_reduce import ring_steps\nring_steps()"]
    other_window = browser.new_page()
    notebooks = [jupyter.open(page, jupyter.write(f"lessons/{name}.ipynb", *cells))
                 for name, page in (("one", window), ("other", other_window))]
    for notebook in notebooks:
        notebook.run_all()
    one, other = (notebook.frames()[0] for notebook in notebooks)
    other.choose_preset("10 elements, 3 ranks: uneven chunks")
    with one.expect_run(), other.expect_run():
        one.button.click()
        other.button.click()
    assert "on real ranks: 250 (ratio 1.00), 6 steps in all, every rank got the exact sum" in one.sentence()
    assert "on real ranks: 3 to 4 (ratio 1.00), 4 steps in all, every rank got the exact sum" in other.sentence()
    other_window.close()
