"""What ranks print, as the notebook shows it."""
import re

LONGEST_OUTPUT = 20_000_000   # bytes that one rank may print
_SHOWN_LINES = 200            # of one rank in a cell's output; the rest is in run.outputs
_SHOWN_CHARACTERS = 20_000

# what the C++ library prints when it aborts; the verdict says it better
_LAST_WORDS = re.compile(r"terminate called after throwing an instance of 'gloo::\S+\n\s*what\(\):.*\n*")
# what it prints when a group meets, up to torch 2.11; nobody asked for it
_GREETING = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. .*\n")


def as_text(printed: bytes) -> str:
    """What a rank printed, without what only its libraries had to say."""
    return _GREETING.sub(b"", printed).decode(errors="replace")


def show(rank: int, text: str) -> None:
    """Print it with the rank in front; of very much only the beginning."""
    lines = text[:_SHOWN_CHARACTERS].splitlines()
    for line in lines[:_SHOWN_LINES]:
        print(f"[rank {rank}] {line}")
    if len(text) > _SHOWN_CHARACTERS or len(lines) > _SHOWN_LINES:
        print(f"[rank {rank}] … and more: run.outputs[{rank}] holds all {len(text):,} characters")


def without_last_words(text: str) -> str:
    """The text without what the C++ library said when it gave up."""
    return _LAST_WORDS.sub("", text)
