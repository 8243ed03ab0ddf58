"""What a student does first, again and again while the machine changes: four ranks, a widget's button, the doctor.

    python student.py COURSE

For every line of JSON that comes in, {"shell": …, "environment": {…}, "world_size": …, "launches": …}, it changes the machine
by the shell command and its own variables, does what a student does, and answers with one line of JSON.
"""
import json
import os
import subprocess
import sys

COURSE = sys.argv[1]
sys.path[:0] = [COURSE, os.path.join(COURSE, "tests", "hostile")]
sys.stdout, answers = sys.stderr, sys.stdout


def tell(action, *arguments):
    """What a notebook shows of it: the value, or the error's text."""
    try:
        return action(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def launches(world_size, times):
    from ranks_work import total

    from utils import launch
    sums = []
    for _ in range(times):
        sums += launch(total, world_size=world_size, timeout=60, echo=False).results
    return sorted(set(sums))


def press_the_button():
    from utils.widgets.all_reduce import ring_steps
    widget = ring_steps()
    thread = widget.run()
    if thread is not None:
        thread.join()
    return "measured" if widget.runs else widget.note.value


def ask_the_doctor():
    from utils import doctor
    diagnosis = doctor.examine(doctor.gather(try_launch=False))
    return {finding.subject: [finding.level, finding.text, finding.remedy] for finding in diagnosis.findings}


def main():
    for line in sys.stdin:
        told = json.loads(line)
        for name, value in told["environment"].items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        subprocess.run(["sh", "-ec", told["shell"]], check=True)
        answer = {"ranks": tell(launches, told["world_size"], told["launches"]), "widget": tell(press_the_button),
                  "doctor": tell(ask_the_doctor)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
