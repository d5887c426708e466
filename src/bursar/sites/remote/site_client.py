"""The client by which a run reaches a service."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from bursar.model.errors import InputError, SiteError
from bursar.model.site import RemoteEndpoint
from bursar.remote.access import Access, read_token
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import TIMEOUT
from bursar.remote.problems import RemoteProblem

T = TypeVar("T")

PARTING = 5.0
"""Seconds for which a service that does not answer is asked to end what is ours there."""


class RemoteSiteClient:
    """
    Connection to a service, over which requests can be made while :meth:`open` lasts.

    Parameters
    ----------
    name
        Name of the site.
    remote
        Address and credentials of the service.

    Raises
    ------
    InputError
        When the token or a certificate cannot be read.
    """

    def __init__(self, name: str, remote: RemoteEndpoint) -> None:
        self.name = name
        self._access = access_of(name, remote)
        self._patience = remote.patience
        self._client: AsyncServiceClient | None = None
        self._quick_client: AsyncServiceClient | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Allow requests while the context lasts."""
        patience = self._patience
        timeout = min(TIMEOUT, max(1.0, patience))
        self._client = AsyncServiceClient(self._access, timeout=timeout, patience=patience)
        # Giving back must not wait a service's full patience: what fails here is repeated by
        # clear_up.
        self._quick_client = AsyncServiceClient(
            self._access, timeout=min(timeout, PARTING), patience=min(patience, PARTING)
        )
        try:
            yield
        finally:
            await self._client.close()
            await self._quick_client.close()
            self._client = self._quick_client = None

    @property
    def client(self) -> AsyncServiceClient:
        """Client with the full patience."""
        assert self._client is not None
        return self._client

    @property
    def quick_client(self) -> AsyncServiceClient:
        """Client with little patience, for requests that can be repeated later."""
        assert self._quick_client is not None
        return self._quick_client

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Await a request; turn a failure into a SiteError.

        Raises
        ------
        SiteError
            When the service fails or refuses; a refusal counts as the site's failure.
        """
        try:
            return await work
        except RemoteProblem as problem:
            raise SiteError(str(problem), transient=problem.transient) from problem

    def plain(self, error: Exception) -> str:
        """Return an error's message without the leading name of the site."""
        return str(error).removeprefix(f"{self.name}: ")


def access_of(name: str, remote: RemoteEndpoint) -> Access:
    """
    Return the address and credentials by which a service is reached.

    Raises
    ------
    InputError
        When the token cannot be read, or a credential is wrong.
    """

    def file(path: str) -> Path | None:
        return Path(path) if path else None

    token = file(remote.token_file)
    try:
        return Access(
            url=remote.url,
            name=name,
            token="" if token is None else read_token(token),
            ca=file(remote.ca),
            fingerprint=remote.fingerprint,
            certificate=file(remote.certificate),
            key=file(remote.key),
        )
    except InputError as error:
        raise error.within(f"site.{name}") from None
