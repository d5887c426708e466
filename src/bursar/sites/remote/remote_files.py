"""Copy files between the run and an instance, in both directions."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from bursar.dispatch.wire import WireJob
from bursar.model.errors import InputError
from bursar.model.task import Outcome
from bursar.remote.async_client import AsyncSession
from bursar.remote.http_transport import RemoteProblem
from bursar.sites.job_inputs import files_read, plain_files
from bursar.sites.remote.translation import copied, long_streams, made_folder
from bursar.worker.staging import RootNamespace, StagingError

AT_A_TIME = 8
"""Most files under way at a time."""

MOST_COPIED = 500
"""Most files that one instance copies from another in one request."""

COPYING = 20e6
"""Least rate at which a service copies, bytes per second."""

_Version = tuple[int, int, int, bool]
"""Version of a file: modification time, size and inode, and whether the file is executable."""


class InstanceFileIndex:
    """
    Index of the run's files that the instances of one service have.

    A new instance copies files from earlier ones, so that nothing is sent twice. Only one
    instance is sent files at a time: otherwise instances that begin together would all be sent
    the same.
    """

    def __init__(self) -> None:
        self.sending = asyncio.Lock()
        self._files: dict[str, RemoteInstanceFiles] = {}

    def add(self, files: "RemoteInstanceFiles") -> None:
        """Add an instance."""
        self._files[files.handle] = files

    def drop(self, handle: str) -> None:
        """Remove an instance."""
        self._files.pop(handle, None)

    def has(self, handle: str) -> bool:
        """Whether an instance has files that others may copy."""
        files = self._files.get(handle)
        return files is not None and not files.is_empty

    def of(self, files: "RemoteInstanceFiles") -> list["RemoteInstanceFiles"]:
        """Return the other instances, the latest first."""
        return [other for other in reversed(self._files.values()) if other is not files]


class RemoteInstanceFiles:
    """
    Sends jobs' input files to an instance, each content once, and fetches output files.

    Parameters
    ----------
    siblings
        Index of the files that the service's instances have.
    logs
        Folder of the run for long streams.
    """

    def __init__(
        self, session: AsyncSession, siblings: InstanceFileIndex, root: RootNamespace, logs: Path
    ) -> None:
        self.handle = session.handle
        self._session = session
        self._siblings = siblings
        self._root = root
        self._logs = logs
        self._there: dict[str, _Version] = {}
        self._few = asyncio.Semaphore(AT_A_TIME)
        siblings.add(self)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the run's files is known to be there."""
        return not self._there

    def has(self, name: str, version: _Version) -> bool:
        """Whether the instance has this version of a file."""
        return self._there.get(name) == version

    async def send(self, jobs: Iterable[WireJob]) -> dict[int, str]:
        """
        Send the files that jobs read to the instance.

        Returns
        -------
        dict
            Faults of files by task, for the jobs that cannot run.

        Raises
        ------
        RemoteProblem
            When the service refuses a file.
        SiteError
            When the service is out of reach.
        """
        faults: dict[int, str] = {}
        wanted: dict[str, str] = {}
        for job in jobs:
            if job.data:
                faults[job.task] = "files of a site's storage cannot travel to another Bursar"
                continue
            try:
                found = await asyncio.to_thread(_paths_of, self._root, job)
            except (StagingError, OSError) as error:
                faults[job.task] = str(error)
                continue
            wanted |= found
        async with self._siblings.sending:
            missing = {name: _version(path) for name, path in wanted.items()}
            missing = {name: v for name, v in missing.items() if not self.has(name, v)}
            await self._take_over(missing)
            sent = await asyncio.gather(
                *(self._send(name, wanted[name], version) for name, version in missing.items()),
                return_exceptions=True,
            )
        for problem in sent:
            if problem is not None:
                raise problem
        return faults

    async def fetch(self, job: WireJob, number: int, outcome: Outcome, *, succeeded: bool) -> None:
        """
        Fetch the files that a job has made, and streams too long for a result.

        Parameters
        ----------
        number
            Number of the job's task in the instance.
        succeeded
            Whether the job succeeded; otherwise missing files are no error.

        Raises
        ------
        StagingError
            When an output is missing, or cannot be put in its place.
        RemoteProblem, SiteError
            When the service does not deliver a file.
        """
        if succeeded:
            for name in job.outputs:
                await self._fetch(name, name)
        for target, source in copied(job):
            name = os.path.normpath(f"{made_folder(job)}/{target}")
            await self._fetch_copied(name, target, source, needed=succeeded)
        for stream in long_streams(outcome):
            path = self._logs / f"{job.folder}.{job.attempt}.{stream}"
            async with self._few:
                if stream == "stdout":
                    await self._session.save_output(number, "stdout", path)
                else:
                    await self._session.save_output(number, "stderr", path)

    async def _take_over(self, missing: dict[str, _Version]) -> None:
        """Copy files from other instances; leave in ``missing`` the files still to be sent."""
        for other in self._siblings.of(self):
            there = [name for name, version in missing.items() if other.has(name, version)]
            for at in range(0, len(there), MOST_COPIED):
                some = {_plain(name): name for name in there[at : at + MOST_COPIED]}
                size = sum(missing[name][1] for name in some.values())
                try:
                    copied = await self._session.copy_files(
                        other.handle, list(some), wait=size / COPYING
                    )
                except RemoteProblem as problem:
                    if problem.transient:
                        raise
                    self._siblings.drop(other.handle)  # it has gone, or cannot be copied from
                    break
                for name in (some[file.name] for file in copied if file.name in some):
                    self._there[name] = missing.pop(name)

    async def _send(self, name: str, path: str, version: _Version) -> None:
        async with self._few:
            await self._session.upload(_plain(name), Path(path), executable=version[3])
        self._there[name] = version

    async def _fetch(self, name: str, target: str) -> None:
        """Fetch a file, or all files of a folder, from the instance into the run's files."""
        if await self._fetch_file(name, target):
            return
        inner = await self._below(name)
        if not inner:
            raise StagingError(f'output "{target}" is not at the service')
        for file in inner:
            await self._fetch_file(file, os.path.join(target, os.path.relpath(file, name)))

    async def _fetch_copied(self, name: str, target: str, source: str, *, needed: bool) -> None:
        """Fetch what a job copied to the root; into the target where that is a folder."""
        if os.path.isdir(os.path.join(self._root.files, target)) and await self._fetch_file(
            name, os.path.join(target, source)
        ):
            return
        try:
            await self._fetch(name, target)
        except StagingError:
            if needed:
                raise

    async def _fetch_file(self, name: str, target: str) -> bool:
        """Fetch a file; return False when the instance has no such file."""
        path = await asyncio.to_thread(self._root.target, target)
        try:
            async with self._few:
                await self._session.download(name, Path(path))
        except RemoteProblem as problem:
            if problem.kind in ("not-found", "conflict"):
                return False
            raise
        if name == target:
            # What was just fetched is there already: a later job that reads it needs no upload.
            self._there[name] = _version(path)
        return True

    async def _below(self, name: str) -> list[str]:
        return [file.name for file in await self._session.files() if _is_below(file.name, name)]


def _is_below(name: str, folder: str) -> bool:
    # A service that means no good may name what it likes.
    return name.startswith(f"{folder}/") and os.path.normpath(name) == name


def _paths_of(root: RootNamespace, job: WireJob) -> dict[str, str]:
    return {name: path for wanted in files_read(job) for name, path in plain_files(root, wanted)}


def _plain(name: str) -> str:
    return os.path.normpath(name)


def _version(path: str) -> _Version:
    try:
        seen = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=path) from None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino, os.access(path, os.X_OK)
