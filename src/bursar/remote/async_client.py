"""The client of an execution service, for asyncio."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.model.errors import SiteError
from bursar.remote import calls, transfers
from bursar.remote import messages as api
from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo
from bursar.remote.connection import PATIENCE, TIMEOUT, Entropy, Notice, ServiceConnection
from bursar.remote.http_transport import HttpTransport
from bursar.remote.messages import Stream
from bursar.remote.problems import ServiceUnreachable
from bursar.remote.result_streams import AGAIN, PAGE, EventStreamDecoder, Until, follow_results
from bursar.remote.submission import split_submission

if TYPE_CHECKING:
    from bursar.market.usage import SignedRecord
    from bursar.remote.sealed_tasks import InstanceSealer
    from bursar.sealing.sealer import TaskSealer

FORGET_AFTER = 1.0
"""Seconds, at least, between two times that results are acknowledged."""

_KEY_BYTES = 16

_INFO = msgspec.json.Decoder(api.InstanceInfo)


class AsyncServiceClient:
    """
    An asynchronous client of an execution service.

    Use it as a context, or :meth:`close` it. Requests that fail on the way, or are refused for now,
    are tried again; none is carried out twice.

    Parameters
    ----------
    access
        Address of the service, or an :class:`Access` with credentials.
    transport
        Carries requests; None: HTTP/1.1 over sockets.
    timeout
        Seconds within which the service answers, or the next bytes of a stream come.
    patience
        Seconds for which a failed request is tried again; 0: no further try.
    entropy
        Random bytes, fit for secrets.
    stream
        Whether many results come as one stream; otherwise page by page.
    notice
        Called with one line when a request has failed and is tried again.

    Raises
    ------
    InputError
        When an address is none or a certificate cannot be read.

    Notes
    -----
    Every method raises :class:`~bursar.remote.problems.RemoteProblem` when the service refuses,
    and :class:`~bursar.model.errors.SiteError` when it cannot be reached or is none.
    """

    def __init__(
        self,
        access: Access | str,
        *,
        transport: HttpTransport | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
        entropy: Entropy = os.urandom,
        stream: bool = True,
        notice: Notice | None = None,
    ) -> None:
        self.access = Access(url=access) if isinstance(access, str) else access
        self._connection = ServiceConnection(
            self.access,
            transport=transport,
            timeout=timeout,
            patience=patience,
            entropy=entropy,
            notice=notice,
        )
        self._entropy = entropy
        self._streaming = stream

    async def __aenter__(self) -> "AsyncServiceClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; submitted tasks go on."""
        await self._connection.close()

    # The site.

    async def site(self) -> api.SiteInfo:
        """Return the facts and free slots that the service states."""
        return await self._connection.call(calls.site())

    async def health(self) -> api.Health:
        """Return whether the service responds."""
        return await self._connection.call(calls.health())

    async def ready(self) -> api.Health:
        """Return whether the service accepts work."""
        return await self._connection.call(calls.ready())

    # Instances.

    async def create_instance(
        self,
        *,
        label: str = "",
        agreement: str = "",
        keep: float | None = None,
        key: str = "",
    ) -> api.InstanceInfo:
        """
        Create an instance.

        Parameters
        ----------
        label, agreement, keep
            As of :class:`~bursar.remote.messages.NewInstance`.
        key
            Names the request: the same one again gives the same instance. Empty: a random one.
        """
        new = api.NewInstance(label=label, agreement=agreement, keep=keep)
        return await self._connection.call(calls.create_instance(new, key or self.new_key()))

    @asynccontextmanager
    async def session(
        self,
        *,
        label: str = "",
        agreement: str = "",
        keep: float | None = None,
        seal: "TaskSealer | None" = None,
    ) -> AsyncGenerator["AsyncSession", None]:
        """
        Create an instance for the length of a context; destroy the instance at the end.

        Not when the service could not be reached any more: then it goes by itself, see ``keep``.

        Parameters
        ----------
        label, agreement, keep
            As of :class:`~bursar.remote.messages.NewInstance`.
        seal
            Seals the tasks, so that only the workers can read them; None: not sealed.
        """
        info = await self.create_instance(label=label, agreement=agreement, keep=keep)
        session = self.attach(info.id, seal=seal)
        reached = True
        try:
            yield session
        # Trying to destroy it would wait for as long as patience lasts, only to fail as well.
        except SiteError:
            reached = False
            raise
        finally:
            if reached:
                await session.destroy()

    def attach(self, handle: str, *, seal: "TaskSealer | None" = None) -> "AsyncSession":
        """
        Return a session of an existing instance, without a request to the service.

        Parameters
        ----------
        seal
            Seals tasks and opens results; must be that with which the instance's tasks were
            sealed. None: they are not sealed.
        """
        if seal is None:
            return AsyncSession(self, handle)
        from bursar.remote.sealed_tasks import InstanceSealer  # what it needs takes time to load

        return AsyncSession(self, handle, InstanceSealer(seal, handle, self._entropy))

    async def instances(self) -> list[api.InstanceInfo]:
        """Return the caller's instances."""
        return (await self._connection.call(calls.instances())).instances

    async def instance(self, handle: str) -> api.InstanceInfo:
        """Return one instance of the caller."""
        return await self._connection.call(calls.instance(handle))

    async def destroy(self, handle: str) -> None:
        """Kill an instance's tasks and delete all results and files."""
        await self._connection.call(calls.destroy(handle))

    async def events(self, handle: str, after: int = 0) -> AsyncGenerator[api.InstanceInfo, None]:
        """
        Yield the instance's state at every change, without an end.

        Parameters
        ----------
        after
            Cursor of the last result that is known.
        """
        tries = self._connection.tries()
        while True:
            events = EventStreamDecoder()
            try:
                stream = self._connection.stream(calls.events(handle, after))
                async with aclosing(stream) as pieces:
                    async for piece in pieces:
                        for data in self._connection.understand(events.feed, piece):
                            info = self._connection.understand(_INFO.decode, data)
                            after = info.results
                            # Whatever arrives shows that the service lives: patience begins anew.
                            tries = self._connection.tries()
                            yield info
            except ServiceUnreachable as failure:
                await self._connection.pause(tries, failure)
            else:
                await asyncio.sleep(AGAIN)  # it may end as the service likes

    # Tasks and results.

    async def submit(
        self, handle: str, tasks: Iterable[api.TaskSpec], key: str = ""
    ) -> Sequence[int]:
        """
        Add tasks, which are durable on return and will run.

        Parameters
        ----------
        tasks
            Any number of tasks; they are consumed and sent in pieces.
        key
            Names the submission: the same one again adds nothing. Empty: a random one.

        Returns
        -------
        sequence of int
            Their numbers in the instance, in their order.
        """
        key = key or self.new_key()
        numbers: Sequence[int] = range(0)
        for count, lines in enumerate(split_submission(tasks)):
            # The same tasks make the same pieces, so that each piece has the same key whenever it
            # is sent again.
            added = await self.submit_lines(handle, lines, f"{key}.{count}")
            piece = range(added.first, added.first + added.count)
            if not numbers:
                numbers = piece
            elif isinstance(numbers, range) and numbers.stop == piece.start:
                numbers = range(numbers.start, piece.stop)
            else:  # another client submitted meanwhile
                numbers = [*numbers, *piece]
        return numbers

    async def submit_lines(self, handle: str, lines: bytes, key: str) -> api.Submitted:
        """Add tasks, a JSON document each line, as one submission; see :meth:`submit`."""
        return await self._connection.call(calls.submit(handle, lines, key))

    async def tasks(self, handle: str) -> AsyncGenerator[api.TaskInfo, None]:
        """Yield the state of each task."""
        after: int | None = 0
        while after is not None:
            page = await self._connection.call(calls.tasks(handle, after, PAGE))
            for task in page.tasks:
                yield task
            after = page.next

    async def cancel(
        self, handle: str, numbers: Sequence[int] | None = None, *, grace: float | None = None
    ) -> int:
        """
        Cancel tasks.

        Parameters
        ----------
        numbers
            Numbers of the tasks in the instance; None: all.
        grace
            Seconds that running tasks have to end; None: the service's default.

        Returns
        -------
        int
            How many that stops.
        """
        return (await self._connection.call(calls.cancel(handle, numbers, grace))).count

    async def results(
        self, handle: str, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[api.Result, None]:
        """
        Yield results on arrival, each once.

        Parameters
        ----------
        after
            Cursor of the last result that is known.
        acknowledge
            The service forgets each result some time after the next one was asked for.
        until
            When they end: ``"now"`` with those that are there, ``"done"`` when every task has
            one, ``"closed"`` when the generator is closed, as more may be submitted.
        """
        batches = self.batches(handle, after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                for result in batch:
                    yield result

    async def batches(
        self, handle: str, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[list[api.Result], None]:
        """Yield arrived results in batches; see :meth:`results`."""
        clock = asyncio.get_running_loop().time
        taken = forgotten = after
        last = clock()
        batches = follow_results(
            self._connection, handle, after, until=until, stream=self._streaming
        )
        async with aclosing(batches):
            async for batch in batches:
                yield batch
                # Only now: that the caller asks for more shows that this batch was taken. Until
                # then a crash must find it at the service.
                taken = batch[-1].cursor
                if acknowledge and clock() - last >= FORGET_AFTER:
                    await self.forget(handle, taken)
                    forgotten, last = taken, clock()
        if acknowledge and taken > forgotten:
            await self.forget(handle, taken)

    async def page(
        self, handle: str, after: int = 0, *, limit: int = PAGE, wait: float = 0.0
    ) -> api.ResultPage:
        """Return the results after a cursor that arrive within ``wait`` seconds."""
        return await self._connection.call(calls.results(handle, after, limit, wait))

    async def forget(self, handle: str, through: int) -> None:
        """Let the service delete the results up to a cursor."""
        await self._connection.call(calls.forget(handle, through))

    # Files.

    async def files(self, handle: str) -> list[api.FileInfo]:
        """Return the files of an instance."""
        found: list[api.FileInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = (await self._connection.call(calls.files(handle, after, PAGE))).files
            found.extend(page)
            if len(page) < PAGE:
                return found

    async def upload(
        self, handle: str, name: str, source: Path | bytes, *, executable: bool = False
    ) -> api.FileInfo:
        """Write a file of an instance, in place of one of that name."""
        return await transfers.upload(self._connection, handle, name, source, executable=executable)

    async def upload_archive(self, handle: str, source: Path) -> list[api.FileInfo]:
        """Unpack an archive (tar, also compressed, or zip) in an instance."""
        return await transfers.upload_archive(self._connection, handle, source)

    async def copy_files(
        self, handle: str, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """
        Copy files of another instance of the same user within the service.

        Parameters
        ----------
        source
            Handle of the other instance.
        names
            At most 1000, the same in both.
        wait
            Seconds that copying may take.

        Returns
        -------
        list of FileInfo
            Of those that were there.
        """
        return (await self._connection.call(calls.copy_files(handle, source, names, wait))).files

    async def download(self, handle: str, name: str, target: Path) -> int:
        """Write a file of an instance to this machine, whole or not at all; return the size."""
        return await transfers.save(self._connection, calls.get_file(handle, name), target)

    async def read(self, handle: str, name: str) -> bytes:
        """Return the content of a file of an instance."""
        return await transfers.read(self._connection, calls.get_file(handle, name))

    async def remove(self, handle: str, name: str) -> None:
        """Delete a file of an instance."""
        await self._connection.call(calls.delete_file(handle, name))

    async def output(self, handle: str, task: int, stream: Stream = "stdout") -> bytes:
        """Return the whole output of a task, also when the result holds only a part."""
        return await transfers.read(self._connection, calls.get_output(handle, task, stream))

    async def save_output(self, handle: str, task: int, stream: Stream, target: Path) -> int:
        """Write a task's output to a file; return the size in bytes."""
        return await transfers.save(
            self._connection, calls.get_output(handle, task, stream), target
        )

    # Money.

    async def trade(self, message: TradeMessage) -> list[AnyMessage]:
        """Send a trade message and return the service's answers."""
        return await self._connection.call(calls.trade(message))

    async def agreements(self) -> list[api.AgreementInfo]:
        """Return the caller's agreements."""
        return (await self._connection.call(calls.agreements())).agreements

    async def agreement(self, name: str) -> api.AgreementInfo:
        """Return one agreement of the caller."""
        return await self._connection.call(calls.agreement(name))

    async def cancel_agreement(self, name: str) -> api.AgreementInfo:
        """End an agreement early."""
        return await self._connection.call(calls.cancel_agreement(name))

    async def account(self) -> api.AccountInfo:
        """Return the caller's account."""
        return await self._connection.call(calls.account())

    async def invoice(self, since: float = 0.0, until: float | None = None) -> api.InvoiceInfo:
        """Return the charges of a period, seconds since the epoch; ``until`` None: until now."""
        return await self._connection.call(calls.invoice(since, until))

    async def usage(self) -> "list[SignedRecord]":
        """Return the caller's usage records, signed by the service."""
        return await self._connection.call(calls.usage())

    # Administration.

    async def overview(self) -> Overview:
        """Return the state of the whole service."""
        return await self._connection.call(calls.overview())

    async def tokens(self) -> list[TokenInfo]:
        """Return all valid tokens."""
        return (await self._connection.call(calls.tokens())).tokens

    async def create_token(self, new: NewToken) -> TokenInfo:
        """Create a token; only this answer holds the secret."""
        return await self._connection.call(calls.create_token(new))

    async def revoke_token(self, name: str) -> None:
        """Revoke a token."""
        await self._connection.call(calls.revoke_token(name))

    async def deposit(self, user: str, amount: int, key: str = "") -> api.AccountInfo:
        """Add micro-units to a user's account; the same key again adds nothing."""
        return await self._connection.call(calls.deposit(user, amount, key or self.new_key()))

    async def drain(self) -> None:
        """Stop accepting work; the service ends when the accepted work is done."""
        await self._connection.call(calls.drain())

    def new_key(self) -> str:
        """Return a new random idempotency key."""
        return self._entropy(_KEY_BYTES).hex()


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
        """Yield results on arrival; see :meth:`AsyncServiceClient.results`."""
        batches = self.batches(after, acknowledge=acknowledge, until=until)
        async with aclosing(batches):
            async for batch in batches:
                for result in batch:
                    yield result

    async def batches(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> AsyncGenerator[list[api.Result], None]:
        """Yield arrived results in batches; see :meth:`results`."""
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
        """Kill the instance's tasks and delete all results and files."""
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
        """Write a file of the instance to this machine; return the size in bytes."""
        return await self.client.download(self.handle, name, target)

    async def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return await self.client.read(self.handle, name)

    async def output(self, task: int, stream: Stream = "stdout") -> bytes:
        """Return what a task printed."""
        return await self.client.output(self.handle, task, stream)

    async def save_output(self, task: int, stream: Stream, target: Path) -> int:
        """Write a task's output to a file; return the size in bytes."""
        return await self.client.save_output(self.handle, task, stream, target)
