"""The `course` command. Each sub-command loads what it needs when it runs, so `course --help` is quick."""
import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run `course` with `arguments` (the command line's if None); returns the exit code."""
    parser = argparse.ArgumentParser(prog="course", description="Distributed training, on real ranks.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary, add_arguments, run in COMMANDS:
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add_arguments(command)
        command.set_defaults(run=run)
    chosen = parser.parse_args(arguments)
    if not hasattr(chosen, "run"):
        parser.print_help()
        return 2
    try:
        return chosen.run(chosen)
    except OSError as error:  # no disk, no memory, no rights: the machine's trouble and not the program's
        from utils.ranks.refusals import refusal
        print(f"course: {refusal(error)}.", file=sys.stderr)
        return 2


def _no_arguments(parser):
    pass


def _doctor(chosen) -> int:
    from utils import doctor
    return doctor.main()


def _of_grading(name):
    """The two functions of a command that `utils.grading.commands` holds, loaded when they are called."""
    def add_arguments(parser):
        from utils.grading import commands
        getattr(commands, f"add_{name}_arguments")(parser)

    def run(chosen):
        from utils.grading import commands
        return getattr(commands, f"run_{name}")(chosen)

    return add_arguments, run


COMMANDS = [
    ("doctor", "tell what this machine can do and which path the course takes on it", _no_arguments, _doctor),
    ("check", "run your lab and say what each question needs", *_of_grading("check")),
    ("grade", "grade a folder of submitted labs", *_of_grading("grade")),
    ("release", "write labs/ from solutions/, or check that they are in step", *_of_grading("release")),
]

if __name__ == "__main__":
    sys.exit(main())
