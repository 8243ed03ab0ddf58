"""Measure everything and write it down.

    python -m benchmarks [--quick] [--output benchmarks/RESULTS.md] [name ...]

Each benchmark runs in a process of its own, one after the other.
"""

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

from benchmarks import summary
from benchmarks.machine import Spent, Stopwatch, adopt_orphans, describe, load
from benchmarks.summary import RESULTS
from utils.grading.notebook import write

NAMES = ("launch", "all_reduce", "recorder", "pipeline", "theory", "widgets", "course", "grading", "first_picture")
BUSY = 0.1  # a share of the machine used by other programs from which the figures are doubtful
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the benchmarks and write the file; returns 1 if one of them failed, which then stands in its place."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"only these: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that all works, not for figures")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    adopt_orphans()
    parts, failed, begin = [opening(chosen.quick)], False, Stopwatch()
    for name in chosen.names or NAMES:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        watch = Stopwatch()
        finished = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *["--quick"] * chosen.quick], cwd=ROOT,
                                  capture_output=True, text=True, check=False)
        spent = watch.spent()
        if finished.returncode:
            failed = True
            print(f"failed:\n{finished.stderr}", file=sys.stderr)
            parts.append(f"### {name}\n\n**Not measured: it failed.**")
        else:
            print(f"{spent.wall:.0f} s", file=sys.stderr)
            parts += [finished.stdout.strip(), closing(spent)]
    parts.append(f"All of it took {begin.spent().wall / 60:.0f} minutes.")
    write(chosen.output, "\n\n".join(parts) + "\n")
    print(f"Written to {chosen.output}", file=sys.stderr)
    if chosen.output == RESULTS and not (failed or chosen.names or chosen.quick):
        summary.main()
    return int(failed)


def opening(quick: bool) -> str:
    """What stands above the tables."""
    made = "`make bench QUICK=1`, with too few repetitions for figures" if quick else "`make bench`"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (f"# Benchmarks\n\nWritten by {made} on {today}. Load averages before it began: {load()}.\n\n"
            f"{describe().markdown()}")


def closing(spent: Spent) -> str:
    """What stands below a benchmark's tables: how long they took, and whether the machine was free for them."""
    share = spent.share_of_others
    busy = "**The machine was busy; do not take these figures for what they are on a quiet one.** " if share > BUSY else ""
    return (f"*{busy}Measured in {spent.wall:.0f} s, while other programs used {100 * share:.0f} % of the processor time "
            "that the machine has.*")


if __name__ == "__main__":
    sys.exit(main())
