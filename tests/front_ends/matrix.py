"""Run lessons with the oldest and the newest PyTorch that the project allows, and as on Google Colab.

    python tests/front_ends/matrix.py [PYTHON ...]         `make matrix` calls it

Makes three environments in build/matrix: `floor`, `newest`, and `colab` with the packages of colab.txt. Of several
Pythons the first gets the floor, the last the newest, and one in the middle Colab's; without any, all get this one. An
environment is about 6 GB, since pip's PyTorch brings the CUDA libraries; one that exists already is used again.

nbval compares what is printed with what is stored, so a lesson says the same with every PyTorch.
"""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from utils.doctor import TORCH_CEILING, TORCH_FLOOR  # noqa: E402

BUILD = ROOT / "build" / "matrix"
LESSONS = sorted(path for path in (ROOT / "lessons").glob("*.ipynb") if not path.name.startswith("00"))
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "600",
         "--nbval-sanitize-with", "tests/front_ends/sanitize.cfg"]
VERSIONS = "import platform, torch; print(f'{platform.python_version():8} {torch.__version__:14}')"


def environment(name: str, python: str, *packages: str) -> Path:
    """The Python of the environment `name`, which is made with `python` if it does not exist, with these packages."""
    folder = BUILD / name
    if not (folder / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / "bin" / "python"
    subprocess.run([own, "-m", "pip", "install", "--quiet", *packages], check=True, cwd=ROOT)
    return own


def with_course(name: str, python: str, torch: str) -> Path:
    """An environment with this torch, the course, and the other packages as constraints.txt pins them."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch")]
    return environment(name, python, "--upgrade", torch, "--editable", ".", *pins)


def outcome(own: Path, name: str, *arguments, **variables) -> tuple[bool, str]:
    """Run pytest in a process; returns whether it passed, and pytest's last line. Its output is kept in build/matrix."""
    settings = {"MPLCONFIGDIR": str(BUILD / "matplotlib"), "IPYTHONDIR": str(BUILD / "ipython")} | variables
    done = subprocess.run([own, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=ROOT, text=True,
                          env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (BUILD / f"{name}.txt").write_text(done.stdout)
    return done.returncode == 0, done.stdout.strip().splitlines()[-1].strip("= ")


def runs(pythons: list[str]):
    """(environment, what, passed, pytest's last line) of every run, as it ends."""
    for name, python, torch in [("floor", pythons[0], f"torch=={TORCH_FLOOR}"),
                                ("newest", pythons[-1], f"torch>={TORCH_FLOOR},<{TORCH_CEILING}")]:
        own = with_course(name, python, torch)
        for lesson in LESSONS:
            yield own, lesson.stem, *outcome(own, f"{name}-{lesson.stem}", *NBVAL, lesson)
    own = environment("colab", pythons[len(pythons) // 2], "--requirement", "tests/front_ends/colab.txt")
    course = ["distributed-training-course", "nbval"]       # what the README's lines install, if they ran here before
    subprocess.run([own, "-m", "pip", "uninstall", "--quiet", "--yes", *course], check=True)
    yield own, "as on Colab", *outcome(Path(sys.executable), "colab", "tests/front_ends/test_colab.py",
                                       COURSE_COLAB_PYTHON=str(own))


def main(pythons: list[str]) -> int:
    """Run everything and print a line for each; returns 1 if something failed."""
    lines, failed = [], 0
    for own, what, passed, last in runs(pythons or [sys.executable]):
        versions = subprocess.run([own, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.strip("\n")
        lines.append(f"{own.parents[1].name:7} Python {versions} {what:22} {'passed' if passed else 'FAILED'}   {last}")
        print(lines[-1], flush=True)
        failed += not passed
    print(f"\n{len(lines) - failed} of {len(lines)} passed; what was printed is in {BUILD.relative_to(ROOT)}/*.txt")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
