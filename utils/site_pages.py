"""The course as web pages: lessons and labs with their stored outputs, and the project's texts.

    python -m utils.site_pages site        writes site/index.html and the rest; `make site` calls it

A page needs no network and no script: figures lie in the page, formulas are MathML, which browsers draw themselves.
Links between notebooks and texts become links between pages. nbconvert makes the pages' bodies.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup
from jinja2 import Environment
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

from utils.grading.notebook import read
from utils.notebooks import BOOTSTRAP

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "docs/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")
INDEX_SECTION = "Lessons"          # the README's section that the first page shows, below the README's beginning
LAYOUT = Path(__file__).with_name("site_page.html")


class SiteError(Exception):
    """A page that cannot be made; the message names the file and says what is wrong with it."""


@dataclass(frozen=True)
class Page:
    """A source file, the page made from it (both relative, with /), the page's title and its HTML."""
    source: str
    target: str
    title: str
    body: str


def build(out: Path, root: Path = ROOT) -> list[Page]:
    """Write the pages of the course at `root` into the folder `out`; returns them, the first page first.

    Raises SiteError where a link leads to a file that does not exist.
    """
    lessons = [_notebook(root, path) for path in _reading_order(root)]
    texts = [_text(root, path) for pattern in TEXTS for path in sorted(root.glob(pattern))]
    pages = [_index(root, texts[0]), *lessons, *texts]
    targets = {page.source: page.target for page in [*texts, *lessons]}
    layout = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(LAYOUT.read_text("utf-8"))
    for page in pages:
        page, files = _with_links(root, page, targets)
        for name in [*files, page.target]:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copyfile(root / name, out / name)
        before, after = _neighbours(lessons, page)
        html = layout.render(page=page, before=before, after=after, texts=texts, notebook=page.source.endswith(".ipynb"),
                             colours=HtmlFormatter().get_style_defs(".highlight"),
                             to=lambda other, page=page: _relative(other, page.target))
        (out / page.target).write_text(html, encoding="utf-8")
    return pages


def _reading_order(root):
    """The notebooks as they are read: each lesson, then its lab."""
    return sorted([*root.glob("lessons/*.ipynb"), *root.glob("labs/*.ipynb")],
                  key=lambda path: (path.name, path.parent.name != "lessons"))


def _neighbours(pages, page):
    """The notebooks read before and after this one; the first page is read before all of them."""
    targets = [other.target for other in pages]
    if page.target == "index.html":
        return None, pages[0]
    if page.target not in targets:
        return None, None
    at = targets.index(page.target)
    return pages[at - 1] if at else None, pages[at + 1] if at + 1 < len(pages) else None


# ---- one page -----------------------------------------------------------------------------------------------------

class _Renderer(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML."""

    def block_math(self, body):
        return mathml(body.strip(), display="block")

    def inline_math(self, body):
        return mathml(body.strip())


def _html(markdown: str) -> str:
    return MarkdownWithMath(renderer=_Renderer(escape=False)).render(markdown)


def _notebook(root, path):
    notebook = read(path)
    # The bootstrap cell finds the course for a kernel; a page has none.
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip() != BOOTSTRAP]
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"alt": _description(output.data.get("text/plain", ""))}
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True,
                            filters={"markdown2html": _html})
    body, _ = exporter.from_notebook_node(notebook)
    return _page(root, path, body)


def _description(text):
    """What a screen reader says of a figure: a widget's sentence; a plain figure's text is its size, which says little."""
    return "Figure; the text beside it says what it shows" if text.startswith("<") else text


def _text(root, path):
    return _page(root, path, _html(path.read_text(encoding="utf-8")))


def _page(root, path, body):
    source = path.relative_to(root)
    heading = BeautifulSoup(body, "html.parser").find("h1")
    if heading is None:
        raise SiteError(f"{source}: it has no title; begin it with a line '# Title'.")
    return Page(source.as_posix(), source.with_suffix(".html").as_posix(), heading.get_text().removesuffix("¶"), body)


def _index(root, readme):
    """The first page: the README's beginning and its table of lessons."""
    beginning, *sections = re.split(r"^(?=## )", (root / readme.source).read_text(encoding="utf-8"), flags=re.MULTILINE)
    shown = [section for section in sections if section.startswith(f"## {INDEX_SECTION}\n")]
    if not shown:
        raise SiteError(f"{readme.source}: it has no section '## {INDEX_SECTION}', which the first page shows.")
    return replace(readme, target="index.html", body=_html(beginning + shown[0]))


# ---- links --------------------------------------------------------------------------------------------------------

def _with_links(root, page, targets):
    """The page with links to pages instead of sources, and the other files that it links to (they are copied)."""
    soup, files = BeautifulSoup(page.body, "html.parser"), []
    for link in soup.find_all("a", href=True):
        address = urlsplit(link["href"])
        if address.scheme or not address.path:
            continue
        name = Path(os.path.normpath(Path(page.source).parent / unquote(address.path))).as_posix()
        if name not in targets:
            if name.startswith("..") or not (root / name).is_file():
                raise SiteError(f"{page.source}: it links to {link['href']}, and there is no such file.")
            files.append(name)
        link["href"] = address._replace(path=_relative(targets.get(name, name), page.target)).geturl()
    return replace(page, body=str(soup)), files


def _relative(target, source):
    return Path(os.path.relpath(target, Path(source).parent)).as_posix()


def main(arguments: list[str] | None = None) -> int:
    """Build the pages into the folder that the command line names; returns 1 if a page cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m utils.site_pages", description="Make the course's web pages.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    try:
        pages = build(folder)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(pages)} pages; the first is {folder / pages[0].target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
