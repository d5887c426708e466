"""Token buckets that limit the rate of requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

MOST_BUCKETS = 10_000
"""Addresses or users of which it is remembered how much they have asked."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Tokens that are added per second, and the most that are kept."""

    rate: float
    burst: float


@dataclass(slots=True)
class _TokenBucket:
    level: float  # tokens that were there at the moment ``at``
    at: float


class TokenBuckets:
    """
    A token bucket for each user or address (Turner, 1986: the leaky bucket as a meter).

    Parameters
    ----------
    rate
        Tokens that come per second.
    burst
        Tokens that a bucket holds; it is full at first.
    clock
        Seconds, never going back.
    most
        Buckets kept; beyond it the one longest unused is forgotten, which makes it full.
    own
        Rates of users for whom ``rate`` and ``burst`` do not apply, by name.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        clock: Callable[[], float],
        most: int = MOST_BUCKETS,
        own: Mapping[str, RateLimit] = MappingProxyType({}),
    ) -> None:
        self._pace = RateLimit(rate, burst)
        self._own = own
        self._clock = clock
        self._most = most
        self._buckets: dict[str, _TokenBucket] = {}  # the longest unused one first

    def __len__(self) -> int:
        return len(self._buckets)

    def set_pace(self, rate: float, burst: float, own: Mapping[str, RateLimit]) -> None:
        """Set the rates that hold from now on; used tokens stay used."""
        self._pace, self._own = RateLimit(rate, burst), own

    def take(self, who: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        pace = self._own.get(who, self._pace)
        bucket = self._buckets.pop(who, None)
        if bucket is None:
            bucket = _TokenBucket(pace.burst, now)
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        came = pace.rate * max(0.0, now - bucket.at)
        bucket.level, bucket.at = min(pace.burst, bucket.level + came), max(now, bucket.at)
        self._buckets[who] = bucket
        if bucket.level < 1.0:
            return (1.0 - bucket.level) / pace.rate
        bucket.level -= 1.0
        return 0.0
