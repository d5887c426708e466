"""Opens clients of services that are named on the command line."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncServiceClient, AsyncSession

T = TypeVar("T")

INTERRUPTED = 130


class ServiceSession:
    """
    A connection to a service, and the way to seal tasks for that service.

    Parameters
    ----------
    seal
        Sealing level of tasks for this service; None: tasks are sent in clear.
    """

    def __init__(self, client: "AsyncServiceClient", seal: Any) -> None:
        self.client = client
        self._seal = seal

    async def attach(self, handle: str) -> "AsyncSession":
        """Attach to an instance, with a sealer for tasks and results if sealing is configured."""
        if self._seal is None:
            return self.client.attach(handle)
        from bursar.sealing.sealer import read_sealer

        recipient = (await self.client.site()).seal
        if not recipient:
            raise InputError(f"{self.client.access.name}: its workers open no sealed tasks")
        access = self.client.access
        assert access.certificate is not None
        assert access.ca is not None
        sealer = read_sealer(
            recipient.encode(),
            certificate=access.certificate,
            key=access.key,
            authorities=access.ca,
            level=self._seal,
        )
        return self.client.attach(handle, seal=sealer)


@asynccontextmanager
async def connect_service(site: str | None) -> AsyncGenerator[ServiceSession, None]:
    """Connect to the service of a name or URL; report retries on stderr."""
    from bursar.cli.output import print_note
    from bursar.remote.access import find_service
    from bursar.remote.async_client import AsyncServiceClient

    service = find_service(site)
    async with AsyncServiceClient(service.access, notice=print_note) as client:
        yield ServiceSession(client, service.seal)


def run_until_done(work: Coroutine[Any, Any, T], interrupted: Callable[[], None]) -> T:
    """Return the result of a command's work; an interrupt is reported and ends the command."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        interrupted()
        raise typer.Exit(INTERRUPTED) from None
