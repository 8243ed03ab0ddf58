"""Lab 03's own tests; what holds for every lab is in test_every_lab.py."""

import pytest
from answers import Answers

from utils.checks import tensor as check

ANSWERS = Answers("03_megatron_ffn_split")

pytestmark = pytest.mark.slow


def test_everything_prints_a_line_per_question(capsys):
    namespace = ANSWERS.right()
    namespace["g"] = ANSWERS.blank()["g"]
    del namespace["elements_sent"]
    check.everything(namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "q1: passed"
    assert lines[1] == "q2: not yet: There is no answer yet: forward raised NotImplementedError."
    assert lines[2:6] == ["q3: passed", "q4: passed", "q5: passed", "q6: passed"]
    assert lines[6] == "q7: not yet: elements_sent is not defined: run the cell of its exercise."
