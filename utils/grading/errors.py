"""The errors of this package: each is one or more sentences for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterable


class GradingError(Exception):
    """Something that an instructor or a student can put right; the message says how."""


class ReleaseError(GradingError):
    """A solution notebook cannot be released; ``problems`` lists every reason at once."""

    def __init__(self, problems: Iterable[str]):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
