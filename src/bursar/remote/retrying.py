"""
When to try again, and when to give up: exponential backoff with full jitter [1]_.

References
----------
.. [1] Brooker (2015). Exponential Backoff And Jitter. AWS Architecture Blog.
"""

from collections.abc import Callable

FIRST = 0.1
"""Seconds, at most, before the second try."""

LONGEST = 10.0
"""Seconds, at most, between two tries where the server does not say."""

Entropy = Callable[[int], bytes]
"""Returns a number of random bytes."""


def random_fraction(entropy: Entropy) -> float:
    """Return a random number from 0 to 1, 1 excluded."""
    # 53 bits, as many as a float holds: more would be rounded, and could reach 1.
    return (int.from_bytes(entropy(7), "big") >> 3) / (1 << 53)


class RetryBackoff:
    """
    The retry state of one request.

    Parameters
    ----------
    patience
        Seconds after the first failure at which the request is given up.
    entropy
        Returns random bytes, which spread the retries of many clients.
    """

    def __init__(self, patience: float, entropy: Entropy) -> None:
        self.failures = 0
        self._patience = patience
        self._entropy = entropy
        self._give_up: float | None = None

    def after_failure(self, now: float, advised: float | None = None) -> float | None:
        """
        Return the seconds to wait before the next try; None: give up.

        Parameters
        ----------
        now
            Seconds, on any clock.
        advised
            Seconds for which the server asks to wait; None: not stated.
        """
        # Counted from the first failure: a request that waits long for its answer, or sends much,
        # has its patience still before it.
        if self._give_up is None:
            self._give_up = now + self._patience
        # The exponent is limited because a float overflows at 2^1024.
        ceiling = min(LONGEST, FIRST * 2.0 ** min(self.failures, 32))
        self.failures += 1
        # The server's wait plus jitter: clients with the same wait must not return all at once.
        wait = random_fraction(self._entropy) * ceiling + (
            max(0.0, advised) if advised is not None else 0.0
        )
        return wait if now + wait <= self._give_up else None
