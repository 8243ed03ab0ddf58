"""What a reader sees who opens a lesson and runs nothing, whether JupyterLab trusts the notebook or not."""
from pathlib import Path

import pytest
from lab import ROOT, Notebook
from looks import see_through, sideways

from utils.grading.notebook import read

LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_that_is_only_opened_shows_its_pictures_and_folds_its_answers(jupyter, window, lesson):
    notebook = jupyter.open(window, f"lessons/{lesson.name}")
    assert not notebook.ask("cells.some(cell => cell.trusted && cell.outputs.length)")
    see_pictures_and_answers(notebook, lesson)
    notebook.trust()
    see_pictures_and_answers(notebook, lesson)


def see_pictures_and_answers(notebook: Notebook, lesson: Path):
    stored = [output.get("data", {}) for cell in read(lesson).cells for output in cell.get("outputs", ())]
    notebook.ask("panel.content.widgets.every(cell => !cell.isPlaceholder())", wait=True)
    pictures = notebook.box.locator(".jp-OutputArea-output img").evaluate_all("all => all.map(each => each.naturalWidth)")
    assert len(pictures) == sum("image/png" in data for data in stored) and all(pictures)
    assert see_through(notebook.box) == []
    assert sideways(notebook.outputs()) == []
    answers = notebook.box.locator(".jp-OutputArea-output details")
    assert answers.count() == sum("<details>" in data.get("text/html", "") for data in stored)
    for answer in answers.all():
        if not answer.evaluate("fold => fold.open"):
            answer.locator("summary").click()
        assert answer.inner_text().removeprefix("The answer").strip()
    assert notebook.box.get_by_text("Error displaying widget").count() == 0
