"""Brings files to the sites of jobs: storage, transfers, and jobs that wait for files."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from bursar.model.matching import Replica
from bursar.model.network import NetworkLink, Topology
from bursar.simulation.datagrid.computing_elements import GridJob, GridJobState
from bursar.simulation.datagrid.scenario import DataGrid, GridFaults, GridServices
from bursar.simulation.flow_network import Flow, FlowNetwork
from bursar.simulation.virtual_loop import VirtualLoop

# Simulates storage elements and the replica catalogue.


class ReplicaCatalogue:
    """
    Maps logical names to the sites that hold a copy, in memory.

    Parameters
    ----------
    replicas
        Copies at the beginning. One without a size counts as 0 bytes.
    """

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._sites: dict[str, dict[str, None]] = {}
        self._sizes: dict[str, int] = {}
        self.version = 0
        """Number that changes with every change of the catalogue."""
        for replica in replicas:
            self._sizes[replica.name] = replica.size or 0
            self.register(replica.name, replica.site)

    def register(self, name: str, site: str) -> None:
        """Register a copy."""
        self._sites.setdefault(name, {})[site] = None
        self.version += 1

    def forget(self, name: str, site: str) -> None:
        """Remove a copy that is gone or bad."""
        if self._sites.get(name, {}).pop(site, self) is None:
            self.version += 1

    def sites(self, name: str) -> Iterable[str]:
        """Return the sites that hold a copy, in the order of registration."""
        return self._sites.get(name, ())

    def size(self, name: str) -> int:
        """Return a file's registered bytes; 0 for an unknown file."""
        return self._sizes.get(name, 0)


class StorageElement:
    """
    The files at a site: its own, and copies that were brought and stay while there is room.

    Parameters
    ----------
    own
        Names of files that always stay.
    limit
        Bytes that copies may take; None: as many as there are.
    """

    def __init__(self, own: Iterable[str], limit: int | None) -> None:
        self._own = frozenset(own)
        self._limit = limit
        self._copies: dict[str, int] = {}  # the one longest unused first
        self._pins: dict[str, int] = {}
        self.used = 0
        """Bytes of copies."""

    def has(self, name: str) -> bool:
        """Whether the storage holds a file."""
        return name in self._own or name in self._copies

    def pin(self, name: str) -> None:
        """Pin a file that a job uses; pinned files are not evicted."""
        if name in self._copies:
            # Moved to the end of the dictionary, which thus stays in order of last use.
            self._copies[name] = self._copies.pop(name)
        self._pins[name] = self._pins.get(name, 0) + 1

    def release(self, name: str) -> None:
        """Unpin a file for a job."""
        left = self._pins[name] - 1
        if left:
            self._pins[name] = left
        else:
            del self._pins[name]

    def keep(self, name: str, size: int) -> list[str] | None:
        """
        Keep a copy, and evict the least recently used copies for room.

        Returns
        -------
        list or None
            Copies evicted; None when there is no room, and then nothing is evicted.
        """
        if self._limit is None:
            going: list[str] = []
        else:
            excess = self.used + size - self._limit
            going = []
            for other, taken in self._copies.items():
                if excess <= 0:
                    break
                # A file in use stays, however long ago it was asked for.
                if other not in self._pins:
                    going.append(other)
                    excess -= taken
            # Decided before anything goes: a copy that does not fit must not cost others their
            # place.
            if excess > 0:
                return None
        for other in going:
            self.used -= self._copies.pop(other)
        self._copies[name] = size
        self.used += size
        return going


def storages_of(grid: DataGrid) -> dict[str, StorageElement]:
    """The storage elements of a grid, by site."""
    limits = {site.name: site.storage_limit for site in grid.sites} | dict.fromkeys(grid.stores)
    own: dict[str, list[str]] = {name: [] for name in limits}
    for replica in grid.replicas:
        own[replica.site].append(replica.name)
    return {name: StorageElement(own[name], limit) for name, limit in limits.items()}


# Transfers files between sites, over a topology or over the sites' own links.

GridTransfer = Flow | asyncio.TimerHandle
"""A transfer under way."""


class GridTransport:
    """
    Carries files between sites.

    Parameters
    ----------
    grid
        With its topology. Without one, each link between two sites has its own capacity,
        and sites without a link between them share their files.
    """

    def __init__(self, grid: DataGrid, loop: VirtualLoop) -> None:
        self._loop = loop
        self._grid = grid
        self._linked = (
            {(site.name, other) for site in grid.sites for other in site.links}
            if grid.topology is None
            else None
        )
        self._topology = _topology_of_links(grid) if grid.topology is None else grid.topology
        self._network = FlowNetwork(self._topology, loop)
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def seconds(self, source: str, target: str, size: float) -> float:
        """Return the seconds for so many bytes in an idle network; infinite without a route."""
        known = self._known.get((source, target))
        if known is None:
            known = self._known[source, target] = self._look_up(source, target)
        latency, bandwidth = known
        return latency + size / bandwidth

    def _look_up(self, source: str, target: str) -> tuple[float, float]:
        if self._is_shared(source, target):
            return 0.0, math.inf
        route = self._topology.find(*self._ends(source, target))
        return (math.inf, math.inf) if route is None else (route.latency, route.bandwidth)

    def send(self, source: str, target: str, size: float, done: Callable[[], None]) -> GridTransfer:
        """
        Send bytes between two sites.

        Parameters
        ----------
        done
            Called once they are there; never before this returns.
        """
        if self._is_shared(source, target):
            # Not at once: whoever sends is not ready to be told from within the call.
            return self._loop.call_later(0.0, done)
        return self._network.send(*self._ends(source, target), size, lambda _: done())

    def stop(self, carriage: GridTransfer) -> None:
        """Stop a transfer; the bytes sent so far are lost."""
        if isinstance(carriage, Flow):
            self._network.cancel(carriage)
        else:
            carriage.cancel()

    def _is_shared(self, source: str, target: str) -> bool:
        if source == target:
            return True
        return self._linked is not None and (source, target) not in self._linked

    def _ends(self, source: str, target: str) -> tuple[str, str]:
        if self._linked is None:
            return self._grid.node(source), self._grid.node(target)
        return _end(source, target, source), _end(source, target, target)


def _topology_of_links(grid: DataGrid) -> Topology:
    """Return a topology with a wire for each link and separate ends, so that no links share."""
    pairs = [(site, other) for site in grid.sites for other in site.links]
    return Topology(
        nodes=tuple(
            _end(site.name, other, end) for site, other in pairs for end in (site.name, other)
        ),
        wires=tuple(
            NetworkLink(
                source=_end(site.name, other, site.name),
                target=_end(site.name, other, other),
                bandwidth=site.links[other].bandwidth,
                latency=site.links[other].latency,
                duplex="one-way",
            )
            for site, other in pairs
        ),
    )


def _end(source: str, target: str, end: str) -> str:
    return f"{source} > {target}: {end}"


# Bringing to a site the files that a job lacks.


class _FileTransfer:
    """Carries one file to one site, for one job or for all jobs that wait for the file there."""

    __slots__ = ("carriage", "jobs", "name", "site", "source", "tried")

    def __init__(self, name: str, site: str, job: GridJob) -> None:
        self.name = name
        self.site = site
        self.jobs = [job]
        self.source = ""
        self.tried: set[str] = set()
        self.carriage: GridTransfer | None = None


class GridStaging:
    """
    Moves files so that jobs can start.

    Parameters
    ----------
    names
        Names of the sites, in the order of the site numbers in jobs.
    catalogue, transport
        Where copies are, and what carries them.
    faults
        Copies that cannot be read, or are not as long as the catalogue says.
    keeps
        Whether what was brought stays, and is registered.
    staged
        Told a job once its files are all there.
    failed
        Told a job, and why its files cannot be had.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        storages: Mapping[str, StorageElement],
        catalogue: ReplicaCatalogue,
        transport: GridTransport,
        faults: GridFaults,
        *,
        keeps: bool,
        staged: Callable[[GridJob], None],
        failed: Callable[[GridJob, str], None],
    ) -> None:
        self._names = names
        self._storages = storages
        self._catalogue = catalogue
        self._transport = transport
        self._faults = faults
        self._keeps = keeps
        self._staged = staged
        self._failed = failed
        self._deliveries: dict[tuple[str, str, int], _FileTransfer] = {}
        self._sending: dict[str, int] = {}  # transfers that each site sends
        self._removed: set[str] = set()
        self.jobs: dict[int, GridJob] = {}
        """Jobs that wait for files, by number."""

    def bring(self, job: GridJob) -> None:
        """Bring a job's missing files to the job's site."""
        site = self._names[job.site]
        storage = self._storages[site]
        lacking = []
        for name in job.kind.data:
            if storage.has(name):
                # Pinned before anything is sent for: a file that comes meanwhile could push this
                # one out.
                storage.pin(name)
                job.pinned.append(name)
            else:
                lacking.append(name)
        if not lacking:
            self._staged(job)
            return
        self.jobs[job.number] = job
        job.missing = set(lacking)
        for name in lacking:
            key = self._key(name, site, job)
            delivery = self._deliveries.get(key)
            if delivery is not None:
                delivery.jobs.append(job)
                continue
            delivery = self._deliveries[key] = _FileTransfer(name, site, job)
            self._send(delivery)
            if job.number not in self.jobs:  # no copy of it can be had
                return

    def release(self, job: GridJob) -> None:
        """Release the files that a job used."""
        if job.site >= 0:
            storage = self._storages[self._names[job.site]]
            for name in job.pinned:
                storage.release(name)
        job.pinned.clear()
        job.own.clear()

    def lose(self, site: str) -> None:
        """Lose a site: transfers to the site fail, transfers from there start again elsewhere."""
        self._removed.add(site)
        for delivery in list(self._deliveries.values()):
            if delivery.site == site:
                # A copy, since giving up takes the job off the list.
                for job in list(delivery.jobs):
                    self._give_up(job, f'the site "{site}" is gone')
            elif delivery.source == site and self._is_under_way(delivery):
                self._stop(delivery)
                self._send(delivery)

    def find_again(self, site: str) -> None:
        """Use a site again that was lost."""
        self._removed.discard(site)

    def _key(self, name: str, site: str, job: GridJob) -> tuple[str, str, int]:
        return name, site, -1 if self._keeps else job.number

    def _is_under_way(self, delivery: _FileTransfer) -> bool:
        key = self._key(delivery.name, delivery.site, delivery.jobs[0]) if delivery.jobs else None
        return key is not None and self._deliveries.get(key) is delivery

    def _send(self, delivery: _FileTransfer) -> None:
        """
        Send a file from the best copy that was not tried.

        The best is the one that would be there first if a site's link were shared by all that
        it sends: of many copies as near as each other, not always the same one.
        """
        size = self._catalogue.size(delivery.name)
        best, least = None, float("inf")
        for source in self._catalogue.sites(delivery.name):
            if source in delivery.tried or source in self._removed:
                continue
            if (delivery.name, source) in self._faults.unreachable:
                continue
            idle = self._transport.seconds(source, delivery.site, size)
            seconds = idle * (1 + self._sending.get(source, 0))
            if seconds < least:
                best, least = source, seconds
        if best is None:
            # Whoever asks for it from now on, be it while these are told, does not join them.
            del self._deliveries[self._key(delivery.name, delivery.site, delivery.jobs[0])]
            for job in delivery.jobs:
                self._give_up(job, f'no copy of "{delivery.name}" can be reached')
            return
        delivery.source = best
        delivery.tried.add(best)
        self._sending[best] = self._sending.get(best, 0) + 1
        sent = self._faults.lies.get((delivery.name, best), size)
        delivery.carriage = self._transport.send(
            best, delivery.site, sent, lambda: self._arrived(delivery)
        )

    def _arrived(self, delivery: _FileTransfer) -> None:
        self._ended(delivery)
        name, site = delivery.name, delivery.site
        size = self._catalogue.size(name)
        if self._faults.lies.get((name, delivery.source), size) != size:
            # It is not what was registered: nobody shall be sent it again.
            self._catalogue.forget(name, delivery.source)
            self._send(delivery)
            return
        del self._deliveries[self._key(name, site, delivery.jobs[0])]
        storage = self._storages[site]
        gone = storage.keep(name, size) if self._keeps else None
        if gone is not None:
            for other in gone:
                self._catalogue.forget(other, site)
            self._catalogue.register(name, site)
        for job in delivery.jobs:
            # No room, or copies are not kept: the job has the file for itself, and nobody else
            # may count on it.
            if gone is None:
                job.own.add(name)
            else:
                storage.pin(name)
                job.pinned.append(name)
            job.missing.discard(name)
        for job in delivery.jobs:
            # In a second pass: what is told may bring further files here, and by then every job
            # must have this one pinned.
            if not job.missing and self.jobs.pop(job.number, None) is not None:
                self._staged(job)

    def _give_up(self, job: GridJob, reason: str) -> None:
        if self.jobs.pop(job.number, None) is None:
            return
        site = self._names[job.site]
        for name in job.missing:
            key = self._key(name, site, job)
            delivery = self._deliveries.get(key)
            if delivery is None or job not in delivery.jobs:
                continue
            delivery.jobs.remove(job)
            # Nobody waits for it any more, so it need not take bandwidth from others.
            if not delivery.jobs:
                self._stop(delivery)
                del self._deliveries[key]
        job.missing = set()
        self._failed(job, reason)

    def _stop(self, delivery: _FileTransfer) -> None:
        if delivery.carriage is not None:
            self._transport.stop(delivery.carriage)
            self._ended(delivery)

    def _ended(self, delivery: _FileTransfer) -> None:
        delivery.carriage = None
        self._sending[delivery.source] -= 1


# The job submission service: a job waits there for its files, and is then handed to its site.


class SubmissionService:
    """
    Takes jobs from the broker to their sites (section 2.1).

    Parameters
    ----------
    services
        Overhead of the service, and the jobs that are handled at a time.
    bring
        Brings a job's files; answers by :meth:`staged` or :meth:`failed`.
    hand_over
        Takes a job at its site.
    """

    def __init__(
        self,
        services: GridServices,
        loop: VirtualLoop,
        *,
        bring: Callable[[GridJob], None],
        hand_over: Callable[[GridJob], None],
    ) -> None:
        self._services = services
        self._loop = loop
        self._bring = bring
        self._hand_over = hand_over
        self._waiting: deque[GridJob] = deque()
        self._staging = 0
        self._ready: deque[GridJob] = deque()
        self._handing = 0
        self._turning = False

    @property
    def waiting(self) -> int:
        """Jobs whose files are not being brought yet."""
        return len(self._waiting)

    @property
    def ready(self) -> int:
        """Jobs with all files that are not at their sites yet."""
        return len(self._ready) + self._handing

    def accept(self, job: GridJob) -> None:
        """Take a job, with the site that the broker chose."""
        job.state = GridJobState.STAGING
        self._waiting.append(job)
        self._turn()

    def staged(self, job: GridJob) -> None:
        """Take note that a job's files have arrived."""
        self._staging -= 1
        job.state = GridJobState.SUBMITTING
        self._ready.append(job)
        self._turn()

    def failed(self) -> None:
        """Take note that a job's files cannot be had."""
        self._staging -= 1
        self._turn()

    def _turn(self) -> None:
        """Bring and hand over as much as possible now; a nested call returns at once."""
        # Bringing and handing over may call back at once; without this, many jobs without files
        # would be as many calls within one another.
        if self._turning:
            return
        self._turning = True
        while self._bring_one() or self._hand_one():
            pass
        self._turning = False

    def _bring_one(self) -> bool:
        most = self._services.stagings
        if not self._waiting or (most is not None and self._staging >= most):
            return False
        self._staging += 1
        self._bring(self._waiting.popleft())
        return True

    def _hand_one(self) -> bool:
        most = self._services.channels
        if not self._ready or (most is not None and self._handing >= most):
            return False
        self._handing += 1
        job = self._ready.popleft()
        if self._services.overhead:
            self._loop.call_later(self._services.overhead, self._handed, job)
        else:
            self._handed(job)
        return True

    def _handed(self, job: GridJob) -> None:
        self._handing -= 1
        self._hand_over(job)
        self._turn()
