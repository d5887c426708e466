"""Puts a grid together, with what the broker is told of sites, and runs a load of jobs."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar.broker.matchmaking.broker import ResourceBroker
from bursar.broker.matchmaking.broker_interfaces import BrokerJob as Asked
from bursar.broker.status_feeds import build_hierarchy
from bursar.model.matching import SiteStatus
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.computing_elements import (
    GridJob,
    GridJobState,
    SimulatedElement,
    make_element,
)
from bursar.simulation.datagrid.grid_outcome import GridJobEvent, GridOutcome, GridRecorder
from bursar.simulation.datagrid.scenario import (
    BrokerPolicy,
    DataGrid,
    GridFaults,
    GridServices,
    GridWorkload,
)
from bursar.simulation.datagrid.staging import (
    GridStaging,
    GridTransport,
    ReplicaCatalogue,
    SubmissionService,
    storages_of,
)
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.virtual_loop import VirtualLoop

# Tells a simulated broker the status of sites, and how long files take.


class InformationService:
    """
    Keeps the information index of a simulation, refreshed on virtual time.

    Parameters
    ----------
    services
        Levels of the index, and when what a site said expires.
    mute
        Sites that answer nobody.
    is_needed
        Whether the broker may still look at the index; once not, never again.
    """

    def __init__(
        self,
        services: GridServices,
        loop: VirtualLoop,
        elements: Mapping[str, SimulatedElement],
        mute: frozenset[str],
        is_needed: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._elements = elements
        self._mute = mute
        self._is_needed = is_needed
        self.gone: set[str] = set()
        """Sites that are not there at the moment."""
        sources: dict[str, Callable[[], SiteStatus | None]] = {
            name: partial(self.status, name) for name in elements
        }
        self.index = build_hierarchy(
            services.levels, sources, clock=loop.time, expiry=services.expiry
        ).top

    def start(self) -> None:
        """Begin to refresh the index whenever due."""
        self._refresh()

    def status(self, site: str) -> SiteStatus | None:
        """Return the status of a site now; None when the site does not answer."""
        if site in self.gone or site in self._mute:
            return None
        return self._elements[site].status()

    def _refresh(self) -> None:
        if not self._is_needed():
            return
        self.index.refresh(self._loop.time())
        self._loop.call_at(self.index.next_due, self._refresh)


FloatArray = NDArray[np.float64]


class GridFileTimes:
    """
    Computes the two terms of equation 3 from the replica catalogue and network capacities.

    Parameters
    ----------
    transport
        Network, for transfer times without other traffic: bandwidths are measured once, as in
        section 2.3.
    """

    def __init__(
        self, catalogue: ReplicaCatalogue, transport: GridTransport, sites: Sequence[SiteFacts]
    ) -> None:
        self._catalogue = catalogue
        self._transport = transport
        self._sites = {site.name: site for site in sites}
        self._version = catalogue.version
        self._transfers: dict[tuple[tuple[str, ...], tuple[str, ...]], FloatArray] = {}

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """Return seconds to bring the missing files one by one, each from the nearest copy."""
        if self._catalogue.version != self._version:
            self._version = self._catalogue.version
            # Any copy that comes or goes may be the nearest one for many jobs.
            self._transfers.clear()
        key = data, tuple(sites)
        found = self._transfers.get(key)
        if found is None:
            found = np.array([sum(self._bringing(name, site) for name in data) for site in sites])
            self._transfers[key] = found
        return found

    def access_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """Seconds to read the files from each site's storage."""
        size = sum(self._catalogue.size(name) for name in data)
        return np.array([read_seconds(self._sites[site], size) for site in sites])

    def _bringing(self, name: str, site: str) -> float:
        size = self._catalogue.size(name)
        holders = self._catalogue.sites(name)
        if site in holders:
            return 0.0
        return min(
            (self._transport.seconds(source, site, size) for source in holders),
            default=float("inf"),
        )


def read_seconds(site: SiteFacts, size: float) -> float:
    """Seconds to read so many bytes from a site's storage."""
    return 0.0 if site.storage_rate is None else size / site.storage_rate


# Puts a grid together and runs a load of jobs.

NO_FAULTS = GridFaults()

SimulationObserver = Callable[["DataGridSimulation"], None]
"""Told after every event."""


def simulate(
    grid: DataGrid,
    load: GridWorkload,
    *,
    policy: BrokerPolicy | None = None,
    services: GridServices | None = None,
    faults: GridFaults | None = None,
    clusters: Mapping[str, LoadedCluster] | None = None,
    seed: int = 0,
    watch: SimulationObserver | None = None,
) -> GridOutcome:
    """
    Run a load of jobs through a grid.

    Parameters
    ----------
    policy
        Policy of the broker; None: Bursar's own.
    services, faults
        None: the usual ones, and none.
    clusters
        Machines with a batch scheduler, by site, which are used up; the other sites serve
        first come, first served.
    seed
        Seed of the broker's choices. Equal seeds give equal traces.
    watch
        Told after every event.

    Raises
    ------
    InputError
        When a job asks for something that cannot be read.
    """
    loop = VirtualLoop()
    try:
        world = DataGridSimulation(
            grid,
            load,
            policy or BrokerPolicy(),
            services or GridServices(),
            faults or GridFaults(),
            clusters or {},
            loop,
            seed,
            watch,
        )
        return world.run()
    finally:
        loop.close()


class DataGridSimulation:
    """
    Runs one simulation.

    Parameters
    ----------
    grid, load, policy, services, faults, clusters, seed, watch
        See :func:`simulate`.
    """

    def __init__(
        self,
        grid: DataGrid,
        load: GridWorkload,
        policy: BrokerPolicy,
        services: GridServices,
        faults: GridFaults,
        clusters: Mapping[str, LoadedCluster],
        loop: VirtualLoop,
        seed: int,
        watch: SimulationObserver | None,
    ) -> None:
        self._loop = loop
        self._load = load
        self._services = services
        self._faults = faults
        self._watch = watch
        self._facts = grid.sites
        self._names = tuple(site.name for site in grid.sites)
        catalogue = ReplicaCatalogue(grid.replicas)
        transport = GridTransport(grid, loop)
        self._catalogue = catalogue
        self._storages = storages_of(grid)
        self._staging = GridStaging(
            self._names,
            self._storages,
            catalogue,
            transport,
            faults,
            keeps=services.keeps,
            staged=self._staged,
            failed=self._not_staged,
        )
        self._submission = SubmissionService(
            services, loop, bring=self._staging.bring, hand_over=self._hand_over
        )
        self._elements = {
            site.name: make_element(site, loop, self._began, self._ended, clusters.get(site.name))
            for site in grid.sites
        }
        self._information = InformationService(
            services, loop, self._elements, faults.mute, self._asks_again
        )
        self._broker = ResourceBroker(
            grid.sites,
            index=self._information.index,
            files=GridFileTimes(catalogue, transport, grid.sites),
            direct=self._information if policy.direct else None,
            weights=policy.weights,
            choice=policy.choice,
            as_published=policy.as_published,
            rng=np.random.default_rng(seed),
            clock=loop.time,
        )
        self._next = 0
        self._paused: dict[int, GridJob] = {}
        self._review_due = False
        self._error: BaseException | None = None
        self._record = GridRecorder(self._names, load.at)

    def run(self) -> GridOutcome:
        """Run until every job has finished or failed, and return the outcome."""
        self._loop.set_exception_handler(self._stop_on)
        self._information.start()
        for outage in self._faults.outages:
            self._loop.call_at(outage.begin, self._lose, outage.site)
            if math.isfinite(outage.end):
                self._loop.call_at(outage.end, self._find_again, outage.site)
        self._loop.call_at(float(self._load.at[0]), self._submit)
        self._loop.run_forever()
        if self._error is not None:
            raise self._error
        return self._record.outcome()

    @property
    def now(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    @property
    def submitted(self) -> int:
        """Jobs so far."""
        return self._next

    @property
    def census(self) -> dict[str, int]:
        """Number of jobs at each place, counted at the services that hold the jobs."""
        return {
            "paused": len(self._paused),
            "staging": self._submission.waiting + len(self._staging.jobs),
            "submitting": self._submission.ready,
            "queued": sum(element.queued for element in self._elements.values()),
            "running": sum(element.running for element in self._elements.values()),
            "finished": self._record.finished,
            "failed": self._record.failed,
        }

    # The life of a job.

    def _submit(self) -> None:
        """Submit the next job, as a user interface does."""
        number = self._next
        kind = self._load.kinds[self._load.kind[number]]
        job = GridJob(number, kind, float(self._load.work[number]))
        self._next += 1
        # One timer at a time, so that the loop's heap is as small as what is under way, not as
        # the whole load.
        if self._next < len(self._load):
            self._loop.call_at(float(self._load.at[self._next]), self._submit)
        self._note(GridJobEvent.SUBMITTED, job)
        self._match(job)

    def _match(self, job: GridJob) -> None:
        """Match a job, as the resource broker does."""
        self._paused.pop(job.number, None)
        asked = _broker_job(job)
        match = self._broker.choose(asked)
        if isinstance(match, Refusal):
            # Where it failed before is better than nowhere.
            again = bool(job.avoids) or not match.final
            job.avoids = ()
            self._set_back(job, match.reason, again=again)
            return
        job.site = self._record.number[match.site]
        self._broker.sent(asked, match.site)
        self._note(GridJobEvent.SENT, job)
        self._submission.accept(job)

    def _staged(self, job: GridJob) -> None:
        self._submission.staged(job)

    def _not_staged(self, job: GridJob, reason: str) -> None:
        self._submission.failed()
        self._fail(job, reason)

    def _hand_over(self, job: GridJob) -> None:
        """Hand a job over to the site, as the job submission service does."""
        site = self._names[job.site]
        facts = self._facts[job.site]
        # The site may have gone after the broker sent the job there.
        if site in self._information.gone:
            self._fail(job, f'the site "{site}" is gone')
            return
        job.state = GridJobState.QUEUED
        self._broker.arrived(job.number)
        self._note(GridJobEvent.ARRIVED, job)
        size = sum(self._catalogue.size(name) for name in job.kind.data)
        access = read_seconds(facts, size)
        told = job.kind.estimate(job.work)
        self._elements[site].submit(
            job,
            access + job.work / facts.speed,
            None if told is None else access + told / facts.speed,
        )

    def _began(self, job: GridJob) -> None:
        storage = self._storages[self._names[job.site]]
        if not all(storage.has(name) or name in job.own for name in job.kind.data):
            # A contradiction of the simulation itself, so no outcome of the job.
            raise RuntimeError(f"job {job.number} starts before its files are there")
        job.state = GridJobState.RUNNING
        self._broker.began(job.number)
        self._note(GridJobEvent.BEGAN, job)

    def _ended(self, job: GridJob) -> None:
        job.state = GridJobState.FINISHED
        self._staging.release(job)
        self._broker.ended(job.number)
        self._note(GridJobEvent.ENDED, job)
        self._stop_when_done()

    def _fail(self, job: GridJob, reason: str) -> None:
        """Record a failed attempt at a site, and set the job back."""
        self._staging.release(job)
        self._broker.ended(job.number, well=False)
        job.avoids = (*job.avoids, self._names[job.site])
        self._set_back(job, reason, again=True)

    def _set_back(self, job: GridJob, reason: str, *, again: bool) -> None:
        job.attempt += 1
        if again and job.attempt <= self._services.retries:
            job.state = GridJobState.PAUSED
            self._paused[job.number] = job
            self._note(GridJobEvent.SET_BACK, job)
            self._loop.call_later(self._services.pause, self._match, job)
            return
        job.state = GridJobState.FAILED
        self._record.reasons[reason] += 1
        self._note(GridJobEvent.FAILED, job)
        self._stop_when_done()

    def _asks_again(self) -> bool:
        """Whether the broker will be asked for a site once more, or might be."""
        return self._next < len(self._load) or bool(self._paused) or self._faults != NO_FAULTS

    # Sites that go and come.

    def _lose(self, site: str) -> None:
        self._information.gone.add(site)
        for job in self._elements[site].lose():
            self._fail(job, f'the site "{site}" is gone')
        self._staging.lose(site)

    def _find_again(self, site: str) -> None:
        self._information.gone.discard(site)
        self._staging.find_again(site)

    # What is written down.

    def _note(self, event: GridJobEvent, job: GridJob) -> None:
        """Record an event of a job, and have the observer called once this step is over."""
        self._record.add(self._loop.time(), event, job.number, job.site)
        if self._watch is not None and not self._review_due:
            # Not at once: in the middle of a step a job may be counted at two places, or at none.
            self._review_due = True
            self._loop.call_soon(self._review)

    def _review(self) -> None:
        self._review_due = False
        if self._watch is not None:
            self._watch(self)

    def _stop_when_done(self) -> None:
        if self._record.finished + self._record.failed == len(self._load):
            # After the calls of this moment, so that the observer sees the last event.
            self._loop.call_soon(self._loop.stop)

    def _stop_on(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback ends the simulation, rather than being passed over."""
        self._error = context.get("exception") or RuntimeError(context["message"])
        loop.stop()


def _broker_job(job: GridJob) -> Asked:
    """Return the job in the broker's form."""
    kind = job.kind
    matching = kind.matching
    if job.avoids:
        avoided = [f'other.Name =!= "{site}"' for site in dict.fromkeys(job.avoids)]
        wanted = [f"({matching.requirements})"] if matching.requirements else []
        matching = replace(matching, requirements=" && ".join([*wanted, *avoided]))
    return Asked(
        number=job.number,
        matching=matching,
        processors=kind.processors,
        runtime=kind.estimate(job.work),
        memory=kind.memory,
        data=kind.data,
    )
