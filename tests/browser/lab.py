"""JupyterLab in a browser, driven as a student would: open a notebook, run it, move its widgets' controls.

    with start_lab(folder) as lab, start_browser() as browser:
        notebook = lab.open(browser.new_page(), "lessons/01_all_reduce.ipynb")
        notebook.run_all()
        notebook.frames()[0].press_run()

The server has a home of its own and the settings that `make lab` gives, so nothing that belongs to the user is read or
written. Every wait is for a condition; PATIENCE only ends a test that hangs.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import Locator, Page, sync_playwright

from utils.notebooks import BOOTSTRAP
from utils.widgets.frame import RUNNING

ROOT = Path(__file__).parents[2]
PATIENCE = 300  # seconds
SCREENSHOTS = ROOT / "build" / "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

HARMLESS = {
    r"Could not restore the debugger state": "JupyterLab asks a kernel that is just being restarted or left",
    r"Canceled future for \w+ message": "JupyterLab had a question open when the kernel was restarted or left",
}
"""What the browser's console may complain about, as regular expressions, and why."""


# ---- the programs -------------------------------------------------------------------------------------------------

def find_browser(playwright) -> str | None:
    """The path of a Chromium or Chrome: one that is installed, or the one that Playwright downloaded; None without any."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    own = playwright.chromium.executable_path
    return found or (own if Path(own).exists() else None)


@contextlib.contextmanager
def start_lab(folder: Path):
    """A Lab that serves the lessons, as copies, from `folder`."""
    course, home = folder / "course", folder / "home"
    shutil.copytree(ROOT / "lessons", course / "lessons", ignore=shutil.ignore_patterns("*.py", ".ipynb_checkpoints"))
    (course / "utils").symlink_to(ROOT / "utils")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "XDG_"))}
    ours |= {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
             "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTER_CONFIG_PATH": str(ROOT / "utils" / "jupyter")}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0",
                                   "--allow-root", "--LabApp.expose_app_in_browser=True"],
                                  cwd=course, env=ours, stdout=log, stderr=log)
    try:
        yield Lab(address(server, home / "runtime", folder / "server.log"), course, psutil.Process(server.pid))
    finally:
        family = psutil.Process(server.pid).children(recursive=True)
        server.terminate()  # it ends its kernels
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        for process in [server, *psutil.wait_procs(family, timeout=10)[1]]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def address(server: subprocess.Popen, runtime: Path, log: Path) -> dict:
    """Where the JupyterLab listens that `server` starts: what it writes into its runtime folder."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(json.JSONDecodeError):  # it is being written
                return json.loads(file.read_text())
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


@contextlib.contextmanager
def start_browser():
    """A headless Chromium; None where there is none."""
    with sync_playwright() as playwright:
        path = find_browser(playwright)
        if path is None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as home:
            browser = playwright.chromium.launch(
                executable_path=path, env={**os.environ, "HOME": home},
                args=["--no-sandbox", "--disable-dev-shm-usage"])  # root has none; a container's /dev/shm is small
            yield browser
            browser.close()


# ---- what a student sees and touches ------------------------------------------------------------------------------

@dataclass
class Lab:
    """A running JupyterLab: where it listens, the folder that it serves, its process."""

    server: dict
    folder: Path
    process: psutil.Process

    def write(self, path: str, *sources: str) -> str:
        """Make a notebook of the lessons' first cell and these; returns its path."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        cells = [nbformat.v4.new_code_cell(source) for source in (BOOTSTRAP, *sources)]
        nbformat.write(nbformat.v4.new_notebook(metadata={"kernelspec": kernel}, cells=cells), self.folder / path)
        return path

    def kernel_of(self, notebook: "Notebook") -> psutil.Process:
        name = notebook.ask("panel.sessionContext.session.kernel.id")
        return next(child for child in self.process.children() if any(name in word for word in child.cmdline()))

    def ranks_of(self, notebook: "Notebook") -> list[psutil.Process]:
        """The ranks that are alive: processes that the engine's server has forked."""
        servers = self.kernel_of(notebook).children()
        return [rank for server in servers if "utils.ranks.forkserver" in " ".join(server.cmdline())
                for rank in server.children()]

    def open(self, page: Page, path: str) -> "Notebook":
        """Open a notebook as the only one in the window, with the file browser beside it, as JupyterLab does."""
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(f"{self.server['url']}lab/tree/{path}?token={self.server['token']}&reset")
        notebook = Notebook(page, path)
        page.wait_for_function(f"window.jupyterapp && {notebook.panel}")
        notebook.ask("panel.revealed.then(() => true)")
        return notebook


class Console:
    """The errors that a page's console shows, and what its scripts left uncaught."""

    def __init__(self, page: Page):
        self._said = []
        page.on("console", lambda message: self._said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._said.append(f"uncaught: {error}"))

    def complaints(self) -> list[str]:
        return [text for text in self._said if not any(re.search(known, text) for known in HARMLESS)]


@dataclass
class Notebook:
    """A notebook that is open in the window of `page`."""

    page: Page
    path: str

    @property
    def panel(self) -> str:
        """JavaScript: the notebook's panel."""
        return f"[...jupyterapp.shell.widgets('main')].find(each => each.context?.path == {self.path!r})"

    def ask(self, expression: str, wait: bool = False):
        """The value of a JavaScript expression about `panel` (and its code cells, `cells`); `wait`: as soon as it is true."""
        code = f"""() => {{ const panel = {self.panel};
            const cells = panel.content.widgets.map(cell => cell.model).filter(cell => cell.type == "code");
            return {expression}; }}"""
        return self.page.wait_for_function(code) if wait else self.page.evaluate(code)

    @property
    def box(self) -> Locator:
        return self.page.locator(f"#{self.ask('panel.id')}")

    def choose(self, *names: str) -> None:
        """Choose an entry of a menu by its way there: "Run", "Run All Cells"."""
        for name in names:
            self.page.get_by_role("menuitem", name=re.compile(f"^{re.escape(name)}(…|$)")).click()

    def run_all(self) -> None:
        """Choose Run > Run All Cells and wait until all have run."""
        self.start_all()
        have_run = "cells.filter(cell => cell.executionCount && cell.executionState == 'idle').length"
        finished, all_cells = 0, self.ask("cells.length")
        while finished < all_cells:  # a cell may take PATIENCE, not the lesson
            self.ask(f"{have_run} > {finished}", wait=True)
            finished = self.ask(have_run)

    def start_all(self) -> None:
        """Choose Run > Run All Cells as soon as the kernel is there, and wait until the first cell runs."""
        self.ask("panel.sessionContext.session?.kernel?.status == 'idle'", wait=True)
        self.choose("Run", "Run All Cells")
        self.ask("cells.some(cell => cell.executionState == 'running')", wait=True)

    def run_through(self, last: int) -> None:
        """Press Shift+Enter in cell after cell, text and code, until cell number `last`, from 0 on, has run."""
        while self.ask("panel.content.activeCellIndex") <= last:
            self.page.keyboard.press("Shift+Enter")
            self.ask("cells.every(cell => cell.executionState == 'idle')", wait=True)

    def trust(self) -> None:
        """Choose "Trust Notebook" and confirm it."""
        self.page.evaluate("void jupyterapp.commands.execute('notebook:trust')")
        self.page.get_by_role("dialog").get_by_role("button", name="Trust").click()
        self.ask("cells.every(cell => cell.trusted)", wait=True)

    def save(self) -> None:
        self.ask("panel.context.save().then(() => true)")

    def errors(self) -> list[str]:
        """What cells ended in that are not tagged raises-exception."""
        return self.ask("""cells.filter(cell => !(cell.getMetadata("tags") ?? []).includes("raises-exception"))
            .flatMap(cell => cell.outputs.toJSON()).filter(output => output.output_type == "error")
            .map(output => `${output.ename}: ${output.evalue}`)""")

    def wait_for(self, condition) -> None:
        """Wait until a function of ours returns something true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            self.page.wait_for_timeout(100)

    def tab_to(self, name: str) -> None:
        """Press Tab until the focus is on the control with this label or the button with this text."""
        focus = """() => { const now = document.activeElement; return now.matches("button") ? now.textContent.trim()
            : now.closest(".widget-inline-hbox")?.querySelector("label")?.textContent; }"""
        for _ in range(200):
            if self.page.evaluate(focus) == name:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {name!r}.")

    def frames(self) -> list["ShownFrame"]:
        """The widgets with a picture, from top to bottom."""
        return [ShownFrame(box) for box in self.box.locator(".jp-OutputArea-output:has(.widget-image)").all()]

    def quizzes(self) -> list[Locator]:
        return self.box.locator(".jp-OutputArea-output:has(.widget-button:text-is('Check'))").all()

    def outputs(self) -> Locator:
        """All that cells gave out."""
        return self.box.locator(".jp-OutputArea-output")

    def use_theme(self, name: str) -> None:
        """Change to "JupyterLab Dark" or "JupyterLab Light", as Settings > Theme does."""
        self.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        self.page.wait_for_function("theme => document.body.dataset.jpThemeName == theme", arg=name)

    def save_screenshot(self, name: str, box: Locator | None = None) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (box or self.page).screenshot(path=SCREENSHOTS / f"{name}.png")


@dataclass
class ShownFrame:
    """One of the course's widgets on the page: `utils.widgets.frame.Frame`. Texts are read where they are out of sight too."""

    box: Locator

    def labels(self) -> list[str]:
        """The names of the controls, without the presets."""
        names = self.box.locator("label.widget-label:visible").all_text_contents()
        return [name for name in names if name != "preset"]

    def control(self, label: str) -> Locator:
        return self.box.locator(".widget-inline-hbox").filter(has=self.box.page.locator(f"label:text-is('{label}')"))

    def presets(self) -> list[str]:
        return _options(self.control("preset").locator("select"))

    def sentence(self) -> str:
        return self.box.locator("[role=status]").first.text_content()

    def note(self) -> str:
        return " ".join(self.box.locator("[role=status]").all_text_contents()[1:])

    def picture(self) -> str:
        """The picture's address; another picture has another one."""
        return self.box.locator(".widget-image").get_attribute("src")

    def picture_bytes(self) -> list[int]:
        """The picture's file. Two pictures of the same content have two addresses."""
        return self.box.page.evaluate("async address => [...new Uint8Array(await (await fetch(address)).arrayBuffer())]",
                                      self.picture())

    @contextlib.contextmanager
    def expect_another_picture(self):
        """Wait, after what is done inside, until there is another picture."""
        image, before = self.box.locator(".widget-image").element_handle(), self.picture()
        yield
        self.box.page.wait_for_function("([image, before]) => image.src != before && image.complete", arg=[image, before])

    @contextlib.contextmanager
    def expect_answer(self):
        """Wait, after what is done inside, until there is another picture or another line beside the button."""
        answer = """([box, before]) => {
            const [, ...notes] = box.querySelectorAll("[role=status]");
            const now = [...box.querySelectorAll(".widget-image"), ...notes].map(each => each.src ?? each.textContent).join();
            return before === null ? now : now != before; }"""
        box = self.box.element_handle()
        before = self.box.page.evaluate(answer, [box, None])
        yield
        self.box.page.wait_for_function(answer, arg=[box, before])

    def choose_preset(self, label: str) -> None:
        """Choose a preset and wait for its picture, unless it is chosen already."""
        select = self.control("preset").locator("select")
        if select.input_value() != label:
            with self.expect_answer():
                select.select_option(label)

    def move(self, label: str) -> None:
        """Change a control by hand: click on a slider's track, choose a dropdown's next entry, type another number."""
        control = self.control(label)
        if (select := control.locator("select")).count():
            options = _options(select)
            select.select_option(options[(options.index(select.input_value()) + 1) % len(options)])
        elif (number := control.locator("input[type=number]")).count():
            number.fill(str(int(number.input_value()) + 7))
            number.press("Enter")
        else:
            handle = control.locator("[role=slider]")
            now, low, high = (float(handle.get_attribute(f"aria-value{name}")) for name in ("now", "min", "max"))
            track = control.locator(".noUi-target").bounding_box()
            share = 0.85 if now < (low + high) / 2 else 0.15
            control.locator(".noUi-target").click(position={"x": share * track["width"], "y": track["height"] / 2})

    def value(self, label: str) -> str:
        """What stands beside a slider."""
        return self.control(label).locator(".widget-readout").text_content()

    def press(self, label: str, key: str) -> None:
        """Press a key on a slider."""
        self.control(label).locator("[role=slider]").press(key)

    def drag(self, label: str) -> None:
        """Take a slider's handle and drag it to its end, in many small steps."""
        mouse, handle = self.box.page.mouse, self.control(label).locator("[role=slider]").bounding_box()
        track = self.control(label).locator(".noUi-target").bounding_box()
        height = handle["y"] + handle["height"] / 2
        mouse.move(handle["x"] + handle["width"] / 2, height)
        mouse.down()
        mouse.move(track["x"] + track["width"] + 5, height, steps=30)
        mouse.up()

    @property
    def button(self) -> Locator:
        return self.box.locator(".widget-button.mod-primary")

    def run(self) -> None:
        """Press the button and wait until the run is over."""
        with self.expect_run():
            self.button.click()

    @contextlib.contextmanager
    def expect_run(self):
        """Wait, after the button is pressed inside, until the run has begun and has ended."""
        watch = """button => { window.courseRun = "waiting"; new MutationObserver(() => {
            if (button.querySelector(".fa-RUNNING")) courseRun = "running";
            else if (button.querySelector("i") && courseRun == "running") courseRun = "over";
            }).observe(button, {childList: true, subtree: true, attributes: true}); }"""
        self.button.evaluate(watch.replace("RUNNING", RUNNING))
        yield
        self.box.page.wait_for_function("window.courseRun == 'over'")

    def can_run(self) -> bool:
        return self.button.is_visible()


def _options(select):
    return select.locator("option").evaluate_all("options => options.map(each => each.value)")


if __name__ == "__main__":  # is there a browser? `make test-browser` asks
    with sync_playwright() as _playwright:
        sys.exit(find_browser(_playwright) is None)
