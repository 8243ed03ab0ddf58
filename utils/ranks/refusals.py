"""What the operating system refuses, as sentences that a student can act on."""
import errno
import os
import re

_REMEDIES = {
    errno.EMFILE: "this process may open no more files. Use fewer ranks, or raise the limit before you start Jupyter: "
                  "ulimit -n 4096",
    errno.ENFILE: "the machine can open no more files. Close other programs, or use fewer ranks",
    errno.EAGAIN: "no more processes or threads may be started. Use fewer ranks, close other programs, or raise the limit "
                  "before you start Jupyter: ulimit -u 4096",
    errno.ENOMEM: "memory has run out. Use fewer ranks, or close other notebooks and programs",
    errno.ENOSPC: "the disk is full. Free some space, or name a folder that has some before you start Jupyter: "
                  "export TMPDIR=FOLDER",
}
_REMEDIES[errno.EDQUOT] = _REMEDIES[errno.ENOSPC]
_KNOWN = re.compile("|".join(re.escape(os.strerror(number)) for number in _REMEDIES))


def refusal(error: OSError) -> str:
    """Say what the system refused and what helps: half a sentence, without a full stop.

    >>> refusal(OSError(errno.ENOMEM, "Cannot allocate memory"))
    'memory has run out. Use fewer ranks, or close other notebooks and programs'
    """
    if error.errno in _REMEDIES:
        return _REMEDIES[error.errno]
    if "No usable temporary directory" in str(error):
        return ("no folder for temporary files can be written. Free some space on the disk, or name a folder before you start "
                "Jupyter: export TMPDIR=FOLDER")
    if isinstance(error, FileNotFoundError) and not _has_a_folder():
        return "this notebook's folder is gone. Open the notebook where it is now, and restart the kernel"
    return f"{error}. `course doctor` looks for the reason"


def _has_a_folder():
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def refusal_in(text: str) -> str:
    """The same for an error of compiled code, which has the system's reason in its text; empty where it has none."""
    found = _KNOWN.search(text)
    return next((remedy for number, remedy in _REMEDIES.items() if found and os.strerror(number) == found[0]), "")
