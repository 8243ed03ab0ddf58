import csv
import io

from utils.grading.batch import Row
from utils.grading.feedback import feedback_html
from utils.grading.grade import Grade, QuestionGrade, SubCheck
from utils.grading.outputs import feedback_text, file_name, grades_csv

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def row(student="ann", source="ann.ipynb", **question):
    """Return a student's row with one question of 3 points."""
    fields = {
        "name": "q1",
        "points": 3,
        "score": 1.5,
        "state": "mismatch",
        "message": "m",
        "code": "x = 1",
    } | question
    grade = Grade("ok", (QuestionGrade(**fields),), ("late", "mismatch"), ("a note",))
    return Row(student, grade, 90, 0.1, 1.35, source, "0" * 64, "v1", comments=("by hand",))


def test_the_table_can_be_read_back():
    odd = row(source='a,"b"\nc.ipynb')
    (line,) = csv.DictReader(io.StringIO(grades_csv([odd], ["q1"], [3])))
    assert (line["student_id"], line["score"], line["raw_score"], line["q1"]) == ("ann", "1.35", "1.5", "1.5")
    assert line["submission"] == 'a,"b" c.ipynb' and line["flags"] == "late mismatch"


def test_a_spreadsheet_runs_nothing():
    for start in "=+-@\t":
        (line,) = csv.DictReader(
            io.StringIO(grades_csv([row(source=f"{start}cmd|'/c calc'!A0.ipynb")], ["q1"], [3]))
        )
        assert line["submission"].startswith("'" + start)


def test_a_page_shows_markup_as_text():
    checks = (
        SubCheck("small", False, EVIL),
        SubCheck("secret", False, "the hidden input was 7", hidden=True),
    )
    page = feedback_html(
        row(code=EVIL, message=EVIL, stdout=EVIL, hint=EVIL, checks=checks), EVIL, {"q1": EVIL}
    )
    assert "<script" not in page and "<img" not in page and "onerror=alert(1)&gt;" in page
    assert "{{ 7 * 7 }}" in page and "49" not in page.replace("0349", "")
    assert "default-src 'none'" in page and "secret" in page and "hidden input" not in page


def test_the_text_says_the_same():
    text = feedback_text(row(hint="look", checks=(SubCheck("secret", False, "7", hidden=True),)), "01_tiny")
    assert "Score: 1.35 of 3" in text and "Before the deduction of 10% for handing in late: 1.5" in text
    assert "q1: 1.5 of 3  (mismatch)" in text and "Hint: look" in text and "failed  secret\n" in text
    assert "a note" in text and "by hand" in text


def test_a_file_name_stays_in_its_folder():
    assert "/" not in file_name("../../x", ".html") and file_name("ann", ".txt") == "ann.txt"
