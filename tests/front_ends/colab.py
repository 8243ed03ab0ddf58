"""A stand-in for Google Colab: a folder in the place of /content, and a kernel that starts there.

`play` runs a lesson as a reader on Colab does: the notebook is not in the clone, a cell with the README's lines comes
first, and the kernel belongs to an environment with packages of its own.
"""
import copy
import json
import os
import subprocess
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode, v4

ADDRESS = "<address of this repository>"     # as the README writes it


def readme_lines(readme: str) -> str:
    """The lines that the README tells a reader to run first on Colab."""
    return readme.partition("**Google Colab.**")[2].split("```")[1].strip()


def repository(source: Path, folder: Path) -> Path:
    """A git repository in `folder` with one commit: the files of `source` as they are now, but what git ignores."""
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=course", "-c", "user.email=course@localhost", f"--git-dir={folder / '.git'}",
                        f"--work-tree={source}", *arguments], check=True, capture_output=True, text=True)

    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    git("add", "--all")
    git("commit", "--quiet", "--message", "the course")
    return folder


def packages(python: Path) -> dict[str, str]:
    """{package: version} of all that an environment's Python can import."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True, text=True)
    return {package["name"].lower(): package["version"] for package in json.loads(listed.stdout)}


def play(python: Path, notebook: NotebookNode, first: str, last: list[str], content: Path, cell_seconds: float) -> NotebookNode:
    """Run a notebook between the cell `first` and the cells `last`, and return it with its outputs.

    `content` stands for /content, in the cells and as the folder where the kernel of `python` starts. Raises nbclient's
    CellExecutionError where a cell fails.
    """
    notebook = v4.new_notebook(cells=[v4.new_code_cell(first), *copy.deepcopy(notebook.cells), *map(v4.new_code_cell, last)])
    for cell in notebook.cells:
        cell.source = cell.source.replace("/content", str(content))
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    spec = content.parent / "kernels" / "colab"
    spec.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "Colab", "language": "python"}))
    manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)]))
    client = NotebookClient(notebook, km=manager, timeout=cell_seconds, startup_timeout=cell_seconds,
                            coalesce_streams=True, resources={"metadata": {"path": str(content)}})
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MPLBACKEND")}
    environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "IPYTHONDIR": str(content.parent / "ipython")}
    client.execute(env=environment)
    return notebook
