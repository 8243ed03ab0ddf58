"""What a submission loses when it comes after the due date."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from utils.grading.errors import GradingError

SECONDS_PER_DAY = 86_400
_LINEAR = re.compile(r"linear:(?P<rate>\d+(\.\d+)?)%/day(:max(?P<most>\d+(\.\d+)?)%)?")


@dataclass(frozen=True)
class LatePolicy:
    """``fraction_per_day`` is lost for each day begun, up to ``most``; ``due`` is in seconds since 1970."""

    due: float | None = None
    fraction_per_day: float = 0.0
    most: float = 1.0

    def late_seconds(self, modified: float) -> int:
        """Return by how much a file written at ``modified`` is late."""
        return 0 if self.due is None else max(0, round(modified - self.due))

    def penalty(self, late_seconds: int) -> float:
        """Return the fraction of the score that is lost.

        >>> LatePolicy(0.0, 0.1, 0.5).penalty(86_401)
        0.2
        """
        days = -(-late_seconds // SECONDS_PER_DAY)
        return min(self.most, round(days * self.fraction_per_day, 6))


def read_policy(due: str | None, policy: str) -> LatePolicy:
    """Return the policy of ``--due`` and ``--late``.

    Arguments:
        due: an ISO date and time; without a zone it is this machine's time.  ``None``: nothing is late.
        policy: ``"none"``, ``"zero"`` or ``"linear:10%/day:max50%"``.

    Raises ``GradingError`` if one of them cannot be read.

    >>> read_policy("2026-03-01T12:00+00:00", "linear:10%/day:max50%").penalty(86_400 * 9)
    0.5
    """
    moment = None
    if due is not None:
        try:
            moment = datetime.fromisoformat(due.replace("Z", "+00:00")).timestamp()
        except ValueError:
            raise GradingError(f"--due {due}: not a date. Write it like 2026-03-01T23:59+01:00.") from None
    if policy == "none":
        return LatePolicy(moment)
    if policy == "zero":
        return LatePolicy(moment, 1.0, 1.0)
    if match := _LINEAR.fullmatch(policy):
        return LatePolicy(moment, float(match["rate"]) / 100, float(match["most"] or 100) / 100)
    raise GradingError(f"--late {policy}: expected none, zero or something like linear:10%/day:max50%.")
