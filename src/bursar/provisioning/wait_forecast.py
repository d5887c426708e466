"""How long a request would wait, as a distribution, and the scales on which waits are compared."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bursar.model.errors import InputError

FloatArray = NDArray[np.float64]

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Shares whose bounds are checked and adapted; others lie between them."""

MOST_FAILURES = 12.0
"""
Failures, at most, for which a bound grows beyond the longest wait.

Without a limit bounds on the waits of real logs grew to years; with it as many hold.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """
    Pace at which waits are forgotten and shares adapted.

    Parameters
    ----------
    memory
        Waits remembered for each kind of request, at most.
    gain
        Step of a share, as a part of the distance between its credit and what it should be.
    wider
        Factor by which a bound grows for each failure once the longest wait is its base.
    """

    memory: int
    gain: float
    wider: float


class WaitScale(Protocol):
    """A scale on which waits of requests are compared, rising with the wait."""

    def place_of(self, wait: float) -> float:
        """Return the place of a wait of so many seconds; not negative."""
        ...

    def wait_at(self, place: float) -> float:
        """Return the wait at a place, seconds."""
        ...


class _Seconds:
    """The scale of requests whose queue is not seen: the wait itself."""

    def place_of(self, wait: float) -> float:
        return wait

    def wait_at(self, place: float) -> float:
        return place


class _NoWait:
    """The scale of requests that are expected to start at once, while no such one has begun."""

    def place_of(self, wait: float) -> float:
        return wait

    def wait_at(self, place: float) -> float:
        return 0.0


SECONDS: WaitScale = _Seconds()
NO_WAIT: WaitScale = _NoWait()


@dataclass(frozen=True, slots=True)
class ProjectedWaits:
    """
    Waits of one request as projections of the queue have them.

    Its scale: from 0 to 1, the share of the projections that have a shorter wait; from there to 2,
    the way to the wait if all jobs ran as long as they asked; above, multiples of that wait.

    Parameters
    ----------
    waits
        Seconds, ascending, one for each guess of how long jobs run. Finite, not negative, not
        empty.
    stated
        Seconds, if every job ran as long as it asked for and none were submitted later.
    """

    waits: tuple[float, ...]
    stated: float

    def __post_init__(self) -> None:
        rising = all(a <= b for a, b in zip(self.waits, self.waits[1:], strict=False))
        if not self.waits or not rising or self.waits[0] < 0 or not self._top < math.inf:
            raise InputError("projected waits are finite, not negative, and ascend")

    @property
    def starts_at_once(self) -> bool:
        """Whether the request is expected to start without any wait."""
        return self.stated <= 0 and self.waits[-1] <= 0

    @property
    def _top(self) -> float:
        """Seconds at place 2: beyond every projection, so that places tell longer waits apart."""
        return max(self.stated, 1.05 * self.waits[-1] + 60.0)

    def place_of(self, wait: float) -> float:
        """Return where a wait lies among the projected ones; of equal ones, in the middle."""
        if wait > self._top:
            return 1.0 + wait / self._top
        count = len(self.waits)
        first, last = bisect_left(self.waits, wait), bisect_right(self.waits, wait)
        if first < last:
            return (first + 1 + last) / 2 / (count + 1)
        low = self.waits[first - 1] if first else 0.0
        high = self.waits[first] if first < count else self._top
        at = (wait - low) / (high - low) if high > low else 0.0
        below = first / (count + 1)
        return below + at * ((1 / (count + 1)) if first < count else 2.0 - below)

    def wait_at(self, place: float) -> float:
        """Return the wait at a place; between two projections, on the straight line."""
        if place > 2.0:
            return self._top * (place - 1.0)
        count = len(self.waits)
        index = min(int(place * (count + 1) + 1e-12), count)
        low = self.waits[index - 1] if index else 0.0
        high = self.waits[index] if index < count else self._top
        below = index / (count + 1)
        width = 1 / (count + 1) if index < count else 2.0 - below
        return low + (high - low) * min(max((place - below) / width, 0.0), 1.0)


def covering(ordered: Sequence[float], share: float, nominal: float, pace: Pace) -> float:
    """
    Return the place that a share of all places does not exceed; above 1: beyond any place.

    Parameters
    ----------
    nominal
        The share before it was adapted.
    """
    count = len(ordered)
    # Conformal: with n waits seen, the next is equally likely to fall into each of n + 1 gaps.
    place = math.ceil((count + 1) * share - 1e-9)
    if place <= count:
        return ordered[max(place, 1) - 1]
    beyond = (share - count / (count + 1)) / (pace.gain * nominal)
    return ordered[-1] * math.pow(pace.wider, min(beyond, MOST_FAILURES))


class WaitForecast:
    """
    How long a request would wait, as a distribution; it does not change when more becomes known.

    Parameters
    ----------
    basis
        ``"queue"``: projections of the live queue, corrected by how earlier ones came true;
        ``"history"``: earlier waits alone.
    places
        Places of earlier waits on their scales, ascending. Empty: the projection as it is.
    shares
        Share of the places that is to be read for each of :data:`SHARES`, not falling.
    """

    def __init__(
        self,
        basis: Literal["queue", "history"],
        scale: WaitScale,
        places: Sequence[float],
        shares: Sequence[float],
        pace: Pace,
    ) -> None:
        self.basis = basis
        self._scale = scale
        self._places = tuple(places)
        self._shares = tuple(shares)
        self._pace = pace

    @property
    def seen(self) -> int:
        """Number of earlier waits that the forecast is calibrated with; 0: not calibrated."""
        return len(self._places)

    def wait_quantiles(self, shares: Iterable[float]) -> list[float]:
        """
        Return the seconds that each share of such requests does not wait longer than.

        They do not fall where the shares rise.

        Raises
        ------
        InputError
            When a share is not between 0 and 1.
        """
        return [self._wait(share) for share in shares]

    def sample(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Return so many waits drawn from the distribution, seconds, shape ``(count,)``."""
        return np.array([self._wait(float(share)) for share in 1.0 - rng.random(count)])

    def _wait(self, share: float) -> float:
        if not 0 < share <= 1:
            raise InputError(f"a share of waits lies between 0 and 1, got {share:g}")
        if not self._places:
            return self._scale.wait_at(share)
        adapted = float(
            np.interp(share, (0.0, *SHARES, 1.0), (0.0, *self._shares, max(1.0, self._shares[-1])))
        )
        return self._scale.wait_at(covering(self._places, adapted, share, self._pace))
