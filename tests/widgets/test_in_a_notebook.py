"""The widgets as a notebook's cells see them: executed, stored, compared by nbval, turned into a page."""
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from utils.widgets.frame import LIVE_VIEW, without_live_views

ROOT = str(Path(__file__).parents[2])
CELLS = [
    f"import sys; sys.path.insert(0, {ROOT!r})\n"
    "from utils.widgets.all_reduce import compare_algorithms, draw_ring_step, ring_steps\n"
    "from utils.widgets.quiz import predict",
    "ring_steps()", "compare_algorithms()", "draw_ring_step(4, 1000, 3)", "predict('How many?', answer=7)"]


@pytest.fixture(scope="module")
def executed():
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel},
                                        cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    return NotebookClient(notebook, timeout=600).execute()


def test_every_cell_leaves_one_output_and_nothing_on_stderr(executed):
    kinds = [[set(output.get("data", [output.output_type])) for output in cell.outputs] for cell in executed.cells]
    assert kinds == [[], [{LIVE_VIEW, "image/png", "text/plain"}], [{LIVE_VIEW, "image/png", "text/plain"}],
                     [{"image/png", "text/plain"}], [{LIVE_VIEW, "text/html", "text/plain"}]]


def test_the_text_is_the_sentence_and_the_pictures_are_small(executed):
    ring, algorithms, plain = (cell.outputs[0].data for cell in executed.cells[1:4])
    assert ring["text/plain"].startswith("step 1 of 6: ") and algorithms["text/plain"].startswith("ring on 4 ranks, 1 MB")
    assert not re.search("0x[0-9a-f]{6}", plain["text/plain"])  # an address differs in every run
    assert all(len(data["image/png"]) < 50_000 for data in (ring, algorithms, plain))


def test_the_stored_notebook_passes_nbval_and_its_page_shows_the_pictures(executed, tmp_path):
    without_live_views(executed)
    assert all(LIVE_VIEW not in output.data for cell in executed.cells for output in cell.outputs)
    nbformat.write(executed, tmp_path / "stored.ipynb")
    nbval = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "stored.ipynb"]
    done = subprocess.run(nbval, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and f"{len(CELLS)} passed" in done.stdout, done.stdout
    nbconvert = pytest.importorskip("nbconvert")
    page, _ = nbconvert.HTMLExporter().from_notebook_node(executed)
    assert len(re.findall("<img", page)) == 3 and "<summary>The answer</summary>7." in page
