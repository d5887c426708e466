"""The resource broker of a run: the index it reads, the sites that fill it, and their files."""

import math
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import numpy as np

from bursar.broker.brokered_scheduler import BrokeredScheduler, FileStaging
from bursar.broker.directory.information_index import InformationIndex
from bursar.broker.directory.status_feeds import StatusPoller
from bursar.broker.freezable_clock import FreezableClock
from bursar.broker.matchmaking.broker import ResourceBroker
from bursar.broker.matchmaking.file_times import LinkedFileTimes
from bursar.broker.matchmaking.ranking import FloatArray
from bursar.cluster.element import ComputingElement
from bursar.model.brokering import Brokering
from bursar.model.campaign import Campaign
from bursar.model.errors import SiteError
from bursar.model.replica import Replica
from bursar.model.site import SiteFacts
from bursar.model.status import SiteStatus
from bursar.model.weights import RankWeights
from bursar.sites.protocol import Site

Copies = Callable[[str], Sequence[Replica]]
"""Where a logical file is."""


class RunBroker:
    """
    Brings a run's jobs to its sites by matchmaking.

    The queue of a site that is ours alone is kept here, and told of by the site; one that is
    shared tells of its own. The information index asks them all every ``refresh`` seconds.

    Parameters
    ----------
    campaign
        What is to run.
    sites
        By name.
    settings
        How jobs are matched.
    clock
        Seconds; of the loop that it runs on.
    copies
        Where a logical file is; None: no task reads any.
    haulage
        Brings files to sites; None as before.
    """

    def __init__(
        self,
        campaign: Campaign,
        sites: Mapping[str, Site],
        settings: Brokering,
        *,
        clock: Callable[[], float],
        copies: Copies | None = None,
        haulage: FileStaging | None = None,
    ) -> None:
        facts = [site.facts for site in sites.values()]
        self._sites = sites
        self._now = now = FreezableClock(clock)
        self._refresh = settings.refresh
        self._usual = _usual(campaign, facts)
        self._said: dict[str, tuple[int | None, SiteStatus]] = {}  # at which moment
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
        self.supply = BrokeredScheduler(
            campaign.workflow,
            facts,
            self.broker,
            self._elements,
            choice=settings.choice,
            moment=now,
            haulage=haulage,
            retry=campaign.retry,
            on_broken=self._publish,
            on_unreached=None if self._files is None else self._files.failed,
        )

    def status(self, site: str) -> SiteStatus:
        """
        What a site says of itself now.

        Raises
        ------
        SiteError
            When it cannot say, or says nothing sensible.
        """
        said, now = self._ask(site), self._now()
        if self._sites[site].facts.is_shared:
            # Jobs that are sent at this moment have yet to reach its queue.
            said = replace(said, at=math.nextafter(now, -math.inf))
        else:
            ours = self._elements[site].status(now, site)
            said = replace(ours, free_memory=said.free_memory, attributes=said.attributes)
        return replace(said, state="Closed") if self.supply.is_broken(site) else said

    def _ask(self, site: str) -> SiteStatus:
        """What it says; at one moment it is asked once, however many jobs are matched."""
        moment = self._now.number
        heard = self._said.get(site)
        if heard is not None and moment is not None and heard[0] == moment:
            return heard[1]
        try:
            said = self._sites[site].status(self._usual.get(site))
        except SiteError:
            raise
        except Exception as error:  # whatever it is, the others go on
            raise SiteError(f"{site}: {type(error).__name__}: {error}") from error
        if not isinstance(said, SiteStatus):
            raise SiteError(f"{site} answers garbage: {said!r:.60}")
        self._said[site] = moment, said
        return said

    def _publish(self, site: str) -> None:
        """The index hears of a site out of its turn; not where it does not say."""
        with suppress(SiteError):
            self.directory.publish(self.status(site))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The index knows all sites, and goes on asking them."""
        poller = StatusPoller(
            self.directory,
            {name: partial(self.status, name) for name in self._sites},
            every=self._refresh,
            on_round=self.supply.index_asked,
        )
        async with poller:
            await poller.wait_for_all()
            yield


_EXPIRY = 10.0
"""Rounds that a site may miss before the index forgets it."""


def _usual(campaign: Campaign, sites: Sequence[SiteFacts]) -> dict[str, float]:
    """Seconds that the campaign's jobs run at each site, their median; none where unknown."""
    runtimes = [task.runtime for task in campaign.workflow.tasks if task.runtime is not None]
    if not runtimes:
        return {}
    return {site.name: statistics.median(runtimes) / site.speed for site in sites}


class _LinkTransfers:
    """
    What files take, as the links say; not to where they could not be brought.

    Where a storage is full or broken, matching a job again would choose its site again. When
    no other site is left each is tried again.

    Parameters
    ----------
    files
        By the links.
    """

    def __init__(self, files: LinkedFileTimes) -> None:
        self._files = files
        self._failed: set[tuple[tuple[str, ...], str]] = set()
        self.access_times = files.access_times

    def failed(self, data: tuple[str, ...], site: str) -> None:
        """These files could not be brought to a site."""
        self._failed.add((data, site))

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """See :meth:`bursar.broker.matchmaking.file_times.LinkedFileTimes.transfer_times`."""
        times = self._files.transfer_times(data, sites)
        if not self._failed:
            return times
        reached = np.array([(data, site) not in self._failed for site in sites], dtype=np.bool_)
        left = np.where(reached, times, np.inf)
        return left if np.isfinite(left).any() else times
