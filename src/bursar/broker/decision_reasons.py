"""Reasons for the share of each site, kept where a reason has changed."""

import math

from bursar.broker.adviser import ScheduleAdvice, SchedulingSnapshot
from bursar.broker.decisions import SiteDecision


class DecisionReasons:
    """
    Keeps the reasons of the last advice for the next decision.

    A campaign of many jobs gets advice more often than its reasons change. They are kept when a
    site is used that was not, or at another price, and otherwise once for each hundredth of
    the jobs.

    Parameters
    ----------
    jobs
        Number of jobs of the campaign.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._sites: list[SiteDecision] = []
        self._used: list[tuple[str, bool, float]] = []
        self._left = math.inf  # jobs when reasons were kept last

    def note(self, situation: SchedulingSnapshot, advice: ScheduleAdvice, left: int) -> None:
        """
        Keep the changed reasons of an advice.

        Parameters
        ----------
        situation
            Snapshot on which the advice rests.
        left
            Number of jobs that have not been sent.
        """
        weighed = [
            SiteDecision(
                site.name,
                site.price,
                len(site.running),
                site.processors,
                sum(given),
                advice.reasons.get(site.name, ""),
            )
            for site, given in zip(situation.sites, advice.given, strict=True)
        ]
        used = [(w.site, w.given > 0, w.price) for w in weighed]
        if used != self._used or self._left - left >= self._jobs / 100:
            self._used, self._left = used, left
            self._sites = weighed

    def take(self) -> list[SiteDecision]:
        """Return the reasons that no decision has taken yet; empty: as in the decision before."""
        sites, self._sites = self._sites, []
        return sites
