"""A limit on the bytes per second of a link, shared by all transfers."""

import math
import threading
import time
from collections.abc import Callable

_SMALLEST, _LARGEST = 16 * 1024, 1024 * 1024
_SPREAD = 0.1  # seconds of the rate that one turn takes
_BURST = 0.1  # seconds that an idle link may have saved


class TransferRateLimiter:
    """
    A token bucket of a link; users that take equal sizes in turn get equal shares.

    Parameters
    ----------
    bandwidth
        Bytes per second. Positive and finite.
    clock
        Tells seconds.
    """

    def __init__(self, bandwidth: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < bandwidth < math.inf:
            raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}")
        self._bandwidth = bandwidth
        self._clock = clock
        self._lock = threading.Lock()
        self._free = clock()

    @property
    def grain(self) -> int:
        """Bytes to take at a time, so that other transfers need not wait long."""
        return round(min(max(self._bandwidth * _SPREAD, _SMALLEST), _LARGEST))

    def take(self, size: int) -> float:
        """
        Count bytes that are transferred.

        Returns
        -------
        float
            Seconds to wait now, so that no more pass than may.
        """
        with self._lock:
            now = self._clock()
            # Bytes are counted first and waited for afterwards: turns are given in the order of
            # asking, and a piece of any size passes in the end.
            self._free = max(self._free, now - _BURST) + size / self._bandwidth
            return max(0.0, self._free - now)
