"""A student's feedback as a page: what was asked, what happened, a hint, and the student's own code."""

from __future__ import annotations

from jinja2 import Environment

from utils.grading.batch import Row

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width">
<title>{{ lab }}: {{ row.student }}</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
 table { border-collapse: collapse } td, th { text-align: left; padding: .2rem 1rem .2rem 0 }
 h2 { border-top: 1px solid #ddd; padding-top: 1rem } pre { background: #f6f6f4; padding: .7rem; overflow: auto }
 .passed { color: #00674f } .other { color: #9c3a00 } .score { font-size: 1.4rem }
</style>
</head>
<body>
<h1>{{ lab }}</h1>
<p>{{ row.student }}</p>
<p class="score">{{ "%g"|format(row.score) }} of {{ "%g"|format(possible) }} points</p>
{% if row.penalty %}<p>{{ "%g"|format(row.grade.score) }} points before the deduction of
{{ "%.0f"|format(100 * row.penalty) }} % for handing in late.</p>{% endif %}
{% for note in row.grade.notes + row.comments %}<p>{{ note }}</p>{% endfor %}
<table>
<tr><th>Question</th><th>Points</th><th>Result</th></tr>
{% for q in row.grade.questions %}<tr><td>{{ q.name }}</td><td>{{ "%g"|format(q.score) }} of {{ "%g"|format(q.points) }}</td>
<td class="{{ 'passed' if q.state == 'passed' else 'other' }}">{{ words.get(q.state, q.state) }}</td></tr>
{% endfor %}</table>
{% for q in row.grade.questions %}
<h2>{{ q.name }}: {{ "%g"|format(q.score) }} of {{ "%g"|format(q.points) }}</h2>
{% if asked.get(q.name) %}<pre>{{ asked[q.name] }}</pre>{% endif %}
{% if q.message %}<p class="other">{{ q.message }}</p>{% endif %}
{% if q.hint %}<p><b>Hint.</b> {{ q.hint }}</p>{% endif %}
{% if q.checks %}<ul>{% for check in q.checks %}<li class="{{ 'passed' if check.passed else 'other' }}">
{{ "passed" if check.passed else "failed" }}: {{ check.name }}{% if check.message and not check.hidden and not check.passed %}:
{{ check.message }}{% endif %}</li>{% endfor %}</ul>{% endif %}
{% if q.code %}<p>Your answer:</p><pre>{{ q.code[:20000] }}</pre>{% endif %}
{% if q.stdout and q.state != 'passed' %}<p>What it printed:</p><pre>{{ q.stdout[:4000] }}</pre>{% endif %}
{% endfor %}
</body>
</html>
"""
_WORDS = {
    "passed": "passed",
    "failed": "not yet right",
    "stopped": "was stopped",
    "blank": "not answered",
    "missing": "not found",
    "mismatch": "partly right",
}


def feedback_html(row: Row, lab: str, asked: dict[str, str]) -> str:
    """Return a student's feedback as HTML; every text is escaped and the page may load or run nothing.

    Arguments:
        row: the student.
        lab: the lab's name.
        asked: for each question, the check's code that the student knows from the lab.
    """
    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    possible = sum(question.points for question in row.grade.questions)
    return page.render(row=row, lab=lab, asked=asked, possible=possible, words=_WORDS) + "\n"
