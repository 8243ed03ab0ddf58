"""One link, by the α–β model: seconds = α + bytes / bandwidth."""

from dataclasses import dataclass

from .arguments import non_negative, positive


@dataclass(frozen=True)
class Link:
    """What one rank can send, in one direction, under the α–β model: seconds = α + bytes / bandwidth.

    alpha_seconds: latency of one message, in seconds.
    bandwidth_bytes_per_second: bytes per second in ONE direction (a data sheet's "600 GB/s" is often both).
    """

    alpha_seconds: float
    bandwidth_bytes_per_second: float

    def __post_init__(self):
        non_negative("alpha_seconds", self.alpha_seconds)
        positive("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second)

    def seconds(self, n_bytes, messages=1):
        """Seconds to send `n_bytes` in `messages` messages, one after another."""
        return messages * self.alpha_seconds + n_bytes / self.bandwidth_bytes_per_second
