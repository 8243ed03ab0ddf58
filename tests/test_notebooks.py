"""The rules that every notebook keeps, and the tool that makes notebooks keep them."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4

from utils import notebooks
from utils.grading.errors import GradingError
from utils.grading.notebook import dumps, read

ROOT = Path(__file__).parents[1]
ALL = sorted(path for folder in ("lessons", "solutions", "labs") for path in (ROOT / folder).glob("*.ipynb"))


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_keeps_the_rules(path):
    assert notebooks.check(path) == []


# ---- the bootstrap cell -------------------------------------------------------------------------------------------

SAY_WHERE = "\nimport utils; print(utils.__file__)"


def run_cell(folder, cell=notebooks.BOOTSTRAP + SAY_WHERE, installed_at=None):
    """Run a cell as a kernel in `folder` would, with the course installed at a place or not at all."""
    program = (f"import sys; sys.path = ['', *(p for p in sys.path if p not in ('', {str(ROOT)!r}))]\n"
               f"sys.path += {[str(installed_at)] if installed_at else []}\nexec({cell!r})")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=120)


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / "utils", folder / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("lessons", "labs"):
        (folder / name).mkdir()
    return folder


def test_bootstrap_is_short():
    lines = notebooks.BOOTSTRAP.splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 120


@pytest.mark.parametrize("place", ["lessons", "labs", "."])
def test_bootstrap_finds_the_clone_that_the_notebook_is_in(clone, place):
    done = run_cell(clone / place)
    assert done.stdout.strip() == str(clone / "utils" / "__init__.py"), done.stderr
    assert done.stderr == ""


def test_a_clone_comes_before_what_is_installed(clone):
    assert run_cell(clone / "lessons", installed_at=ROOT).stdout.strip() == str(clone / "utils" / "__init__.py")


def test_ranks_find_the_course_too(clone):
    launch = ("\nfrom utils import launch\nfrom utils.theory.units import __file__ as ours\n"
              "def where():\n    import utils.theory.units\n    return utils.theory.units.__file__\n"
              "print(launch(where, world_size=2).results == [ours] * 2)")
    done = run_cell(clone / "lessons", notebooks.BOOTSTRAP + launch)
    assert done.stdout.strip() == "True", done.stderr


def test_bootstrap_uses_what_is_installed(tmp_path):
    assert run_cell(tmp_path, installed_at=ROOT).stdout.strip() == str(ROOT / "utils" / "__init__.py")


def test_bootstrap_finds_a_clone_on_colab(clone, tmp_path):
    cell = notebooks.BOOTSTRAP.replace('"/content"', repr(str(tmp_path)))
    elsewhere = tmp_path / "x" / "y"
    elsewhere.mkdir(parents=True)
    assert cell != notebooks.BOOTSTRAP
    assert run_cell(elsewhere, cell + SAY_WHERE).stdout.strip() == str(clone / "utils" / "__init__.py")


def test_bootstrap_says_what_to_do_where_the_course_is_not(tmp_path):
    done = run_cell(tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: The course's utils cannot be used (No module named 'utils'; utils: not found). Open this notebook in "
        "a clone of the course with 'make lab', or install the course; restart the kernel.")


def test_bootstrap_names_another_package_called_utils(tmp_path):
    (tmp_path / "utils.py").write_text("mine = 1\n")
    done = run_cell(tmp_path)
    assert done.returncode == 1
    assert str(tmp_path / "utils.py") in done.stderr.splitlines()[-1]


def test_bootstrap_leaves_another_utils_alone_that_is_in_use(clone, tmp_path):
    other = tmp_path / "other" / "utils.py"
    other.parent.mkdir()
    other.write_text("mine = 1\n")
    first = f"import sys; sys.path.insert(0, {str(other.parent)!r})\nimport utils\n"
    done = run_cell(clone / "lessons", first + notebooks.BOOTSTRAP)
    assert done.returncode == 1 and str(other) in done.stderr.splitlines()[-1]


# ---- check --------------------------------------------------------------------------------------------------------

def cell(source="1 + 1", count=1, outputs=(), **metadata):
    return v4.new_code_cell(source, execution_count=count, outputs=list(outputs), metadata=metadata)


def first_cell(count=1):
    return cell(notebooks.BOOTSTRAP, count)


def save(folder, *cells, kind="lessons"):
    path = folder / kind / "01_x.ipynb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(dumps(v4.new_notebook(cells=list(cells))))
    return path


def stream(name, text):
    return v4.new_output("stream", name=name, text=text)


ERROR = v4.new_output("error", ename="ValueError", evalue="wrong", traceback=[])


def test_a_good_notebook_has_no_problem(tmp_path):
    good = save(tmp_path, v4.new_markdown_cell("# Title"), first_cell(), cell(outputs=[stream("stdout", "2\n")]),
                cell("raise ValueError('wrong')", outputs=[ERROR], tags=["raises-exception"]))
    assert notebooks.check(good) == []


@pytest.mark.parametrize("kind, cells, words", [
    ("lessons", [cell("import utils")], "the first code cell is not the bootstrap cell"),
    ("lessons", [v4.new_markdown_cell("no code")], "the first code cell is not the bootstrap cell"),
    ("lessons", [first_cell(), cell("x = 1", count=None)], "code cell 2 (x = 1): not run"),
    ("solutions", [first_cell(), cell("x = 1", count=None)], "code cell 2 (x = 1): not run"),
    ("labs", [first_cell(None), cell("check()", count=None, tags=["check"])], "code cell 2 (check()): not run"),
    ("lessons", [first_cell(), cell(outputs=[stream("stderr", "a warning\nmore")])], "writes to stderr: ['a warning']"),
    ("lessons", [first_cell(), cell(outputs=[ERROR])], "ends in ValueError: wrong; tag it raises-exception"),
    ("lessons", [first_cell(), cell("\n".join(["x = 1"] * 46))], "46 lines, more than 45"),
    ("lessons", [first_cell(), cell(outputs=[stream("stdout", "x" * 1_500_000)])], "1.5 MB, more than 1.5 MB"),
])
def test_what_breaks_a_rule(tmp_path, kind, cells, words):
    problems = notebooks.check(save(tmp_path, *cells, kind=kind))
    assert len(problems) == 1 and words in problems[0]


@pytest.mark.parametrize("kind, cells", [
    ("labs", [first_cell(None), cell("answer", count=None), cell("check()", tags=["check"])]),
    ("solutions", [first_cell(), cell("\n".join(["x = 1"] * 46))]),
    ("lessons", [first_cell(), cell("\n".join(["x = 1"] * 45))]),
])
def test_what_keeps_the_rules(tmp_path, kind, cells):
    assert notebooks.check(save(tmp_path, *cells, kind=kind)) == []


def test_check_on_the_command_line(tmp_path, capsys):
    assert notebooks.main(["check", str(save(tmp_path, first_cell()))]) == 0
    assert notebooks.main(["check", str(save(tmp_path, cell("import utils")))]) == 1
    assert "bootstrap cell" in capsys.readouterr().out


# ---- normalise, execute, bootstrap --------------------------------------------------------------------------------

def test_normalise_keeps_what_the_author_wrote_and_drops_what_editors_add():
    kept = {"tags": ["check"], "nbgrader": {"grade_id": "q1"}, "course": {"answers": ["q1"]}, "deletable": True}
    notebook = v4.new_notebook(
        cells=[cell(execution={"iopub.status.busy": "2024"}, collapsed=False, vscode={}, **kept)],
        metadata={"kernelspec": {"name": "mine", "display_name": "Mine"}, "colab": {},
                  "language_info": {"name": "python", "version": "3.12.1"}, "course": {"taught_in": ["utils/x.py"]}})
    result = notebooks.normalise(notebook)
    assert result.cells[0].metadata == kept
    assert result.metadata == {"kernelspec": notebooks.KERNELSPEC, "language_info": {"name": "python"},
                               "course": {"taught_in": ["utils/x.py"]}}


def test_ids_depend_on_the_content_alone():
    sources = ["a", "b", "a"]
    first, second = (notebooks.normalise(v4.new_notebook(cells=[cell(source) for source in sources])) for _ in range(2))
    ids = [each.id for each in first.cells]
    assert ids == [each.id for each in second.cells]
    assert len(set(ids)) == 3


VIEW = "application/vnd.jupyter.widget-view+json"


def with_widget(model_id, static):
    view = v4.new_output("display_data", data={VIEW: {"model_id": model_id}, **static})
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": {model_id: {"model_name": "IntSliderModel"}}}}
    return v4.new_notebook(cells=[cell(outputs=[view])], metadata={"widgets": widgets})


def test_a_widget_with_a_static_form_is_stored_as_that():
    notebook = notebooks.normalise(with_widget("a" * 32, {"image/png": "AAAA"}))
    assert set(notebook.cells[0].outputs[0].data) == {"image/png"}
    assert "widgets" not in notebook.metadata


def test_the_random_ids_of_other_widgets_become_numbers():
    first, second = (notebooks.normalise(with_widget(letter * 32, {})) for letter in "ab")
    assert dumps(first) == dumps(second)
    assert first.cells[0].outputs[0].data[VIEW]["model_id"] == "0" * 32


def test_execute_stores_outputs_and_gives_the_same_bytes_again(tmp_path):
    path = save(tmp_path, v4.new_markdown_cell("# T"), cell("import ipywidgets\nipywidgets.IntSlider()", count=None),
                cell("print('a')\nprint('b', flush=True)\nprint('c')", count=7, outputs=[stream("stderr", "old")]),
                cell("1 / 0", tags=["raises-exception"]))
    assert notebooks.execute(path)
    once = path.read_bytes()
    after = read(path)
    assert [each.get("execution_count") for each in after.cells] == [None, 1, 2, 3]
    assert [(output.name, output.text) for output in after.cells[2].outputs] == [("stdout", "a\nb\nc\n")]
    assert after.cells[3].outputs[0].ename == "ZeroDivisionError"
    assert once.endswith(b"}\n")
    assert not notebooks.execute(path)
    assert path.read_bytes() == once


def test_execute_leaves_the_file_alone_when_a_cell_fails(tmp_path, capsys):
    path = save(tmp_path, cell("raise ValueError('not meant')"))
    before = path.read_bytes()
    with pytest.raises(GradingError, match="not meant"):
        notebooks.execute(path)
    assert notebooks.main(["execute", str(path)]) == 1
    assert "not meant" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_execute_stops_a_cell_that_takes_too_long(tmp_path):
    with pytest.raises(GradingError, match="timed out"):
        notebooks.execute(save(tmp_path, cell("while True: pass")), cell_seconds=1)


def test_bootstrap_replaces_an_older_cell_and_comes_before_other_code(tmp_path):
    for old, sources in [("import sys\nsys.path.insert(0, '..')", [notebooks.BOOTSTRAP]),
                         ("1 + 1", [notebooks.BOOTSTRAP, "1 + 1"])]:
        path = save(tmp_path, v4.new_markdown_cell("# T"), cell(old))
        assert notebooks.bootstrap(path)
        assert [each.source for each in read(path).cells] == ["# T", *sources]
        assert not notebooks.bootstrap(path)


# ---- text ---------------------------------------------------------------------------------------------------------

def test_a_notebook_goes_to_text_and_comes_back_the_same(tmp_path):
    answer = {"grade_id": "q1-answer", "grade": False, "solution": True, "locked": False}
    path = save(tmp_path, v4.new_markdown_cell("# Title\n\n*text* with `code`"), first_cell(),
                cell("%matplotlib inline\nx = 1", 2, tags=["raises-exception"]),
                cell("x", 3, [stream("stdout", "1\n")], nbgrader=answer),
                cell("x", 4, [stream("stdout", "2\n")]))
    notebook = read(path)
    notebook.metadata["course"] = {"taught_in": ["utils/x.py"]}
    path.write_text(dumps(notebooks.normalise(notebook)))
    before = path.read_bytes()
    text = notebooks.to_text(path)
    assert "# # Title" in text.read_text()
    assert notebooks.from_text(text) == path
    assert path.read_bytes() == before


def test_a_change_in_the_text_keeps_the_outputs_of_the_other_cells(tmp_path):
    path = save(tmp_path, first_cell(), cell("print(1)", 2, [stream("stdout", "1\n")]),
                cell("print(2)", 3, [stream("stdout", "2\n")]))
    text = notebooks.to_text(path)
    text.write_text(text.read_text().replace("print(2)", "print(3)"))
    notebooks.from_text(text)
    unchanged, changed = read(path).cells[1:]
    assert unchanged.outputs[0].text == "1\n"
    assert (changed.source, changed.outputs, changed.execution_count) == ("print(3)", [], None)
