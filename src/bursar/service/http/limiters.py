"""Limits of what one user or address may take: requests per second, items at a time, bytes."""

from collections.abc import Callable
from dataclasses import dataclass

MOST_BUCKETS = 10_000
"""Users or addresses whose buckets are kept."""


@dataclass(slots=True)
class _TokenBucket:
    level: float  # tokens that were there at the moment ``at``
    at: float


class TokenBuckets:
    """
    A token bucket for each user or address (Turner, 1986: the leaky bucket as a meter).

    Parameters
    ----------
    pace
        Returns, for a user or address, the tokens that come per second and the most that a bucket
        holds; asked each time, so that both may change. Tokens used before stay used.
    clock
        Seconds, never going back.
    most
        Buckets kept; beyond it the one longest unused is forgotten, which makes it full.
    """

    def __init__(
        self,
        pace: Callable[[str], tuple[float, float]],
        clock: Callable[[], float],
        most: int = MOST_BUCKETS,
    ) -> None:
        self._pace = pace
        self._clock = clock
        self._most = most
        self._buckets: dict[str, _TokenBucket] = {}  # the longest unused one first

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, who: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        rate, burst = self._pace(who)
        # Popped and put back at the end, so that the first one is always the longest unused.
        bucket = self._buckets.pop(who, None)
        if bucket is None:
            bucket = _TokenBucket(burst, now)  # a new bucket is full
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        came = rate * max(0.0, now - bucket.at)
        bucket.level, bucket.at = min(burst, bucket.level + came), max(now, bucket.at)
        self._buckets[who] = bucket
        if bucket.level < 1.0:
            return (1.0 - bucket.level) / rate
        bucket.level -= 1.0
        return 0.0


class ConcurrencyLimit:
    """
    Limits how many items (requests, connections) each holder may have at a time.

    Parameters
    ----------
    most
        Returns the items that a holder may have; asked each time, so that it may change. A holder
        above a new limit keeps its items until it leaves.
    """

    def __init__(self, most: Callable[[str], int]) -> None:
        self._most = most
        self._taken: dict[str, int] = {}

    def enter(self, who: str) -> bool:
        """Take an item, until :meth:`leave`; return whether the limit allowed this."""
        taken = self._taken.get(who, 0)
        if taken >= self._most(who):
            return False
        self._taken[who] = taken + 1
        return True

    def leave(self, who: str) -> None:
        """Give back one item."""
        taken = self._taken[who] - 1
        # Kept for holders only: the table must not grow with every address ever seen.
        if taken:
            self._taken[who] = taken
        else:
            del self._taken[who]


class DynamicThreshold:
    """
    A shared capacity of which each holder may take as much as then stays free.

    No holder alone can take all of it, and the more holders take much, the less each may have
    (dynamic thresholds: Choudhury and Hahne, 1998).

    Parameters
    ----------
    most
        Capacity of all holders together, in bytes.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: dict[str, int] = {}

    def take(self, who: str, size: int, *, lone: bool = False) -> bool:
        """
        Take ``size`` bytes, until :meth:`give_back`; return whether the limit allowed this.

        Parameters
        ----------
        lone
            Whether a holder that has nothing yet may take one piece of any size.
        """
        taken = self._taken.get(who, 0) + size
        # A holder may have as much as stays free afterwards (threshold factor 1 of the paper).
        if taken > self._free - size and not (lone and taken == size):
            return False
        self._taken[who] = taken
        self._free -= size
        return True

    def give_back(self, who: str, size: int) -> None:
        """Give back ``size`` bytes."""
        self._free += size
        left = self._taken.get(who, 0) - size
        if left:
            self._taken[who] = left
        else:
            self._taken.pop(who, None)
