"""What all tests share: a folder for temporary files per worker, and no time limits that a busy machine would overrun."""
import os
import shutil
import tempfile

from hypothesis import settings

settings.register_profile("course", deadline=None)
settings.load_profile("course")
os.environ.setdefault("COURSE_TIMEOUT", "300")  # a run that hangs is ended; one on a busy machine is not
for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(name, None)  # a make that a test calls is no part of the make that runs the tests
WORKER = os.environ.get("PYTEST_XDIST_WORKER")


def pytest_configure(config):
    # Tests look whether their code leaves temporary files behind; with several workers each looks at its own.
    if WORKER:
        folder = tempfile.mkdtemp(prefix=f"{WORKER}-")
        os.chmod(folder, 0o755)  # as /tmp itself: the box around a student's code must get through
        os.environ["TMPDIR"], tempfile.tempdir = folder, None


def pytest_unconfigure(config):
    if WORKER:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
