"""Run a command as an ordinary user, for tests that root runs: ``python ordinary_user.py FOLDER COMMAND…``.

Python and the course may lie in folders that only root may pass.  In a mount namespace of its own, such folders are
emptied and what is needed is shown in them again, so that the user can start the same Python.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from utils.grading import box  # noqa: E402

USER = 65534


def main(folder: str, command: list[str]) -> None:
    """Become the user, who owns ``folder`` and has its home in it, and run the command in place of this process."""
    home = os.path.join(folder, "home")
    os.makedirs(home, exist_ok=True)
    for place in (folder, home):
        os.chown(place, USER, USER)
    described = json.loads(box.spec(folder, hide=[], keep=[sys.prefix, sys.base_prefix, str(ROOT), folder]))
    box._call("unshare", box._NEWNS)
    box._hide(described)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ.update(HOME=home, TMPDIR=folder, PYTHONDONTWRITEBYTECODE="1", USER="nobody", LOGNAME="nobody")
    os.chdir(ROOT)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), sys.argv[2:])
