import argparse
import doctest
from dataclasses import replace

import pytest

from utils.grading import reach
from utils.grading.commands import add_release_arguments, run_release
from utils.grading.errors import GradingError
from utils.grading.notebook import grade_id, read
from utils.grading.selfcheck import checks_to_run, mutants_of, read_mutant, self_check

from .course_fixture import CHECKS, MUTANTS, solution, write_course


def test_a_good_lab_has_no_problems(course):
    result = self_check(course)
    assert (result.questions, result.mutants, result.problems) == (2, 2, ())


def test_a_check_that_passes_on_the_blank_lab_is_found(tmp_path):
    weak = CHECKS.replace("        total = add(left, right)\n", "        total = left + right\n")
    problems = self_check(write_course(tmp_path, checks=weak)).problems
    assert "q1: the check passes on the blank lab ('q1: 3/3 checks passed'). It must raise." in problems
    assert any("q1_minus.py: q1 passes with this wrong answer" in problem for problem in problems)


@pytest.mark.parametrize(
    "name, text, words",
    [
        (
            "q1_loud.py",
            '"""expected 4"""\ndef add(left, right):\n    return left - right\n',
            "does not hold 'expected 4'",
        ),
        (
            "q1_right.py",
            '"""expected 3"""\ndef add(left, right):\n    return left + right\n',
            "passes with this wrong answer",
        ),
        ("q1_raises.py", '"""expected 3"""\n1 / 0\n', "the code itself raises ZeroDivisionError"),
        ("q9_other.py", '"""expected 3"""\nx = 1\n', "no check looks at 'q9-answer'"),
        (
            "q2_spills.py",
            '"""double(4) gave 0"""\nadd = lambda a, b: 0\ndef double(number):\n    return 0\n',
            "q2_spills.py: q1 fails too",
        ),
    ],
)
def test_a_mutant_that_does_not_behave_is_found(tmp_path, name, text, words):
    problems = self_check(write_course(tmp_path, mutants=MUTANTS | {name: text})).problems
    assert len(problems) == 1 and words in problems[0]


def test_a_mutant_that_ends_the_kernel_does_not_stop_the_others(tmp_path):
    deadly = '"""DeadKernelError"""\nimport os\ndef add(left, right):\n    os._exit(1)\n'
    result = self_check(write_course(tmp_path, mutants=MUTANTS | {"q1_deadly.py": deadly}))
    assert (result.mutants, result.problems) == (3, ())


def test_a_mutant_that_never_ends_is_stopped_at_the_checks_limit(tmp_path):
    notebook = solution()
    notebook.cells[4].metadata.course["timeout"] = 1
    slow = '"""TimeoutError"""\nimport time\ndef add(left, right):\n    time.sleep(60)\n'
    result = self_check(write_course(tmp_path, notebook, mutants=MUTANTS | {"q1_slow.py": slow}))
    assert result.problems == ()


def test_a_question_without_a_mutant_is_found(tmp_path):
    problems = self_check(write_course(tmp_path, mutants={"q1_minus.py": MUTANTS["q1_minus.py"]})).problems
    assert problems == ()  # q2 names q1's answer, so q1's mutant tries it as well
    notebook = solution()
    notebook.cells[-1].metadata.course["answers"] = ["q2-answer"]
    problems = self_check(
        write_course(tmp_path / "x", notebook, mutants={"q1_minus.py": MUTANTS["q1_minus.py"]})
    ).problems
    assert any(problem.startswith("q2: no mutant.") for problem in problems)


def test_a_mutant_file_needs_its_message_and_valid_code(tmp_path):
    (tmp_path / "q1_x.py").write_text("x = 1\n")
    with pytest.raises(GradingError, match="q1_x.py: a mutant is a docstring"):
        read_mutant(tmp_path / "q1_x.py")
    (tmp_path / "q1_x.py").write_text('"""m"""\nx = = 1\n')
    with pytest.raises(GradingError, match="q1_x.py, line 2"):
        read_mutant(tmp_path / "q1_x.py")


def call(root, *arguments):
    parser = argparse.ArgumentParser()
    add_release_arguments(parser)
    return run_release(parser.parse_args(["--root", str(root), *arguments]))


def test_the_command_writes_checks_and_bundles(course, tmp_path, capsys):
    assert call(tmp_path, "--check", "--stored") == 1
    assert (
        "labs/01_tiny.ipynb: differs from its solution. Run 'course release 01_tiny'."
        in capsys.readouterr().out
    )
    assert call(tmp_path, "--stored", "--self-check", "--bundle", str(tmp_path / "out.zip")) == 0
    said = capsys.readouterr().out
    assert (
        "labs/01_tiny.ipynb: written" in said
        and "2 wrong answers rejected (2 questions)" in said
        and "out.zip: 4 files" in said
    )
    assert call(tmp_path, "--check", "--stored", "labs/01_tiny.ipynb") == 0


def test_the_commands_exit_codes(course, tmp_path, capsys):
    assert call(tmp_path, "02_other") == 2
    assert "there is no solution for '02_other'. There are: 01_tiny." in capsys.readouterr().err
    assert call(tmp_path / "utils") == 2
    (tmp_path / "solutions" / "mutants" / "01_tiny" / "q1_right.py").write_text(
        '"""x"""\ndef add(a, b):\n    return a + b\n'
    )
    assert call(tmp_path, "--stored", "--self-check") == 3
    course.write_text("{")
    assert call(tmp_path) == 1


def test_only_checks_that_a_mutant_can_reach_are_run(course):
    solved, by_name = read(course), {mutant.path.name: mutant for mutant in mutants_of(course)}
    tried = {
        name: [grade_id(cell) for cell in checks_to_run(mutant, solved)] for name, mutant in by_name.items()
    }
    assert tried == {"q1_minus.py": ["q1-check"], "q2_forgets_zero.py": ["q2-check"]}
    loud = replace(by_name["q2_forgets_zero.py"], code="print(1)\ndef double(number): return 0")
    assert [grade_id(cell) for cell in checks_to_run(loud, solved)] == ["q1-check", "q2-check"]


def test_names_are_followed_through_cells():
    cells = ["import math as m", "def g(): return f()", "def h(): return g()"]
    assert reach.reaches({"f"}, "check(h)", cells) and not reach.reaches({"f"}, "check(k)", cells)
    assert reach.reaches({"m"}, "check(m.pi)", cells)
    assert (
        not reach.only_defines("x.y = 1")
        and not reach.only_defines("for i in x: pass")
        and not reach.only_defines("(")
    )
    assert doctest.testmod(reach).failed == 0
