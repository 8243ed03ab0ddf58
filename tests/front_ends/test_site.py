"""The course as web pages: everything is there, every link leads somewhere, and nothing is fetched from the network."""
import base64
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from nbformat import v4
from PIL import Image

from utils import site_pages
from utils.grading.notebook import dumps, read
from utils.notebooks import BOOTSTRAP

ROOT = Path(__file__).parents[2]
NOTEBOOKS = [path.relative_to(ROOT).as_posix()
             for folder in ("lessons", "labs") for path in sorted(ROOT.glob(f"{folder}/*.ipynb"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site_pages.build(folder)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """{path in the site: parsed page}"""
    return {path.relative_to(site).as_posix(): BeautifulSoup(path.read_text("utf-8"), "html.parser")
            for path in sorted(site.rglob("*.html"))}


def page_of(name):
    return name.replace(".ipynb", ".html")


def pictures_of(notebook):
    return [output.data["image/png"].replace("\n", "") for cell in notebook.cells for output in cell.get("outputs", ())
            if "image/png" in output.get("data", {})]


# ---- everything is there ------------------------------------------------------------------------------------------

def test_every_notebook_and_text_has_a_page_and_a_way_to_it(pages):
    assert {"index.html", "README.html", "docs/grading.html", *map(page_of, NOTEBOOKS)} <= set(pages)
    seen, waiting = set(), ["index.html"]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in seen:
            seen.add(page)
            waiting += [os.path.normpath(os.path.join(os.path.dirname(page), urlsplit(link["href"]).path))
                        for link in pages[page].find_all("a", href=True)]
    assert seen == set(pages)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_page_shows_what_its_notebook_holds(pages, name):
    page, notebook = pages[page_of(name)], read(ROOT / name)
    assert page.title.get_text() == notebook.cells[0].source.splitlines()[0].removeprefix("# ")
    shown = [block.get_text().strip() for block in page.select(".input_area")]
    assert shown == [cell.source.strip() for cell in notebook.cells if cell.cell_type == "code" and cell.source != BOOTSTRAP]
    printed = [output.text.strip() for cell in notebook.cells for output in cell.get("outputs", ())
               if output.output_type == "stream"]
    assert [block.get_text().strip() for block in page.select(".output_stdout")] == printed


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_page_shows_the_figures_of_its_notebook(pages, name):
    notebook, images = read(ROOT / name), pages[page_of(name)].find_all("img")
    assert [image["src"] for image in images] == [f"data:image/png;base64,{data}" for data in pictures_of(notebook)]
    for image in images:
        picture = Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
        assert picture.width >= 600
        assert len(image["alt"]) > 20 and not image["alt"].startswith("<")


def test_every_lesson_but_the_first_has_figures():
    lessons = [name for name in NOTEBOOKS if name.startswith("lessons/")]
    assert all(pictures_of(read(ROOT / name)) for name in lessons[1:])


def test_lessons_and_labs_are_a_chain_in_the_order_of_reading(pages):
    chain, at = [], "index.html"
    while following := pages[at].select_one("a[rel=next]"):
        before, at = at, os.path.normpath(os.path.join(os.path.dirname(at), following["href"]))
        back = pages[at].select_one("a[rel=prev]")
        assert bool(chain) == bool(back)
        assert not back or os.path.normpath(os.path.join(os.path.dirname(at), back["href"])) == before
        chain.append(at)
    assert chain == sorted(map(page_of, NOTEBOOKS), key=lambda page: (page.split("/")[1], page.startswith("labs")))


# ---- nothing is broken --------------------------------------------------------------------------------------------

def test_every_link_and_every_anchor_resolves(pages, site):
    ids = {name: {unquote(element["id"]) for element in page.find_all(id=True)} for name, page in pages.items()}
    for name, page in pages.items():
        for link in page.find_all("a", href=True):
            address = urlsplit(link["href"])
            if address.scheme:
                assert address.scheme in ("http", "https") and address.netloc, (name, link["href"])
                continue
            assert not address.path.endswith((".ipynb", ".md")) and not address.path.startswith("/"), (name, link["href"])
            target = (site / name).parent / unquote(address.path) if address.path else site / name
            assert target.is_file() and target.resolve().is_relative_to(site.resolve()), (name, link["href"])
            if address.fragment:
                there = target.resolve().relative_to(site.resolve()).as_posix()
                assert unquote(address.fragment) in ids[there], (name, link["href"])


def test_an_id_stands_once_in_a_page(pages):
    for name, page in pages.items():
        ids = [element["id"] for element in page.find_all(id=True)]
        assert len(ids) == len(set(ids)), (name, sorted(i for i in ids if ids.count(i) > 1))


def test_no_page_shows_an_error_or_a_place_on_the_machine_that_made_it(pages):
    places = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix, "/tmp/", "/home/", "/Users/"}
    for name, page in pages.items():
        assert not page.select(".output_error, .output_stderr"), name
        text = page.get_text()
        assert "Traceback (most recent call last)" not in text
        assert not [place for place in places if place in text], name


def test_nothing_is_fetched_from_the_network(pages):
    for name, page in pages.items():
        assert not page.find_all(["script", "link", "iframe", "object", "embed", "base", "video", "audio"]), name
        assert all(element["src"].startswith("data:") for element in page.find_all(src=True)), name
        assert not re.search(r"@import|url\(", " ".join(style.get_text() for style in page.find_all("style"))), name


# ---- formulas -----------------------------------------------------------------------------------------------------

def test_every_formula_is_mathml(pages):
    count = 0
    for name, page in pages.items():
        for formula in page.find_all("math"):
            ElementTree.fromstring(str(formula))
            assert formula.get_text().strip() and not re.search(r"\\[a-z]", formula.get_text()), (name, formula.get_text())
            count += 1
        for code in page(["pre", "code", "style"]):
            code.extract()
        assert "$" not in page.get_text(), name
    assert count > 30


# ---- the command, and a small course with faults ------------------------------------------------------------------

README = ("# A course\n\nWhat it is.\n\n## Install\n\nHow.\n\n## Lessons\n\n"
          "[one](lessons/01_x.ipynb#A-b), [licence](LICENSE)\n\n## End\n")


@pytest.fixture
def course(tmp_path):
    root = tmp_path / "course"
    (root / "lessons").mkdir(parents=True)
    (root / "README.md").write_text(README)
    (root / "LICENSE").write_text("free")
    cells = [v4.new_markdown_cell("# One\n\nA formula: $a^2$ costs \\$5.\n\n## A b\n\n[home](../README.md)"),
             v4.new_code_cell(BOOTSTRAP), v4.new_code_cell("'<b>'", outputs=[v4.new_output("stream", text="\x1b[31mred <i>")])]
    (root / "lessons" / "01_x.ipynb").write_text(dumps(v4.new_notebook(cells=cells)))
    return root


def test_make_site_begins_anew(tmp_path):
    shown = subprocess.run(["make", "--dry-run", "site"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *_, remove, make = shown.splitlines()
    assert remove == "rm -rf site" and make.endswith("-m utils.site_pages site")


def test_links_are_rewritten_and_other_files_come_along(course, tmp_path):
    made = site_pages.build(tmp_path / "out", course)
    assert [page.target for page in made] == ["index.html", "lessons/01_x.html", "README.html"]
    index, lesson = ((tmp_path / "out" / name).read_text() for name in ("index.html", "lessons/01_x.html"))
    assert 'href="lessons/01_x.html#A-b"' in index and "What it is." in index and "Install" not in index
    assert (tmp_path / "out" / "LICENSE").read_text() == "free"
    assert 'href="../README.html"' in lesson and 'id="A-b"' in lesson and "sys.path" not in lesson
    assert "<msup>" in lesson and "costs $5." in lesson
    assert "red &lt;i&gt;" in lesson and "\x1b" not in lesson


@pytest.mark.parametrize("file, text, words", [
    ("README.md", README + "[gone](docs/no.md)", "README.md: it links to docs/no.md, and there is no such file"),
    ("README.md", README + "[out](../secret)", "README.md: it links to ../secret, and there is no such file"),
    ("README.md", README.replace("Lessons", "Lectures"), "no section '## Lessons'"),
    ("CHANGELOG.md", "no title", "CHANGELOG.md: it has no title"),
])
def test_a_fault_is_named_with_its_file(course, tmp_path, capsys, monkeypatch, file, text, words):
    (tmp_path / "secret").write_text("not part of the course")
    (course / file).write_text(text)
    with pytest.raises(site_pages.SiteError, match=re.escape(words)):
        site_pages.build(tmp_path / "out", course)
    monkeypatch.setattr(site_pages.build, "__defaults__", (course,))
    assert site_pages.main([str(tmp_path / "out")]) == 1
    assert words in capsys.readouterr().err
