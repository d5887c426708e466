"""An instance of one's own: what may be done with it, without naming it each time."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.remote import messages as api
from bursar.remote.following import Until
from bursar.remote.task_output import Stream

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.sealed_tasks import InstanceSealer


class AsyncSession:
    """
    An instance at a service.

    Parameters
    ----------
    client
        Of the service.
    handle
        Of the instance.
    seals
        Seals its tasks and opens their results; None: the service may read both.
    """

    def __init__(
        self, client: "AsyncServiceClient", handle: str, seals: "InstanceSealer | None" = None
    ) -> None:
        self.client = client
        self.handle = handle
        self._seals = seals

    async def info(self) -> api.InstanceInfo:
        """How it stands."""
        return await self.client.instance(self.handle)

    async def submit(self, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Adds tasks; see :meth:`AsyncServiceClient.submit`."""
        if self._seals is not None:
            tasks = self._seals.seal(tasks)
        return await self.client.submit(self.handle, tasks, key)

    async def results(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[api.Result, None]:
        """Results as they come; see :meth:`AsyncServiceClient.results`."""
        batches = self.batches(after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                for result in batch:
                    yield result

    async def batches(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[list[api.Result], None]:
        """The same as :meth:`results`, as many at a time as there are."""
        seals = self._seals
        batches = self.client.batches(self.handle, after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                yield batch if seals is None else [seals.open(result) for result in batch]

    async def cancel(
        self, numbers: Sequence[int] | None = None, *, grace: float | None = None
    ) -> int:
        """How many that stops; see :meth:`AsyncServiceClient.cancel`."""
        return await self.client.cancel(self.handle, numbers, grace=grace)

    async def destroy(self) -> None:
        """Its tasks are killed; its results and files go."""
        await self.client.destroy(self.handle)

    async def files(self) -> list[api.FileInfo]:
        """It has."""
        return await self.client.files(self.handle)

    async def upload(
        self, name: str, source: Path | bytes, *, executable: bool = False
    ) -> api.FileInfo:
        """Puts a file into it."""
        return await self.client.upload(self.handle, name, source, executable=executable)

    async def copy_files(
        self, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Puts files of another instance into it; see :meth:`AsyncServiceClient.copy_files`."""
        return await self.client.copy_files(self.handle, source, names, wait=wait)

    async def download(self, name: str, target: Path) -> int:
        """Writes a file of it to this machine; its bytes."""
        return await self.client.download(self.handle, name, target)

    async def read(self, name: str) -> bytes:
        """A file of it."""
        return await self.client.read(self.handle, name)

    async def output(self, task: int, stream: Stream = "stdout") -> bytes:
        """What a task printed."""
        return await self.client.output(self.handle, task, stream)

    async def save_output(self, task: int, stream: Stream, target: Path) -> int:
        """Writes what a task printed to a file; its bytes."""
        return await self.client.save_output(self.handle, task, stream, target)
