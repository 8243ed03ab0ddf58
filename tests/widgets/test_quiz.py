import pytest

from utils.widgets.frame import LIVE_VIEW
from utils.widgets.quiz import predict


def number_quiz(**options):
    return predict("How many?", answer=lambda: 1500, unit="elements", explanation="{answer:,.0f} of <each>.", **options)


def test_the_answer_is_hidden_until_the_first_attempt():
    quiz = number_quiz()
    assert quiz.verdict.value == "" and quiz.attempt is None
    quiz.entry.value = "2,000"
    assert quiz.attempt == 2000
    assert "You said 2,000 elements, 1.3 times the answer. The answer is 1,500 elements." in quiz.verdict.value
    assert "1,500 of &lt;each&gt;." in quiz.verdict.value


@pytest.mark.parametrize("typed, verdict", [("1500", "Right."), (" 1.5e3 ", "Right."), ("1_500", "Right."),
                                            ("1,450", "Close enough: 1,500 elements."), ("1400", "You said 1,400 elements")])
def test_numbers_as_readers_type_them(typed, verdict):
    quiz = number_quiz()
    quiz.entry.value = typed
    assert verdict in quiz.verdict.value


def test_the_tolerance_decides_what_is_close():
    assert "You said" in attempt(number_quiz(tolerance=0.01), "1450")
    assert "Close enough" in attempt(number_quiz(tolerance=0.1), "1400")


def attempt(quiz, entry):
    quiz.entry.value = entry
    return quiz.verdict.value


@pytest.mark.parametrize("typed", ["many", "nan", "inf"])
def test_what_is_no_number_costs_no_attempt(typed):
    quiz = number_quiz()
    assert "Write a number such as 1500 or 1.5e3" in attempt(quiz, typed)
    assert quiz.attempt is None and "1,500" not in quiz.verdict.value


def test_choices():
    quiz = predict("Which?", answer="tree", choices=["ring", "tree"], explanation="Fewer steps.")
    quiz.button.click()
    assert quiz.attempt is None and "Choose one first" in quiz.verdict.value
    quiz.entry.value = "ring"
    quiz.button.click()
    assert "You chose ring. The answer is: tree. Fewer steps." in quiz.verdict.value
    quiz.entry.value = "tree"
    quiz.button.click()
    assert "Right. Fewer steps." in quiz.verdict.value


def test_zero_as_the_answer_has_no_ratio():
    assert "You said 3. The answer is 0." in attempt(predict("How many?", answer=0), "3")
    assert "Right." in attempt(predict("How many?", answer=0), "0")


def test_without_a_kernel_the_answer_is_folded_under_the_question():
    data = predict("Is 1 < 2?", answer="yes", choices=["yes", "no"])._repr_mimebundle_()
    assert set(data) == {LIVE_VIEW, "text/html", "text/plain"}
    assert data["text/html"] == ("<div><b>Predict first.</b> Is 1 &lt; 2?<ul><li>yes</li><li>no</li></ul>"
                                 "<details><summary>The answer</summary>yes.</details></div>")
    assert "<summary>The answer</summary>1,500 elements. 1,500 of" in number_quiz()._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("options, sentence", [
    ({"answer": "star", "choices": ["ring", "tree"]}, "one of the choices"),
    ({"answer": "many"}, "must be a number"),
    ({"answer": True}, "must be a number"),
    ({"answer": 1, "tolerance": 2}, "tolerance is a part"),
])
def test_a_question_that_cannot_be_answered_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict("?", **options)


def test_the_answer_is_computed_once():
    calls = []
    quiz = predict("?", answer=lambda: calls.append(1) or 7)
    attempt(quiz, "7")
    quiz._repr_mimebundle_()
    assert calls == [1]
