"""What all tests share: a folder for temporary files per worker, and no time limits for random examples."""
import os
import tempfile

from hypothesis import settings


def pytest_configure(config):
    # Tests look whether their code leaves temporary files behind; with several workers each looks at its own.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"{worker}-")
        tempfile.tempdir = None


def pytest_unconfigure(config):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        import shutil
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


settings.register_profile("course", deadline=None)
settings.load_profile("course")
