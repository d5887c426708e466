"""Links of a network, and profiles of the bandwidth left over time."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Duplex = Literal["full", "half", "one-way"]
"""Whether each direction of a wire has its bandwidth, both share it, or only one has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthProfile:
    """
    Share of a wire's bandwidth that others leave over time: constant for a step, then the next.

    Parameters
    ----------
    shares
        Share of the bandwidth in each step; after the last comes the first again. From 0
        to 1, and at least one.
    step
        Seconds that each holds; the first begins at time 0. Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    shares: tuple[float, ...]
    step: float

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("a profile has at least one share")
        for share in self.shares:
            if not 0 <= share <= 1:
                raise ValueError(f"a share must be between 0 and 1, got {share:g}")
        if not 0 < self.step < math.inf:
            raise ValueError(f"step must be finite and positive, got {self.step:g}")

    def share_at(self, time: float) -> float:
        """The share that holds at a moment, seconds, not negative."""
        return self.shares[self._step_of(time) % len(self.shares)]

    def change_after(self, time: float) -> float:
        """The first later moment at which another step begins, seconds."""
        return (self._step_of(time) + 1) * self.step

    def _step_of(self, time: float) -> int:
        number = math.floor(time / self.step)
        # The quotient is rounded: at the very moment of a change it may lie below it.
        return number + 1 if (number + 1) * self.step <= time else number


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLink:
    """
    A link that joins two nodes of a network.

    Parameters
    ----------
    source, target
        Names of the nodes; which is which only matters for ``"one-way"``.
    bandwidth
        Bytes per second; infinite where size does not matter. Positive.
    latency
        Seconds before the first byte is there. Not negative.
    duplex
        ``"full"``: each direction has the bandwidth; ``"half"``: both share it;
        ``"one-way"``: from source to target only.
    profile
        Share of the bandwidth that others leave; None: all.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0
    duplex: Duplex = "full"
    profile: BandwidthProfile | None = None

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f'a wire joins two nodes, got "{self.source}" twice')
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {self.bandwidth:g}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be finite and not negative, got {self.latency:g}")
        if self.duplex not in get_args(Duplex):
            raise ValueError(f'duplex must be "full", "half" or "one-way", got "{self.duplex}"')
        if self.profile is not None and math.isinf(self.bandwidth):
            raise ValueError("a wire with a profile has a finite bandwidth")
