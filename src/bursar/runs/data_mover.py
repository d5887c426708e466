"""Moving the files of a run's jobs between the storages of sites."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Replica
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import CancellationToken, LogicalFileContent, SourceFailed, content_of
from bursar.replicas.copying import read_content
from bursar.replicas.stager import Stager, links_of, open_stores
from bursar.supervisor import TaskSupervisor


class StagedDataMover:
    """
    Moves files as :class:`bursar.broker.brokered_scheduler.FileStaging` says, by a stager.

    Parameters
    ----------
    catalogue
        File of the replica catalogue.
    run
        Name of the run: files are held at sites for its tasks.
    made
        Folder where the outputs of tasks are.

    Raises
    ------
    InputError
        When the catalogue or a storage cannot be used.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        sites: Sequence[SiteFacts],
        catalogue: str,
        run: str,
        made: Path,
    ) -> None:
        _check_folders(sites)
        self._tasks = tasks
        self._run = run
        self._made = made
        # One that is read must be there; one that is only written may be a new one.
        self._catalogue = Catalogue(catalogue, make=not any(task.data for task in tasks))
        self._stores = tuple(site.name for site in sites if site.storage is not None)
        self._links = links_of(sites)
        try:
            self._stager = Stager(self._catalogue, open_stores(sites), link=self._links)
        except BaseException:
            self._catalogue.close()
            raise
        self._brought: dict[int, _StagedFiles] = {}
        self._times = 0
        self._failures: list[BaseException] = []
        self._background = TaskSupervisor(self._failures.append)

    def copies(self, name: str) -> list[Replica]:
        """Return the present replicas of a logical file."""
        return self._catalogue.locate(name)

    def paths(self, task: int, site: str) -> Mapping[str, str]:
        """Return the paths at a site of the files that a task reads, by name."""
        brought = self._brought.get(task)
        return brought.paths if brought is not None and brought.site == site else {}

    def bring(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """
        Start to stage the files that a task reads to a site; return at once.

        Parameters
        ----------
        done
            Called once at the end with an empty text, or with the reason why it failed.
        """
        self._times += 1
        # A name of its own each time: what is let go of late is not held by the next time.
        brought = _StagedFiles(site, f"{self._run}/{task}/{self._times}")

        async def work() -> None:
            brought.paths = await self._stager.bring(self._tasks[task].data, site, brought.job)

        self._brought[task] = brought
        brought.work = self._start(work, done)

    def keep(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """Put the files that a task registers into the storage of a site, or of the nearest one."""

        async def work() -> None:
            for output, name in self._tasks[task].registers.items():
                await self._keep_one(self._made / output, name, self._store_near(site))

        self._start(work, done)

    def release(self, task: int) -> None:
        """Unpin the staged files of a task, or stop the staging."""
        brought = self._brought.pop(task, None)
        if brought is None or brought.work is None:
            return
        if not brought.work.done():
            brought.work.cancel()
        elif brought.paths:
            release = partial(self._stager.release, brought.job, brought.site)
            self._start(release, lambda problem: None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """
        Cancel transfers and unpin all files of the run on exit; raise the first unreported error.
        """
        try:
            yield
        finally:
            for brought in self._brought.values():
                if brought.work is not None:
                    brought.work.cancel()
            # Copies run in threads, which are still to notice the cancellation: the stores close
            # after them.
            await self._background.wait()
            self.close()
        if self._failures:
            raise self._failures[0]

    def close(self) -> None:
        """Release the storages, with the files pinned for the run, and the catalogue."""
        try:
            self._stager.close()
        finally:
            self._catalogue.close()

    async def _keep_one(self, path: Path, name: str, site: str) -> None:
        """Keep a file, unless an earlier incarnation or another run has kept the same one."""
        here = [copy for copy in self._catalogue.locate(name) if copy.site == site]
        if any(os.path.exists(copy.url) for copy in here):
            # In a thread, as it reads the whole file.
            made = await asyncio.to_thread(_content, path)
            if made == content_of(here[0]):
                return
        await self._stager.keep(path, name, site)

    def _store_near(self, site: str) -> str:
        if site in self._stores:
            return site

        def seconds(other: str) -> float:
            link = self._links(site, other)
            return link.latency + 1.0 / link.bandwidth

        return min(self._stores, key=seconds)

    def _start(
        self, work: Callable[[], Awaitable[None]], done: Callable[[str], None]
    ) -> asyncio.Task[None]:
        """Start work in the background; at its end call ``done`` with the problem, or with ""."""

        async def tell() -> None:
            problem = ""
            try:
                await work()
            except BursarError as error:
                problem = str(error).splitlines()[0]
            except Exception as error:  # ours, or the system's: the run must hear of it
                problem = f"{type(error).__name__}: {error}"
            done(problem)

        return self._background.start(tell())


def check_storages(sites: Sequence[SiteFacts]) -> None:
    """
    Opens the storages of sites once, to say what is wrong before a run is made.

    Raises
    ------
    InputError
        When one cannot be used.
    """
    _check_folders(sites)
    for store in open_stores(sites).values():
        store.close()


def _check_folders(sites: Sequence[SiteFacts]) -> None:
    for site in sites:
        if site.storage is not None and "://" in site.storage:
            raise InputError(
                f"tasks here read files, not URLs: expected a folder, got {site.storage}",
                where=f"site.{site.name}.storage",
            )


@dataclass(slots=True, eq=False)
class _StagedFiles:
    """Files of a task at a site or under way, and the name for which the files are pinned."""

    site: str
    job: str
    paths: Mapping[str, str] = field(default_factory=dict)
    work: asyncio.Task[None] | None = None


def _content(path: Path) -> LogicalFileContent | None:
    """Return the content of a file; None where the file cannot be read."""
    try:
        return read_content(str(path), stop=CancellationToken())
    except SourceFailed:
        return None
