"""A pool's memory from one decision to the next, and which sites are asked again."""

import math
import re
from dataclasses import dataclass, field

from bursar.model.slot import Slot
from bursar.provisioning.request_shaping import RequestShape
from bursar.provisioning.wait_prediction import WaitPredictor

# Decide whether a site is asked again, by what became of earlier requests.

FIRST = 5.0
"""Seconds before a site is asked again when something went wrong for the first time."""

LONGEST = 600.0
"""Longest time before a site is asked again, seconds."""

SAME = 4
"""Refusals in the same words, one after the other, after which a site is given up."""

QUICK = 60.0
"""Seconds of an allocation's life below which a loss may well repeat."""

LOSSES = 8
"""Number of early losses in a row, with the same message, after which the site is given up."""


@dataclass(slots=True)
class SiteHealth:
    """
    Health of a site, by what became of requests there.

    Parameters
    ----------
    until
        Time before which the site is not asked, on the pool's clock.
    wrong_at
        Time of the last failure; a burst counts from its beginning.
    burst_until
        Until when what had begun before that belongs to the same burst.
    steps
        Number of failures since the last success, bursts counted once.
    words
        Last error message.
    same
        Number of times in a row that this message came.
    given_up
        Reason for which the site was given up; empty for a site in use.
    """

    until: float = float("-inf")
    wrong_at: float = float("-inf")
    burst_until: float = float("-inf")
    steps: int = 0
    words: str = ""
    same: int = 0
    given_up: str = ""

    def refused(self, now: float, words: str, *, has_others: bool) -> None:
        """
        Note that a request was refused.

        Parameters
        ----------
        has_others
            Whether other requests of ours run or wait there: the refusal may then be a limit on
            their number, which passes with their end and does not count against the site.
        """
        self._wrong(now, words, 1 if has_others else SAME, counts=not has_others)

    def unreachable(self, now: float) -> None:
        """Record that the site could not be asked, which never leads to giving the site up."""
        self._back_off(now)

    def lost(self, now: float, words: str, lived: float, *, was_busy: bool) -> None:
        """
        Take in that an allocation broke down.

        Parameters
        ----------
        words
            The scheduler's words.
        lived
            Seconds from the allocation's begin to the loss.
        was_busy
            Whether the allocation had a task: a first such loss is replaced without delay, since
            the site was able to run something.
        """
        if lived < QUICK:
            excused = now - lived if was_busy else None
            self._wrong(now, words, LOSSES, counts=True, excused=excused)
        else:
            self.worked()

    def in_vain(self, now: float) -> None:
        """Note that processors were of no use to the waiting tasks, or never came."""
        self._back_off(now)

    def worked(self) -> None:
        """Note a success, which clears earlier failures."""
        self.steps = self.same = 0
        self.words = ""

    def is_open(self, now: float) -> bool:
        """Whether the site may be asked now."""
        return not self.given_up and now >= self.until

    def _wrong(
        self, now: float, words: str, most: int, *, counts: bool, excused: float | None = None
    ) -> None:
        if not self._back_off(now, excused=excused):
            return  # of the same burst
        if not counts:
            return
        self.same = self.same + 1 if _alike(words, self.words) else 1
        self.words = words
        if self.same >= most:
            self.given_up = words or "it does not say why"

    def _back_off(self, now: float, *, excused: float | None = None) -> bool:
        """
        Leave the site alone for a while, each time twice as long.

        Parameters
        ----------
        excused
            When the allocation began of which the loss does not delay the next request, if it
            is the first thing that goes wrong; None: it does.

        Returns
        -------
        bool
            False when this belongs to a burst that was counted already.
        """
        is_burst = excused is not None and now < self.burst_until and excused <= self.wrong_at
        # One crash fails many requests at once: the burst is one failure, or a single outage would
        # give a site up.
        if now < self.until or is_burst:
            return False
        self.wrong_at = now
        self.burst_until = now + min(FIRST * 2.0**self.steps, LONGEST)
        if self.steps or excused is None:
            self.until = self.burst_until
        # Bounded, so that the power above stays a finite number.
        self.steps = min(self.steps + 1, 32)
        return True


def _alike(one: str, other: str) -> bool:
    """Whether two messages differ at most in numbers, such as job ids."""
    return re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


# A pool's memory from one decision to the next.


@dataclass(slots=True)
class PendingRequest:
    """
    A request that the pool made and that is not gone.

    Parameters
    ----------
    asked
        Time of the request, on the pool's clock; None: unknown.
    fits
        Whether the request fitted the free processors and should have started at once.
    began
        Time at which processors were received, on the pool's clock; None: not yet.
    worked
        Whether any of the processors had a task.
    silent_since
        When its last worker went away, on the pool's clock, if it was given back for that.
    """

    site: str
    asked: float | None = None
    fits: bool = False
    began: float | None = None
    worked: bool = False
    given_back: bool = False
    silent_since: float | None = None


@dataclass(slots=True)
class SiteObservation:
    """Processors of a site that were claimed since the scheduler was last asked."""

    free: int | None
    backfill_windows: tuple[Slot, ...]
    claims: list[RequestShape] = field(default_factory=list)


@dataclass(slots=True)
class PoolMemory:
    """
    All that a pool remembers.

    Parameters
    ----------
    wake
        When a decision may be due though nothing has happened, on the pool's clock.
    spare
        Since when at least so many processors are too many; None: there are none.
    tried
        Moves of requests since one last began, by site.
    labels
        Number of labels given to races and bundles so far.
    """

    waits: WaitPredictor
    wake: float = math.inf
    health_by_site: dict[str, SiteHealth] = field(default_factory=dict)
    observations: dict[str, SiteObservation] = field(default_factory=dict)
    known: dict[str, PendingRequest] = field(default_factory=dict)
    is_hungry: bool = False
    spare: tuple[float, int] | None = None
    tried: dict[str, int] = field(default_factory=dict)
    labels: int = 0

    def health(self, site: str) -> SiteHealth:
        """Return a site's health, initially good."""
        return self.health_by_site.setdefault(site, SiteHealth())

    def wake_at(self, moment: float) -> None:
        """Wake at a given time at the latest."""
        self.wake = min(self.wake, moment)

    def label(self, kind: str) -> str:
        """Return a label that was not given before."""
        self.labels += 1
        return f"{kind}-{self.labels}"
