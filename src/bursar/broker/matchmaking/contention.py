"""
Estimates the load by the broker's own jobs, and the delay that one job causes to later jobs.

Who takes the site where he is done first waits in a queue that is then longer for all who come
later. Where a share r of a site is in use, a queue of w seconds lasts for w / (1 - r), since
what comes meanwhile keeps it up; each that comes meanwhile waits for the added job as well.
They lose w r / (1 - r) by it in all. So a stream of jobs is done sooner on the mean where each
counts its wait 1 / (1 - r) times: at little load it takes the fast site and waits, at a high
load the slow one that is free.
"""

from collections import deque

PART = 1 / 3
"""Length of a span of time, as a share of a job's mean length."""

SPANS = 30
"""Number of spans over which the share is taken."""

LEAST_SPANS = 3
"""Least divisor, in spans: jobs that come all at once are no stream, and none come after them."""

_SHORTEST = 1e-6
"""Seconds of a span."""

MOST = 0.9
"""Greatest share that is believed: a higher load cannot last."""


class ContentionModel:
    """
    Estimates the share of the sites' processors that our jobs need, by what was sent lately.

    Time is cut into spans, each a part of what a job takes on the mean. Of each as much counts
    as the sites can do in it, however many jobs came; the one under way does not count yet.

    Parameters
    ----------
    capacity
        Sum over all sites of processors times speed.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._shares: deque[float] = deque(maxlen=SPANS)  # of spans that are over
        self._begin: float | None = None
        self._span = 0.0
        self._work = 0.0

    def sent(self, now: float, work: float, length: float) -> None:
        """
        Note that a job has been sent.

        Parameters
        ----------
        now
            Seconds.
        work
            Work of the jobs sent: processors times seconds at speed 1.
        length
            Mean seconds of a job; where this is next to nothing, the load counts as none.
        """
        span = PART * length
        if span < _SHORTEST:
            return
        self._end_spans(now, span)
        if self._begin is None:
            self._begin, self._span = now, span
        self._work += work

    def share(self, now: float) -> float:
        """Return the share of the capacity in use, from 0 to :data:`MOST`."""
        self._end_spans(now, self._span)
        return min(MOST, sum(self._shares) / max(len(self._shares), LEAST_SPANS))

    def toll(self, now: float) -> float:
        """Return the seconds that later jobs lose for each second that a job waits."""
        share = self.share(now)
        return share / (1 - share)

    def _end_spans(self, now: float, next_span: float) -> None:
        """Count the spans that are over; spans that follow have a new length."""
        if self._begin is None or now < self._begin + self._span:
            return
        # A burst counts as a full span at most: work beyond the capacity only waits.
        self._shares.append(min(1.0, self._work / (self._capacity * self._span)))
        self._begin, self._span, self._work = self._begin + self._span, next_span, 0.0
        idle = int((now - self._begin) / next_span)
        # After a long silence, all spans that are kept are idle ones: no loop over millions of
        # them.
        self._shares.extend([0.0] * min(idle, SPANS))
        self._begin += idle * next_span
