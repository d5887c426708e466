"""The resource broker of a run: the index it reads, the sites that fill it, and their files."""

import math
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import numpy as np

from bursar.broker.brokered_scheduler import BrokeredScheduler, FileStaging, FreezableClock
from bursar.broker.information_index import InformationIndex
from bursar.broker.matchmaking.broker import ResourceBroker
from bursar.broker.matchmaking.broker_interfaces import LinkedFileTimes
from bursar.broker.matchmaking.choice import FloatArray
from bursar.broker.status_feeds import StatusPoller
from bursar.cluster.element import ComputingElement
from bursar.model.campaign import Campaign
from bursar.model.errors import SiteError
from bursar.model.matching import Brokering, RankWeights, Replica, SiteStatus
from bursar.model.site import SiteFacts
from bursar.sites.protocol import Site

Copies = Callable[[str], Sequence[Replica]]
"""Function that returns the replicas of a logical file."""


class RunBroker:
    """
    Brings the jobs of a run to sites by matchmaking.

    The broker counts the queue of a site that only this run uses; a shared site reports the
    queue. The information index asks all sites every ``refresh`` seconds.

    Parameters
    ----------
    clock
        Returns the loop's time, seconds.
    copies
        Looks up the replicas of a logical file; None: no task reads any.
    staging
        Stages files to sites; None: no task reads logical files.
    """

    def __init__(
        self,
        campaign: Campaign,
        sites: Mapping[str, Site],
        settings: Brokering,
        *,
        clock: Callable[[], float],
        copies: Copies | None = None,
        staging: FileStaging | None = None,
    ) -> None:
        facts = [site.facts for site in sites.values()]
        self._sites = sites
        self._now = now = FreezableClock(clock)
        self._refresh = settings.refresh
        self._usual = _usual(campaign, facts)
        self._statuses: dict[str, tuple[int | None, SiteStatus]] = {}  # by instant of the clock
        self._files = None if copies is None else _LinkTransfers(LinkedFileTimes(facts, copies))
        self._elements = {f.name: ComputingElement(f.processors, f.speed) for f in facts}
        self.directory = InformationIndex(
            clock=now,
            expiry=_EXPIRY * settings.refresh,
            processors={f.name: f.processors for f in facts},
        )
        self.broker = ResourceBroker(
            facts,
            index=self.directory,
            direct=self if settings.rank_by == "site" else None,
            files=self._files,
            weights=RankWeights(alpha=settings.alpha, beta=settings.beta),
            choice=settings.choice,
            rng=np.random.default_rng(settings.seed),
            clock=now,
        )
        self.scheduler = BrokeredScheduler(
            campaign.workflow,
            facts,
            self.broker,
            self._elements,
            choice=settings.choice,
            moment=now,
            staging=staging,
            retry=campaign.retry,
            on_broken=self._publish,
            on_unreached=None if self._files is None else self._files.failed,
        )

    def status(self, site: str) -> SiteStatus:
        """
        Return the status that a site reports now.

        Raises
        ------
        SiteError
            When the site reports none, or one that cannot be true.
        """
        status, now = self._ask(site), self._now()
        if self._sites[site].facts.is_shared:
            # Jobs that are sent at this moment have yet to reach its queue.
            status = replace(status, at=math.nextafter(now, -math.inf))
        else:
            ours = self._elements[site].status(now, site)
            status = replace(ours, free_memory=status.free_memory, attributes=status.attributes)
        return replace(status, state="Closed") if self.scheduler.is_broken(site) else status

    def _ask(self, site: str) -> SiteStatus:
        """Return a site's status; within one instant the site is asked once for all jobs."""
        moment = self._now.number
        stored = self._statuses.get(site)
        # A burst of jobs is matched at one instant of a clock that stands still; asking once for
        # each job would cost as many questions as there are jobs and sites.
        if stored is not None and moment is not None and stored[0] == moment:
            return stored[1]
        try:
            status = self._sites[site].status(self._usual.get(site))
        except SiteError:
            raise
        except Exception as error:  # whatever it is, the others go on
            raise SiteError(f"{site}: {type(error).__name__}: {error}") from error
        if not isinstance(status, SiteStatus):
            raise SiteError(f"{site} answers garbage: {status!r:.60}")
        self._statuses[site] = moment, status
        return status

    def _publish(self, site: str) -> None:
        """Publish the status of a site in the index at once, if the site reports one."""
        with suppress(SiteError):
            self.directory.publish(self.status(site))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait until the index knows all sites, then poll the sites until the context is left."""
        poller = StatusPoller(
            self.directory,
            {name: partial(self.status, name) for name in self._sites},
            every=self._refresh,
            on_round=self.scheduler.index_asked,
        )
        async with poller:
            await poller.wait_for_all()
            yield


_EXPIRY = 10.0
"""Rounds that a site may miss before the index forgets it."""


def _usual(campaign: Campaign, sites: Sequence[SiteFacts]) -> dict[str, float]:
    """Return the median seconds of the campaign's jobs at each site; empty where unknown."""
    runtimes = [task.runtime for task in campaign.workflow.tasks if task.runtime is not None]
    if not runtimes:
        return {}
    return {site.name: statistics.median(runtimes) / site.speed for site in sites}


class _LinkTransfers:
    """
    Transfer times by the network links, infinite to sites where staging has failed.

    Where a storage is full or broken, matching a job again would choose its site again. When
    no other site is left each is tried again.
    """

    def __init__(self, files: LinkedFileTimes) -> None:
        self._files = files
        self._failed: set[tuple[tuple[str, ...], str]] = set()
        self.access_times = files.access_times

    def failed(self, data: tuple[str, ...], site: str) -> None:
        """Note that staging these files to a site has failed."""
        self._failed.add((data, site))

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """
        Return, for each site, the seconds until the files that the site lacks have been brought
        there; infinite where a file has no copy.
        """
        times = self._files.transfer_times(data, sites)
        if not self._failed:
            return times
        reached = np.array([(data, site) not in self._failed for site in sites], dtype=np.bool_)
        left = np.where(reached, times, np.inf)
        return left if np.isfinite(left).any() else times
