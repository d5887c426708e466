"""
The client of an execution service, for programs without a loop of their own.

The asynchronous client runs in a thread of its own; :func:`waiting` and its two siblings make a
blocking method of each of its methods, with the same parameters, types and documentation.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from bursar.remote.access import Access
from bursar.remote.async_client import AsyncServiceClient, AsyncSession

if TYPE_CHECKING:
    from bursar.sealing.task_sealing import TaskSealer

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class BlockingPortal:
    """
    Runs coroutines in a separate thread; also from notebooks, where a loop is running already.

    :meth:`close` ends the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bursar-client", daemon=True
        )
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return the result; an interrupt of the caller cancels the work."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        # The coroutine would go on in its thread, and an upload with it, after the caller has given
        # up.
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator, which is closed with this one."""
        try:
            while (some := self.run(_next(items))) is not None:
                yield some[0]
        finally:
            if not self._loop.is_closed():
                self.run(_close(items))

    def close(self) -> None:
        """End the thread."""
        if not self._loop.is_closed():
            # While the loop still runs: threads that read files for uploads report to it.
            self.run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> tuple[T] | None:
    # In a tuple, as an item could be None, which stands for the end.
    async for item in items:
        return (item,)
    return None


async def _close(items: AsyncGenerator[T, None]) -> None:
    while getattr(items, "ag_running", False):  # who was interrupted is on its way out
        await asyncio.sleep(0)
    await items.aclose()


class _BlockingFacade(Generic[A]):
    def __init__(self, portal: BlockingPortal, asynchronous: A) -> None:
        self._portal = portal
        self._asynchronous = asynchronous


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_BlockingFacade[A], P], T]:
    """Make a method that waits for what an asynchronous one returns."""

    @wraps(method)
    def wait(self: _BlockingFacade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.run(method(self._asynchronous, *args, **kwargs))

    return wait


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_BlockingFacade[A], P], Iterator[T]]:
    """Make a method that waits for each item of an asynchronous generator."""

    @wraps(method)
    def iterate(self: _BlockingFacade[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._portal.iterate(method(self._asynchronous, *args, **kwargs))

    return iterate


def flattening(
    batches: Callable[Concatenate[A, P], AsyncGenerator[list[T], None]],
    items: Callable[..., AsyncGenerator[T, None]],
) -> Callable[Concatenate[_BlockingFacade[A], P], Iterator[T]]:
    """Make a method that yields ``items`` one by one, but changes threads once for each batch."""

    @wraps(items)
    def flatten(self: _BlockingFacade[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for batch in self._portal.iterate(batches(self._asynchronous, *args, **kwargs)):
            yield from batch

    return flatten


class ServiceClient(_BlockingFacade[AsyncServiceClient]):
    """
    A blocking client: :class:`AsyncServiceClient`, run in a thread of its own.

    Use it as a context, or :meth:`close` it.

    Parameters
    ----------
    access
        Address of the service, or an :class:`Access` with credentials.
    options
        Those of :class:`AsyncServiceClient`.
    """

    def __init__(self, access: Access | str, **options: Any) -> None:
        super().__init__(BlockingPortal(), AsyncServiceClient(access, **options))

    def __enter__(self) -> "ServiceClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def access(self) -> Access:
        """Address and credentials of the service."""
        return self._asynchronous.access

    def close(self) -> None:
        """Close the connections; submitted tasks go on. A second call does nothing."""
        if not self._portal.is_closed:
            self._portal.run(self._asynchronous.close())
            self._portal.close()

    @contextmanager
    def session(
        self,
        *,
        label: str = "",
        agreement: str = "",
        keep: float | None = None,
        seal: "TaskSealer | None" = None,
    ) -> "Iterator[Session]":
        """Create an instance for the length of a context; destroy the instance at the end."""
        context = self._asynchronous.session(label=label, agreement=agreement, keep=keep, seal=seal)
        session = self._portal.run(_entered(context))
        with ExitStack() as stack:
            stack.push(lambda *error: self._portal.run(_left(context, *error)))
            yield Session(self._portal, session)

    def attach(self, handle: str, *, seal: "TaskSealer | None" = None) -> "Session":
        """Return a session of an existing instance."""
        return Session(self._portal, self._asynchronous.attach(handle, seal=seal))

    site = waiting(AsyncServiceClient.site)
    health = waiting(AsyncServiceClient.health)
    ready = waiting(AsyncServiceClient.ready)

    create_instance = waiting(AsyncServiceClient.create_instance)
    instances = waiting(AsyncServiceClient.instances)
    instance = waiting(AsyncServiceClient.instance)
    destroy = waiting(AsyncServiceClient.destroy)
    events = iterating(AsyncServiceClient.events)

    submit = waiting(AsyncServiceClient.submit)
    tasks = iterating(AsyncServiceClient.tasks)
    cancel = waiting(AsyncServiceClient.cancel)
    page = waiting(AsyncServiceClient.page)
    forget = waiting(AsyncServiceClient.forget)
    results = flattening(AsyncServiceClient.batches, AsyncServiceClient.results)

    files = waiting(AsyncServiceClient.files)
    upload = waiting(AsyncServiceClient.upload)
    upload_archive = waiting(AsyncServiceClient.upload_archive)
    copy_files = waiting(AsyncServiceClient.copy_files)
    download = waiting(AsyncServiceClient.download)
    read = waiting(AsyncServiceClient.read)
    remove = waiting(AsyncServiceClient.remove)
    running_output = waiting(AsyncServiceClient.running_output)
    output = waiting(AsyncServiceClient.output)
    save_output = waiting(AsyncServiceClient.save_output)

    trade = waiting(AsyncServiceClient.trade)
    auctions = waiting(AsyncServiceClient.auctions)
    heard = waiting(AsyncServiceClient.heard)
    agreements = waiting(AsyncServiceClient.agreements)
    agreement = waiting(AsyncServiceClient.agreement)
    cancel_agreement = waiting(AsyncServiceClient.cancel_agreement)
    account = waiting(AsyncServiceClient.account)
    invoice = waiting(AsyncServiceClient.invoice)
    usage = waiting(AsyncServiceClient.usage)

    # The owner's business.

    prices = waiting(AsyncServiceClient.prices)
    prices_ahead = waiting(AsyncServiceClient.prices_ahead)
    reprice = waiting(AsyncServiceClient.reprice)
    sales = waiting(AsyncServiceClient.sales)
    revenue = waiting(AsyncServiceClient.revenue)
    reserve = waiting(AsyncServiceClient.reserve)
    hand_over = waiting(AsyncServiceClient.hand_over)

    exchange = waiting(AsyncServiceClient.exchange)
    exchange_orders = waiting(AsyncServiceClient.exchange_orders)
    exchange_trades = waiting(AsyncServiceClient.exchange_trades)
    place_order = waiting(AsyncServiceClient.place_order)
    withdraw_order = waiting(AsyncServiceClient.withdraw_order)
    report_trade = waiting(AsyncServiceClient.report_trade)

    overview = waiting(AsyncServiceClient.overview)
    tokens = waiting(AsyncServiceClient.tokens)
    create_token = waiting(AsyncServiceClient.create_token)
    revoke_token = waiting(AsyncServiceClient.revoke_token)
    deposit = waiting(AsyncServiceClient.deposit)
    drain = waiting(AsyncServiceClient.drain)


class Session(_BlockingFacade[AsyncSession]):
    """A blocking session of one instance: :class:`AsyncSession`, made by :class:`ServiceClient`."""

    @property
    def handle(self) -> str:
        """Handle of the instance."""
        return self._asynchronous.handle

    info = waiting(AsyncSession.info)
    submit = waiting(AsyncSession.submit)
    cancel = waiting(AsyncSession.cancel)
    destroy = waiting(AsyncSession.destroy)
    files = waiting(AsyncSession.files)
    upload = waiting(AsyncSession.upload)
    copy_files = waiting(AsyncSession.copy_files)
    download = waiting(AsyncSession.download)
    read = waiting(AsyncSession.read)
    output = waiting(AsyncSession.output)
    save_output = waiting(AsyncSession.save_output)
    results = flattening(AsyncSession.batches, AsyncSession.results)


async def _entered(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _left(
    context: AbstractAsyncContextManager[T],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool | None:
    return await context.__aexit__(kind, error, trace)
