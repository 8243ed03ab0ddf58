"""Where there is no box, nobody's attacks run, and a report says so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_BOX = """
import sys
from utils.grading import box
box.level = lambda: ("none", "no namespaces here")
import pytest
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", "tests/grading/test_class.py"]))
"""


def test_the_class_with_attacks_does_not_run_without_a_box_and_the_report_says_so():
    ran = subprocess.run(
        [sys.executable, "-c", NO_BOX], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 5 and " passed" not in ran.stdout  # pytest's code for "nothing ran"
    assert "NOT TESTED: whole classes with attacks" in ran.stdout and "no namespaces here" in ran.stdout
    assert "1 warning" in ran.stdout  # shown without any option too
