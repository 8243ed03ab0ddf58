"""Predict first: a question that the reader answers before any code tells.

    predict("How many elements does each rank send?", answer=lambda: 2 * 1000 * 3 / 4, unit="elements",
            explanation="{answer:,.0f}: each rank sends every chunk but one, twice.")

The answer is computed, never typed: a value, or a function that is called once, when the question is shown. It
becomes visible after the reader's attempt; without a kernel it is folded under the question (`<details>`), so the
stored notebook and a page made from it hold the question and the answer too.
"""
import html
import math

import ipywidgets

from utils.widgets import style
from utils.widgets.frame import with_live_view


def predict(question: str, answer, explanation: str = "", choices=None, unit: str = "", tolerance: float = 0.05):
    """Show a question; after the reader's attempt, show the answer and why.

    answer       the right number or, with `choices`, the right one of them; or a function without arguments
                 that returns it
    explanation  shown with the answer; {answer} in it stands for the answer and takes a format: {answer:,.0f}
    choices      a list of texts or values to choose from; None: the reader types a number
    unit         of the number, such as "elements" or "GB"
    tolerance    a number this close to the answer counts as right, as a part of the answer

    Returns the widget. Raises ValueError for an answer that is not among the choices or not a number.
    """
    return Quiz(question, answer() if callable(answer) else answer, explanation, choices, unit, tolerance)


class Quiz(ipywidgets.VBox):
    """What `predict` returns. `attempt` is the reader's last answer, None before the first."""

    def __init__(self, question, answer, explanation, choices, unit, tolerance):
        _check(answer, choices, tolerance)
        self.question, self.answer, self.unit, self.tolerance, self.attempt = question, answer, unit, tolerance, None
        self.explanation = explanation.format(answer=answer)
        self.entry = _choice(choices) if choices else ipywidgets.Text(
            placeholder="your number", description="I say", continuous_update=False, layout={"width": "260px"})
        self.button = ipywidgets.Button(description="Check", tooltip="Compare with the answer", layout={"width": "auto"})
        self.verdict = ipywidgets.HTML()
        row = ipywidgets.HBox([self.entry, *([ipywidgets.Label(unit)] if unit else []), self.button],
                              layout={"flex_flow": "row wrap", "align_items": "center"})
        super().__init__([ipywidgets.HTML(f"<b>Predict first.</b> {html.escape(question)}"), row, self.verdict],
                         layout={"border_left": f"4px solid {style.colour('parameters')}", "padding": "2px 0 2px 12px"})
        self.button.on_click(lambda button: self.check())
        if not choices:
            self.entry.observe(lambda change: self.check(), "value")  # Enter in the field

    def check(self) -> None:
        """Compare the reader's answer with the right one and show both, with the explanation."""
        try:
            attempt = self.entry.value if isinstance(self.entry, ipywidgets.RadioButtons) else _number(self.entry.value)
        except ValueError as error:
            self._show(str(error))
            return
        if attempt is None:
            self._show("Choose one first: a wrong bet teaches more than none.")
            return
        self.attempt = attempt
        self._show(f"{self._judge(attempt)} {self.explanation}".strip())

    def _judge(self, attempt):
        if isinstance(self.entry, ipywidgets.RadioButtons):
            return "Right." if attempt == self.answer else f"You chose {attempt}. The answer is: {self.answer}."
        answer = f"{self._number_text(self.answer)}"
        if math.isclose(attempt, self.answer, rel_tol=self.tolerance):
            return "Right." if attempt == self.answer else f"Close enough: {answer}."
        ratio = f", {attempt / self.answer:.2g} times the answer" if self.answer else ""
        return f"You said {self._number_text(attempt)}{ratio}. The answer is {answer}."

    def _number_text(self, number):
        return f"{number:,.6g} {self.unit}".strip()

    def _show(self, text):
        self.verdict.value = f'<div role="status" style="line-height: 1.4">{html.escape(text)}</div>'

    def _repr_mimebundle_(self, **kwargs):
        answer = self.answer if isinstance(self.entry, ipywidgets.RadioButtons) else self._number_text(self.answer)
        choices = "".join(f"<li>{html.escape(str(choice))}</li>" for choice in getattr(self.entry, "options", ()))
        folded = f"<details><summary>The answer</summary>{html.escape(f'{answer}. {self.explanation}'.strip())}</details>"
        text = f"<b>Predict first.</b> {html.escape(self.question)}{f'<ul>{choices}</ul>' if choices else ''}{folded}"
        return with_live_view(self, {"text/html": f"<div>{text}</div>", "text/plain": f"Predict first. {self.question}"})


def _check(answer, choices, tolerance):
    if choices:
        if answer not in choices:
            raise ValueError(f"The answer must be one of the choices {list(choices)!r}, but is {answer!r}.")
    elif isinstance(answer, bool) or not isinstance(answer, (int, float)) and not hasattr(answer, "__float__"):
        raise ValueError(f"The answer must be a number where there are no choices, but is {answer!r}.")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is a part of the answer, from 0 to below 1, but {tolerance!r} was given.")


def _choice(choices):
    return ipywidgets.RadioButtons(options=list(choices), value=None, layout={"width": "auto", "margin": "0 20px 0 0"})


def _number(text):
    """Read what a reader may type for a number: 1500, 1,500, 1.5e3."""
    try:
        number = float(text.replace(",", "").replace("_", "").replace(" ", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"Write a number such as 1500 or 1.5e3{f', not {text!r}' if text.strip() else ''}.")
    return number
