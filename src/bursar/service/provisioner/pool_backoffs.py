"""Back-off of pools whose workers cannot be started, and reports of failing accounts."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

SHORTEST_PAUSE = 1.0
"""Seconds of a first pause, and between two checks while tasks wait."""

LONGEST_PAUSE = 60.0
"""Longest pause in seconds; also how long a pause that is over is remembered."""


class PoolBackoff(NamedTuple):
    """
    A pause before workers are requested again for a pool after a failure.

    Parameters
    ----------
    until
        End of the pause, seconds since the epoch.
    seconds
        Length of the pause; each further one in a row is longer.
    account
        The local account of the pool's workers.
    reason
        The error; empty when the account is not at fault.
    """

    until: float
    seconds: float
    account: str
    reason: str

    def counts(self, now: float) -> bool:
        """Return whether the pool failed more than once in a row, and recently."""
        return self.seconds > SHORTEST_PAUSE and now < self.until + LONGEST_PAUSE


class PoolBackoffs:
    """
    Decides when workers of a pool may be requested again after a failure.

    A pause that is over is remembered for a while, so that the next one is twice as long.

    Parameters
    ----------
    notify
        Called with one line for people.
    """

    def __init__(self, has_workers: Callable[[str], bool], notify: Callable[[str], None]) -> None:
        self._has_workers = has_workers
        self._notify = notify
        self._pauses: dict[str, PoolBackoff] = {}  # by pool
        self._reported: set[str] = set()  # accounts whose workers were said to fail

    def pause(self, pool: str, account: str, now: float, reason: str) -> None:
        """Leave a pool alone for a while, longer each time; empty reason: no account's fault."""
        # Counted by pool, so that an account whose workers cannot be started does not shut out
        # others.
        before = self._pauses.get(pool)
        seconds = min(LONGEST_PAUSE, SHORTEST_PAUSE if before is None else before.seconds * 2)
        self._pauses[pool] = PoolBackoff(now + seconds, seconds, account, reason)

    def allows(self, pool: str, now: float) -> bool:
        """Return whether workers may be requested for a pool."""
        pause = self._pauses.get(pool)
        return pause is None or pause.until <= now

    def ends(self, now: float) -> Iterator[float]:
        """Yield when the pauses end that have not ended."""
        return (pause.until for pause in self._pauses.values() if pause.until > now)

    def concerns(self, account: str) -> bool:
        """Return whether a pool of an account has a pause that is not forgotten."""
        return any(pause.account == account for pause in self._pauses.values())

    def failing(self, now: float) -> Mapping[str, str]:
        """Return why workers could not be had at least twice in a row, by local account."""
        return {
            pause.account: pause.reason
            for pool, pause in sorted(self._pauses.items())
            # One failure may be by chance; what fails twice in a row is shown.
            if pause.reason and pause.counts(now) and not self._has_workers(pool)
        }

    def review(self, now: float) -> None:
        """
        Forget pauses that are long over, or whose pool has workers again; report accounts.

        Each account is reported once when its workers cannot be had, and once when they can again.
        """
        self._pauses = {
            pool: pause
            for pool, pause in self._pauses.items()
            # Workers that have come show that the reason is gone.
            if now < pause.until + LONGEST_PAUSE and not self._has_workers(pool)
        }
        failing = self.failing(now)
        for account, reason in failing.items():
            if account not in self._reported:
                self._notify(f"{_workers_of(account)} cannot be had: {reason}")
        paused = {pause.account for pause in self._pauses.values()}
        for account in sorted(self._reported - failing.keys() - paused):
            self._notify(f"{_workers_of(account)} fail no longer")
        self._reported = (self._reported & paused) | failing.keys()


def _workers_of(account: str) -> str:
    return f'workers of the account "{account}"' if account else "workers"
