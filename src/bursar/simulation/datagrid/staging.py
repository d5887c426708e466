"""Bringing to a site the files that a job lacks."""

from collections.abc import Callable, Mapping

from bursar.simulation.datagrid.grid_job import GridJob
from bursar.simulation.datagrid.scenario import GridFaults
from bursar.simulation.datagrid.storage import ReplicaCatalogue, StorageElement
from bursar.simulation.datagrid.transport import GridTransfer, GridTransport


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
    storages
        Storage element of each site, by name.
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
