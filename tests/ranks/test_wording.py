"""How a place in somebody's code is told."""
from utils.parallel import collectives
from utils.ranks.wording import frame_text, place_text

OURS = (collectives.__file__, 1, "ring_all_reduce")


def test_the_course_s_own_code_is_told_without_line_numbers():
    """A lesson's stored verdict must not change because somebody added a line to the library."""
    first_line = open(collectives.__file__).readline().strip()
    assert place_text(OURS) == "collectives.py in ring_all_reduce"
    assert place_text(OURS, with_source=True) == f"collectives.py in ring_all_reduce: {first_line}"
    assert frame_text(OURS, "x = 1") == "collectives.py in ring_all_reduce: x = 1"


def test_the_reader_s_own_code_is_told_with_them():
    cell, script = ("/tmp/ipykernel_7/1.py", 4, "hello"), ("/home/me/ring.py", 12, "step")
    assert [place_text(where) for where in (cell, script)] == ["cell line 4", "ring.py line 12"]
    assert frame_text(script, "x = 1") == "ring.py line 12, in step: x = 1"
    assert place_text(None) == "in backward"
