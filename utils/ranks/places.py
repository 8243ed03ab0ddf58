"""Whose code is a file: the reader's, or a library's?"""
import functools
import importlib.util
import os
import sysconfig


@functools.cache
def is_user_file(filename: str) -> bool:
    """True for a cell, a script or the course's own modules; False for torch, Python's library and the engine."""
    return not filename.startswith(_library_folders()) and not filename.startswith("<frozen") and filename != "<string>"


@functools.cache
def is_course_file(filename: str) -> bool:
    """True for the course's own modules, whose lines move with every edit: a sentence names the function instead."""
    return filename.startswith(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""))


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    torch = importlib.util.find_spec("torch")
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(os.path.dirname(os.path.abspath(__file__)))
    if torch is not None and torch.origin:
        folders.add(os.path.dirname(torch.origin))
    return tuple(os.path.join(folder, "") for folder in folders if folder)
