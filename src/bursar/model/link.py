"""How data pass from one site to another."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """
    A network link from one site to another, in this direction only.

    Parameters
    ----------
    latency
        Seconds before the first byte. Not negative.
    bandwidth
        Bytes per second; infinite when size does not matter. Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf):
            raise ValueError(f"latency must be finite and not negative, got {self.latency}")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {self.bandwidth}")
