"""What a reader meets in the lessons: words before their meaning, links, references, figures, repetitions.

What the code of a lesson computes is compared by nbval; here stands what its text must keep.
"""
import functools
import re
from pathlib import Path

import pytest

from utils.grading.notebook import read

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))
NOTEBOOKS = [*LESSONS, *sorted((ROOT / "labs").glob("*.ipynb"))]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_ANATOMY = [path for path in LESSONS if not path.name.startswith("00")]

# Every word of the course that a first course on deep learning does not teach, as its lesson writes it.
VOCABULARY = """
world; world size; collective; group; all-reduce; broadcast; reduce-scatter; all-gather; all-to-all; point-to-point;
verdict; backend; NCCL; gloo; data parallelism; parameter server; replica; shard; chunk; deadlock; tied; frozen; latency;
bandwidth; InfiniBand; algbw; busbw; hook; bucket; future; gradient accumulation; micro-batch; activation; optimizer state;
fake tensor; bf16; mixed precision; master copy; momentum; variance; hidden size; embedding; output head; logit; view;
sharding; storage; fused attention; activation checkpointing; recomputation; FSDP2; DTensor; CPU offload; LoRA; QLoRA; NVLink;
synchronisation; column-parallel; row-parallel; grouped-query attention; throughput; weak scaling; DeviceMesh; bubble; warm-up;
drain; in flight; flush; weight stashing; ZB-V; DualPipe; innermost; outermost; stride; PCIe; agent
""".replace("\n", " ").strip().split("; ")


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


def markdown_cells(path):
    return [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]


def paragraphs(source):
    """The paragraphs of a cell as a reader goes through them: no headings, no code, no tables."""
    source = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", source):
        text = "\n".join(line for line in paragraph.splitlines() if not line.startswith(("#", "|")))
        if text.strip():
            yield re.sub(r"`[^`]*`", "`", text)


@functools.cache
def taught():
    """(lesson, paragraph) in the order of reading, without what looks ahead or back: aims, map, glossary, questions, sources."""
    return [(path.stem, paragraph) for path in LESSONS for source in markdown_cells(path)[1:]
            if not re.match(r"## (The map|Glossary|Questions|References)", source) for paragraph in paragraphs(source)]


def mentions(term):
    return re.compile(rf"(?<![\w-]){re.escape(term)}(s|es)?(?![\w-])", re.IGNORECASE if term.islower() else 0)


# ---- words --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("term", VOCABULARY)
def test_a_word_is_explained_where_it_is_first_used(term):
    """The paragraph that uses a word first sets it in bold or italics, since it says what the word means."""
    lesson, first = next((lesson, text) for lesson, text in taught() if mentions(term).search(text))
    marked = re.findall(r"\*+([^*]+)\*+", first)
    assert any(mentions(term).search(words) for words in marked), f"{lesson} uses {term!r} before it says what it is: {first}"


def glossary():
    """{English name: (Korean, symbol, meaning)} of lesson 00."""
    cell = next(source for source in markdown_cells(LESSONS[0]) if source.startswith("## Glossary"))
    rows = [[entry.strip() for entry in line.strip("|").split("|")] for line in cell.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[1:]}


def test_every_glossary_entry_is_complete():
    assert len(glossary()) > 40
    for name, (korean, _, meaning) in glossary().items():
        assert re.search("[가-힣]", korean) and len(meaning) > 10, name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_letter_of_a_formula_is_a_word_of_the_text(path):
    """Each letter of a displayed formula is named in the text up to there, or stands alone on the left of its own formula."""
    text = ""
    for source in markdown_cells(path):
        text += re.sub(r"\$\$.*?\$\$", "", source, flags=re.DOTALL)
        for formula in re.findall(r"\$\$(.*?)\$\$", source, re.DOTALL):
            bare = re.sub(r"\\(text|mathrm|begin|end)\{[^}]*\}|\\[A-Za-z]+", " ", formula)
            defined = {*re.findall(r"(?:^|\s)([A-Z]) =", bare), "e"}               # Euler's number needs no word
            unnamed = {letter for letter in set(re.findall(r"[A-Za-zΨψ]", bare)) - defined
                       if not re.search(rf"(?<![A-Za-z]){letter}(?![A-Za-z])", text)}
            assert not unnamed, formula


# ---- links and references -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", [*NOTEBOOKS, *TEXTS], ids=name_of)
def test_links_within_the_project_lead_somewhere(path):
    sources = markdown_cells(path) if path.suffix == ".ipynb" else [path.read_text(encoding="utf-8")]
    targets = [target for source in sources for target in re.findall(r"\]\(([^)\s]+)\)", source)]
    broken = [target for target in targets
              if not re.match(r"[a-z]+:", target) and not (path.parent / target.partition("#")[0]).exists()]
    assert broken == []


@pytest.mark.parametrize("path", [*NOTEBOOKS, *TEXTS], ids=name_of)
def test_files_that_a_text_names_are_there(path):
    sources = markdown_cells(path) if path.suffix == ".ipynb" else [path.read_text(encoding="utf-8")]
    named = {name for source in sources
             for name in re.findall(r"`((?:utils|tests|docs|benchmarks|docker)/[\w/.-]+|utils(?:\.\w+)+)`", source)}
    missing = []
    for name in named:
        file = ROOT / name if "/" in name else ROOT.joinpath(*name.split("."))
        candidates = [file, file.with_suffix(".py"), file.parent, file.parent.with_suffix(".py")]  # or a name within one
        if not any(candidate.exists() for candidate in (candidates if "/" not in name else candidates[:1])):
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("path", LESSONS, ids=name_of)
def test_a_section_that_a_lesson_points_to_is_there(path):
    cells = markdown_cells(path)
    headings = {int(number) for source in cells for number in re.findall(r"^## (\d+) ·", source, re.MULTILINE)}
    assert headings == set(range(1, len(headings) + 1))
    others = r"(?:'s |paper's |his |their |of the paper.{0,20})"
    own = [text for source in cells for text in paragraphs(re.sub(rf"{others}sections? [\d.]+", "", source))]
    groups = [group for text in own for group in re.findall(r"sections? (\d+(?:(?:, | and | to )\d+(?![.\d]))*)", text)]
    pointed = {int(number) for group in groups for number in re.findall(r"\d+", group)}
    assert pointed <= headings


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_lesson_or_lab_that_a_text_points_to_is_on_the_map(path):
    pointed = {number for source in markdown_cells(path) for number in re.findall(r"\b(?:lessons?|labs?) (\d+)", source)}
    assert pointed <= {f"{number:02}" for number in range(10)}


# ---- the shape of a lesson ----------------------------------------------------------------------------------------

ANATOMY = [r"^# \d\d · ", r"^## 1 · The problem", r"^## 2 · Predict first", r"^## 3 · The naive way",
           r"^## \d+ · (The idea by hand|All-reduce by hand|By hand)", r"^## \d+ · (When to use)", r"\*\*Limits\.\*\*",
           r"\*\*What this lesson left out\.\*\*", r"^## Questions", r"^## References", r"\*\*Next:\*\*"]
SOMEWHERE = [r"^## \d+ · (Predicted|What each dimension sends)", r"^## \d+ · The same .* as one process",
             r"^## \d+ · Break it on purpose", r"^## \d+ · The production form",
             r"^## \d+ · The (paper's|papers'|published) (tables?|figure)"]


@pytest.mark.parametrize("path", WITH_ANATOMY, ids=name_of)
def test_a_lesson_has_all_its_parts(path):
    text = "\n".join(markdown_cells(path))
    places = [match.start() if (match := re.search(part, text, re.MULTILINE)) else part for part in ANATOMY]
    assert [place for place in places if isinstance(place, str)] == []
    assert places == sorted(places)
    assert [part for part in SOMEWHERE if not re.search(part, text, re.MULTILINE)] == []


@pytest.mark.parametrize("path", LESSONS, ids=name_of)
def test_a_lesson_begins_with_what_it_takes(path):
    header = markdown_cells(path)[0]
    assert "After this lesson you can" in header
    assert re.search(r"^\| reading time \| ranks \| memory \| before this \|$", header, re.MULTILINE)


@pytest.mark.parametrize("path", LESSONS, ids=name_of)
def test_every_question_has_a_folded_answer(path):
    questions = next(source for source in markdown_cells(path) if source.startswith("## Questions"))
    numbers = re.findall(r"^(\d+)\. ", questions, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)] and len(numbers) >= 4
    assert questions.count("<details><summary>Answer</summary>") == questions.count("</details>") == len(numbers)


def test_no_two_places_say_the_same():
    """A paragraph that stands twice belongs into one of the two places."""
    seen, twice = {}, []
    for path in LESSONS:
        for source in markdown_cells(path)[1:]:
            for paragraph in paragraphs(source):
                words = " ".join(paragraph.split())
                if len(words) > 90 and not words.startswith("- "):              # lists of references may share a line
                    if words in seen:
                        twice.append((seen[words], path.stem, words))
                    seen[words] = path.stem
    assert twice == []


# ---- figures and outputs ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", LESSONS, ids=name_of)
def test_a_figure_says_what_its_axes_are(path):
    """A cell that makes its own axes names both, or has none; a drawing function of utils is tested there."""
    for cell in read(path).cells:
        if cell.cell_type == "code" and "subplots(" in cell.source:
            drawn = ".timeline(" in cell.source or 'axis("off")' in cell.source
            assert drawn or ("xlabel" in cell.source and "ylabel" in cell.source), cell.source.splitlines()[0]


@pytest.mark.parametrize("path", LESSONS, ids=name_of)
def test_a_picture_has_words_beside_it(path):
    """The text before or after a figure speaks of it: no two figures without a paragraph at either side."""
    cells = read(path).cells
    pictures = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and
                any("image/png" in output.get("data", {}) for output in cell.outputs)]
    assert all("markdown" in (cells[i - 1].cell_type, cells[i + 1].cell_type) for i in pictures)


COURSE_FILES = {path.name for path in (ROOT / "utils").rglob("*.py")}


@pytest.mark.parametrize("path", [*NOTEBOOKS, *sorted((ROOT / "solutions").glob("*.ipynb"))], ids=name_of)
def test_no_stored_output_has_a_line_number_of_the_course_s_own_code(path):
    """It would be wrong after the next edit of that file (utils.ranks.wording tells such places by their function)."""
    stored = [str(output) for cell in read(path).cells if cell.cell_type == "code" for output in cell.outputs]
    found = [name for text in stored for name in re.findall(r'(\w+\.py)(?:", | )line \d+', text) if name in COURSE_FILES]
    assert found == []
