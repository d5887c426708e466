"""A session: one instance of a client, without naming its handle in each call."""

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
        Client of the service.
    handle
        Handle of the instance.
    seals
        Seals the tasks and opens their results; None: the service can read both.
    """

    def __init__(
        self, client: "AsyncServiceClient", handle: str, seals: "InstanceSealer | None" = None
    ) -> None:
        self.client = client
        self.handle = handle
        self._seals = seals

    async def info(self) -> api.InstanceInfo:
        """Return the instance's state."""
        return await self.client.instance(self.handle)

    async def submit(self, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Add tasks; see :meth:`AsyncServiceClient.submit`."""
        if self._seals is not None:
            tasks = self._seals.seal(tasks)
        return await self.client.submit(self.handle, tasks, key)

    async def results(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[api.Result, None]:
        """Yield results as they arrive; see :meth:`AsyncServiceClient.results`."""
        batches = self.batches(after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                for result in batch:
                    yield result

    async def batches(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[list[api.Result], None]:
        """Yield results in batches of those that have arrived; see :meth:`results`."""
        seals = self._seals
        batches = self.client.batches(self.handle, after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                yield batch if seals is None else [seals.open(result) for result in batch]

    async def cancel(
        self, numbers: Sequence[int] | None = None, *, grace: float | None = None
    ) -> int:
        """Cancel tasks; return how many are stopped. See :meth:`AsyncServiceClient.cancel`."""
        return await self.client.cancel(self.handle, numbers, grace=grace)

    async def destroy(self) -> None:
        """Kill the instance's tasks and delete its results and files."""
        await self.client.destroy(self.handle)

    async def files(self) -> list[api.FileInfo]:
        """Return the instance's files."""
        return await self.client.files(self.handle)

    async def upload(
        self, name: str, source: Path | bytes, *, executable: bool = False
    ) -> api.FileInfo:
        """Write a file of the instance."""
        return await self.client.upload(self.handle, name, source, executable=executable)

    async def copy_files(
        self, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Copy files of another instance; see :meth:`AsyncServiceClient.copy_files`."""
        return await self.client.copy_files(self.handle, source, names, wait=wait)

    async def download(self, name: str, target: Path) -> int:
        """Write a file of the instance to this machine; return its bytes."""
        return await self.client.download(self.handle, name, target)

    async def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return await self.client.read(self.handle, name)

    async def output(self, task: int, stream: Stream = "stdout") -> bytes:
        """Return what a task printed."""
        return await self.client.output(self.handle, task, stream)

    async def save_output(self, task: int, stream: Stream, target: Path) -> int:
        """Write what a task printed to a file; return its bytes."""
        return await self.client.save_output(self.handle, task, stream, target)
