"""The client of an execution service, for asyncio."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from bursar.market.agreement import DealTemplate
from bursar.market.trade_messages import (
    Accept,
    AnyMessage,
    Confirm,
    PriceQuote,
    Reject,
    RequestQuote,
)
from bursar.model.errors import InputError, SiteError
from bursar.model.money import Micros, format_amount
from bursar.remote import calls, transfers
from bursar.remote import messages as api
from bursar.remote.access import Access
from bursar.remote.connection import PATIENCE, TIMEOUT, Entropy, Notice, ServiceConnection
from bursar.remote.http_transport import HttpTransport, ServiceUnreachable
from bursar.remote.messages import AgreementInfo, Stream
from bursar.remote.route_queries import PAGE
from bursar.remote.submission import split_submission
from bursar.remote.transfers import AGAIN, EventStreamDecoder, Until, follow_results

if TYPE_CHECKING:
    from bursar.remote.sealed_tasks import InstanceSealer
    from bursar.sealing.task_sealing import TaskSealer


FORGET_AFTER = 1.0
"""Seconds, at least, between two times that results are acknowledged."""

_KEY_BYTES = 16

P = ParamSpec("P")
T = TypeVar("T")

_INFO = msgspec.json.Decoder(api.InstanceInfo)


def _request(
    build: Callable[P, calls.ApiCall[T]],
) -> Callable[Concatenate["AsyncServiceClient", P], Coroutine[Any, Any, T]]:
    """Make a method of the client that sends one request and returns its decoded answer."""

    @wraps(build)
    async def send(self: "AsyncServiceClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._connection.call(build(*args, **kwargs))

    return send


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
    Every method raises :class:`~bursar.remote.http_transport.RemoteProblem` when the service
    refuses, and :class:`~bursar.model.errors.SiteError` when it cannot be reached or is none.
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

    site = _request(calls.site)
    health = _request(calls.health)
    ready = _request(calls.ready)

    # Instances.

    async def create_instance(
        self,
        *,
        label: str = "",
        agreement: str = "",
        keep: float | None = None,
        key: str = "",
        deadline: float | None = None,
        budget: int | None = None,
    ) -> api.InstanceInfo:
        """
        Create an instance.

        Parameters
        ----------
        label, agreement, keep, deadline, budget
            As of :class:`~bursar.remote.messages.NewInstance`.
        key
            Names the request: the same one again gives the same instance. Empty: a random one.
        """
        new = api.NewInstance(
            label=label, agreement=agreement, keep=keep, deadline=deadline, budget=budget
        )
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

    instances = _request(calls.instances)
    instance = _request(calls.instance)
    destroy = _request(calls.destroy)

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

    submit_lines = _request(calls.submit)

    async def tasks(self, handle: str, first: int = 0) -> AsyncGenerator[api.TaskInfo, None]:
        """Yield the state of each task, from number ``first`` on."""
        after: int | None = first
        while after is not None:
            page = await self._connection.call(calls.tasks(handle, after, PAGE))
            for task in page.tasks:
                yield task
            after = page.next

    cancel = _request(calls.cancel)

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

    page = _request(calls.results)
    forget = _request(calls.forget)

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

    copy_files = _request(calls.copy_files)

    async def download(self, handle: str, name: str, target: Path) -> int:
        """Write a file of an instance to this machine, whole or not at all; return the size."""
        return await transfers.save(self._connection, calls.get_file(handle, name), target)

    async def read(self, handle: str, name: str) -> bytes:
        """Return the content of a file of an instance."""
        return await transfers.read(self._connection, calls.get_file(handle, name))

    remove = _request(calls.delete_file)

    running_output = _request(calls.running_output)

    async def output(self, handle: str, task: int, stream: Stream = "stdout") -> bytes:
        """Return the whole output of a task, also when the result holds only a part."""
        return await transfers.read(self._connection, calls.get_output(handle, task, stream))

    async def save_output(self, handle: str, task: int, stream: Stream, target: Path) -> int:
        """Write a task's output to a file; return the size in bytes."""
        return await transfers.save(
            self._connection, calls.get_output(handle, task, stream), target
        )

    # Money.

    trade = _request(calls.trade)
    auctions = _request(calls.auctions)
    heard = _request(calls.heard)
    agreements = _request(calls.agreements)
    agreement = _request(calls.agreement)
    cancel_agreement = _request(calls.cancel_agreement)
    account = _request(calls.account)
    invoice = _request(calls.invoice)
    usage = _request(calls.usage)

    # The owner's business.

    prices = _request(calls.prices)
    prices_ahead = _request(calls.prices_ahead)
    reprice = _request(calls.reprice)
    sales = _request(calls.sales)
    revenue = _request(calls.revenue)
    reserve = _request(calls.reserve)
    hand_over = _request(calls.hand_over)

    # The exchange.

    exchange = _request(calls.exchange)
    exchange_orders = _request(calls.exchange_orders)
    exchange_trades = _request(calls.exchange_trades)
    place_order = _request(calls.place_order)
    withdraw_order = _request(calls.withdraw_order)
    report_trade = _request(calls.report_trade)

    # Administration.

    overview = _request(calls.overview)
    tokens = _request(calls.tokens)
    create_token = _request(calls.create_token)
    revoke_token = _request(calls.revoke_token)

    async def deposit(self, user: str, amount: int, key: str = "") -> api.AccountInfo:
        """Add micro-units to a user's account; the same key again adds nothing."""
        return await self._connection.call(calls.deposit(user, amount, key or self.new_key()))

    drain = _request(calls.drain)

    def new_key(self) -> str:
        """Return a new random idempotency key."""
        return self._entropy(_KEY_BYTES).hex()


def _of_instance(
    method: Callable[Concatenate[AsyncServiceClient, str, P], T],
) -> Callable[Concatenate["AsyncSession", P], T]:
    """Make a method of a session: the client's, with the handle of the session's instance."""

    @wraps(method)
    def call(self: "AsyncSession", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.client, self.handle, *args, **kwargs)

    return call


class AsyncSession:
    """
    An instance at a service.

    Parameters
    ----------
    seals
        Seals the tasks and opens their results; None: the service can read both.
    """

    def __init__(
        self, client: "AsyncServiceClient", handle: str, seals: "InstanceSealer | None" = None
    ) -> None:
        self.client = client
        self.handle = handle
        self._seals = seals

    info = _of_instance(AsyncServiceClient.instance)

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

    cancel = _of_instance(AsyncServiceClient.cancel)
    destroy = _of_instance(AsyncServiceClient.destroy)
    files = _of_instance(AsyncServiceClient.files)
    upload = _of_instance(AsyncServiceClient.upload)
    copy_files = _of_instance(AsyncServiceClient.copy_files)
    download = _of_instance(AsyncServiceClient.download)
    read = _of_instance(AsyncServiceClient.read)
    output = _of_instance(AsyncServiceClient.output)
    save_output = _of_instance(AsyncServiceClient.save_output)


# Buys processors of a service at the posted price.


async def purchase(
    client: AsyncServiceClient, processors: int, seconds: float, most: Micros | None = None
) -> AgreementInfo:
    """
    Buy processors from now on, or from the time when enough are free.

    Parameters
    ----------
    most
        Greatest total price in micro-units; None: no limit.

    Raises
    ------
    InputError
        When they are dearer, or are not for sale.
    """
    site = await client.site()
    about: dict[str, Any] = {
        "deal": secrets.token_hex(16),
        "sender": (await client.account()).user,
        "to": site.name,
    }
    template = DealTemplate(processors=processors, seconds=seconds, currency=site.currency)
    quote = _only(await client.trade(RequestQuote(**about, number=1, template=template)))
    if not isinstance(quote, PriceQuote):
        raise InputError(_refusal(quote), where=site.name)
    # A quote that is not accepted expires and costs nothing.
    if most is not None and quote.terms.amount > most:
        price = format_amount(quote.terms.amount, site.currency)
        raise InputError(f"they cost {price}, more than may be spent", where=site.name)
    answer = _only(await client.trade(Accept(**about, number=2, of=quote.number)))
    if not isinstance(answer, Confirm):
        raise InputError(_refusal(answer), where=site.name)
    return await client.agreement(answer.agreement.id)


def _only(answers: list[AnyMessage]) -> AnyMessage | None:
    return answers[0] if len(answers) == 1 else None


def _refusal(answer: AnyMessage | None) -> str:
    return answer.reason if isinstance(answer, Reject) else "they are not for sale"
