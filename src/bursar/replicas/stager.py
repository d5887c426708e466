"""
Brings logical files to the sites where jobs read the files, and keeps the jobs' outputs.

A job waits until its files have come (Cavalieri et al. 2003, section 2.1). However many
jobs wait for a file at a site, it is brought once.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import Replica
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import (
    FileUnreachable,
    LogicalFileContent,
    TargetFailed,
    is_local,
    logical,
    normalise_url,
    redact_url,
)
from bursar.replicas.copying import (
    CandidateReplica,
    TransferPool,
    TransferRateLimiter,
    wait_until_ended,
)
from bursar.replicas.parts import FileInUse
from bursar.replicas.site_storage import PendingFile, SiteStorage, UrlStorage
from bursar.replicas.storage import FolderStorage
from bursar.supervisor import TaskSupervisor, heard_by_waiter

# Opens the storage of a site: a folder on this machine, or a remote store with a URL.


def open_storage(place: str, *, limit: int | None = None) -> SiteStorage:
    """
    Open the storage that a site's ``storage`` setting names.

    Parameters
    ----------
    limit
        Bytes that cached files may take; None: no limit.

    Raises
    ------
    InputError
        When it cannot be used, or a limit is given for what has a URL.
    """
    place = normalise_url(place)
    if is_local(place):
        return FolderStorage(place, limit=limit)
    if limit is not None:
        raise InputError("a limit is kept in folders only", where=redact_url(place))
    return UrlStorage(place)


LinkBetween = Callable[[str, str], Link]
"""How data pass from one site to another."""

OnFile = Callable[[str, int, int | None], None]
"""Told name, bytes that are there and bytes in all; in the thread that copies."""

AT_ONCE = 4
"""Transfers from one site to another at a time; further ones wait."""

_POLL_INTERVAL = 0.05  # seconds until a file that another process brings is looked at again
_TRIES = 3  # transfers of a file that others delete or damage before a job can read it


def links_of(sites: Iterable[SiteFacts]) -> LinkBetween:
    """Return the links that the sites state; without one, sites share their files."""
    links = {(site.name, other): link for site in sites for other, link in site.links.items()}
    return lambda source, target: links.get((source, target), Link())


def open_stores(sites: Iterable[SiteFacts]) -> dict[str, SiteStorage]:
    """
    Open the storages of the sites that have one, by site.

    Raises
    ------
    InputError
        When one cannot be used.
    """
    return {
        site.name: open_storage(site.storage, limit=site.storage_limit)
        for site in sites
        if site.storage is not None
    }


class Stager:
    """
    Moves files between the storages of sites.

    Parameters
    ----------
    link
        Returns the link between two sites, which decides the order in which copies are tried and
        the bandwidth that all transfers over it share.
    transfers
        Pool that copies files; None: a new one.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        stores: Mapping[str, SiteStorage],
        *,
        link: LinkBetween = lambda source, target: Link(),
        transfers: TransferPool | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._stores = stores
        self._link = link
        self._transfers = transfers or TransferPool()
        self._lines: dict[tuple[str, str], _SharedLink] = {}
        self._flights: dict[tuple[str, str], _PendingTransfer] = {}
        self._transfer_numbers = itertools.count()
        self._tasks = TaskSupervisor(heard_by_waiter)  # each is awaited by a call of bring()

    async def bring(
        self, names: Iterable[str], site: str, job: str, *, on_file: OnFile | None = None
    ) -> dict[str, str]:
        """
        Wait until all files of a job are at a site and pinned.

        Parameters
        ----------
        job
            Job for which the files are pinned until :meth:`release`.
        on_file
            Called with the progress of transfers that this call begins.

        Returns
        -------
        dict
            The place of each: a path, or a URL where the storage is one.

        Raises
        ------
        FileUnreachable
            When a file has no copy that could be brought: which, from where, why not.
        TargetFailed
            When one cannot be written there, or has no room.
        InputError
            When the site has no storage, or a name is out of form.
        """
        store = self._store(site)
        wanted = list(dict.fromkeys(logical(name) for name in names))
        contents = await self._transfers.run(self._catalogue.contents, wanted)
        for name in wanted:
            if name not in contents:
                raise FileUnreachable(f'"{name}" is not in the catalogue')
        doubtful = await self._transfers.run(self._catalogue.doubtful, wanted, site)
        if doubtful:
            await self._transfers.run(store.doubt, doubtful)
        try:
            # Pinned before anything is transferred: the files that are there must not be evicted to
            # make room for those that are missing.
            there = await self._transfers.run(store.pin, contents, job)
            # The first file that cannot be brought says why the job cannot run, the others need
            # not: whoever waits for all of them is told of that one.
            async with TaskSupervisor(heard_by_waiter) as tasks:
                works = [
                    tasks.start(self._one(name, site, job, there.get(name), on_file))
                    for name in wanted
                ]
                return dict(zip(wanted, await asyncio.gather(*works), strict=True))
        except BaseException:
            await self.release(job, site)
            raise

    async def release(self, job: str, site: str | None = None) -> None:
        """Release the pins of a job, at a site or everywhere."""
        stores = self._stores.values() if site is None else (self._store(site),)
        for store in stores:
            await self._transfers.run(store.release, job)

    async def keep(self, path: Path | str, name: str, site: str) -> Replica:
        """
        Put a job's output into a site's storage as a kept file, and register the copy.

        Raises
        ------
        FileUnreachable
            When it cannot be read.
        TargetFailed
            When it cannot be written.
        InputError
            When the name has another content already.
        """
        name, store = logical(name), self._store(site)
        made = Replica(name=name, site=site, url=normalise_url(str(path)))
        with _about(name, site):
            incoming = await self._begin(store, name, LogicalFileContent(), holder=None)
            if incoming is None:
                raise InputError("is there already", where=store.place_of(name))
            try:
                content = await self._transfers.fetch(
                    LogicalFileContent(), [CandidateReplica(made)], incoming.sink
                )
                # Checked before the commit: a file that contradicts the catalogue must not get its
                # name.
                await self._transfers.run(self._agree, name, content)
                await self._transfers.run(incoming.commit, content, self._catalogue.spare)
            finally:
                await self._transfers.run(incoming.discard)
        return await self._register(name, site, content)

    def close(self) -> None:
        """Close the storages and end the threads once their copies are done."""
        self._transfers.close()
        for store in self._stores.values():
            store.close()

    # Inside.

    def _store(self, site: str) -> SiteStorage:
        if site not in self._stores:
            raise InputError(
                "has no storage, so no files can be brought there",
                where=f"site {site}",
                hint=spelling_hint(site, self._stores),
            )
        return self._stores[site]

    async def _one(
        self, name: str, site: str, job: str, place: str | None, on_file: OnFile | None
    ) -> str:
        """
        Bring a file unless it is there, pin the copy for a job, and return its path or URL.

        ``place`` is where the site's storage has it, pinned already; None: not there. A usable
        copy at the site but outside of its storage is returned without a pin.
        """
        store = self._stores[site]
        for _ in range(_TRIES):
            found = await self._transfers.run(self._catalogue.locate, name)
            here = [replica for replica in found if replica.site == site]
            if place is not None:
                if all(replica.url != place for replica in here):
                    # The process that brought it was killed before it could register it.
                    content = await self._transfers.run(self._catalogue.content, name)
                    await self._register(name, site, content or LogicalFileContent())
                return place
            for replica in here:
                if store.is_usable(replica):
                    return replica.url
            place = await self._shared(name, site, job, on_file)
        raise TargetFailed(f'"{name}" leaves {site} as soon as it is there', transient=True)

    async def _shared(self, name: str, site: str, job: str, on_file: OnFile | None) -> str | None:
        """
        Wait for the transfer of a file, begun if there is none, pin the file and return its path.

        None: others deleted or damaged it as soon as it came, or its store has no pins.
        """
        key = name, site
        store = self._stores[site]
        flight = self._flights.get(key)
        if flight is None:
            holder = f"transfer {next(self._transfer_numbers)} of {name}"
            work = self._tasks.start(self._bring(name, site, holder, on_file))
            flight = self._flights[key] = _PendingTransfer(work, holder)
            work.add_done_callback(lambda _: self._landed(key, flight))
        flight.waiting += 1
        try:
            # One job that gives up must not end the transfer that other jobs wait for.
            await asyncio.shield(flight.work)
            content = await self._transfers.run(self._catalogue.content, name)
            there = await self._transfers.run(
                store.pin, {name: content or LogicalFileContent()}, job
            )
            return there.get(name)
        except asyncio.CancelledError:
            if flight.waiting == 1 and not flight.work.done():
                self._landed(key, flight)  # who comes now needs another one
                flight.work.cancel()
                await wait_until_ended(flight.work)
            raise
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                await self._transfers.run(store.release, flight.holder)

    def _landed(self, key: tuple[str, str], flight: "_PendingTransfer") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _bring(self, name: str, site: str, holder: str, on_file: OnFile | None) -> None:
        """
        Transfer a file into a site's storage, and register the copy.

        The file is pinned for ``holder`` as it gets its name. Without that pin, other processes
        that crowd a small storage could evict each new file before the jobs that wait for it have
        pinned it, for ever.
        """
        store = self._stores[site]
        content = await self._transfers.run(self._catalogue.content, name) or LogicalFileContent()
        found = await self._transfers.run(self._catalogue.locate, name)
        candidates = self._candidates(found, site)
        with _about(name, site):
            incoming = await self._begin(store, name, content, holder=holder)
            if incoming is not None:
                try:
                    content = await self._transfers.fetch(
                        content,
                        candidates,
                        incoming.sink,
                        on_bytes=None if on_file is None else partial(on_file, name),
                        on_bad=self._report,
                    )
                    await self._transfers.run(incoming.commit, content, self._catalogue.spare)
                # A full disk gets its space back; after any other failure the part stays, for a
                # later attempt.
                except TargetFailed:
                    await self._transfers.run(incoming.discard)
                    raise
                finally:
                    await self._transfers.run(incoming.close)
        await self._register(name, site, content)

    def _candidates(self, replicas: Sequence[Replica], site: str) -> list[CandidateReplica]:
        """
        Return the copies of a file with the limits of their links, the quickest to bring first.

        A copy's time is the link's latency and its size over the bandwidth; a copy whose site is
        not known comes last.
        """

        def seconds(replica: Replica) -> float:
            if not replica.site:
                return math.inf
            link = self._between(replica.site, site)
            return link.latency + (replica.size or 0) / link.bandwidth

        lines = [(replica, self._line(replica.site, site)) for replica in replicas]
        lines.sort(key=lambda pair: seconds(pair[0]))
        return [CandidateReplica(replica, line.rate, line.gate) for replica, line in lines]

    def _between(self, source: str, target: str) -> Link:
        return Link() if source == target else self._link(source, target)

    def _line(self, source: str, target: str) -> "_SharedLink":
        """Return the limits that all transfers from one site to another share."""
        if (source, target) not in self._lines:
            bandwidth = self._between(source, target).bandwidth if source else math.inf
            rate = None if math.isinf(bandwidth) else TransferRateLimiter(bandwidth)
            self._lines[source, target] = _SharedLink(rate, asyncio.Semaphore(AT_ONCE))
        return self._lines[source, target]

    async def _begin(
        self, store: SiteStorage, name: str, content: LogicalFileContent, *, holder: str | None
    ) -> PendingFile | None:
        """Begin to write a file when no other process does; without a holder the file is kept."""
        begin = partial(store.begin, keep=holder is None, job=holder)
        while True:
            work = self._tasks.start(
                self._transfers.run(begin, name, content, self._catalogue.spare)
            )
            try:
                return await asyncio.shield(work)
            except FileInUse:
                await asyncio.sleep(_POLL_INTERVAL)
            except asyncio.CancelledError:
                await wait_until_ended(work)
                # The thread may have locked the part after the cancellation; nobody else would
                # release it.
                if not work.cancelled() and work.exception() is None:
                    incoming = work.result()
                    if incoming is not None:
                        incoming.close()
                raise

    async def _register(self, name: str, site: str, content: LogicalFileContent) -> Replica:
        """Register the copy in a site's storage."""
        replica = Replica(
            name=name,
            site=site,
            url=self._stores[site].place_of(name),
            size=content.size,
            checksum=content.checksum,
        )
        await self._transfers.run(self._catalogue.register, replica)
        return replica

    def _agree(self, name: str, content: LogicalFileContent) -> None:
        known = self._catalogue.content(name)
        if known is not None and not known.agrees_with(content):
            raise InputError(f"is registered with {known}, not with {content}", where=name)

    def _report(self, replica: Replica, reason: str) -> None:
        self._catalogue.report_bad(replica.name, replica.url, reason)


@dataclass(frozen=True, slots=True, eq=False)
class _SharedLink:
    """Limits of rate and number that all transfers from one site to another share."""

    rate: TransferRateLimiter | None
    gate: asyncio.Semaphore


@dataclass(slots=True, eq=False)
class _PendingTransfer:
    """
    A running transfer and the number of waiting callers.

    ``holder`` pins the file until all callers have pinned it for their jobs.
    """

    work: "asyncio.Future[None]"
    holder: str
    waiting: int = 0


@contextmanager
def _about(name: str, site: str) -> Iterator[None]:
    """Add the names of the file and the site to failures."""
    try:
        yield
    except (TargetFailed, FileUnreachable) as error:
        line = f'"{name}" cannot be brought to {site}: {error}'
        raise type(error)(line, transient=error.transient) from None
