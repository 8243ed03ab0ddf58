"""One JupyterLab and one browser for each worker. `make test-browser` installs what is missing and runs these tests."""
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for lab and looks, which the tests share
if not importlib.util.find_spec("playwright"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser():
    from lab import start_browser
    with start_browser() as browser:
        if browser is None:
            pytest.skip("there is no Chromium and no Chrome here; `make test-browser` says how to get one")
        yield browser


@pytest.fixture(scope="session")
def jupyter(browser, tmp_path_factory):
    from lab import start_lab
    with start_lab(tmp_path_factory.mktemp("jupyter")) as jupyter:
        yield jupyter


@pytest.fixture
def window(browser):
    """A browser window, 1280 pixels wide. Its console must not have said anything bad at the end."""
    from lab import Console
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    console = Console(page)
    yield page
    complaints = console.complaints()
    page.evaluate("window.jupyterapp?.serviceManager.sessions.shutdownAll().catch(() => {})")  # one may be restarting
    page.close()
    assert complaints == []
