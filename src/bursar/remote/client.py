"""The client of an execution service, for programs without a loop of their own."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.remote import messages as api
from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo
from bursar.remote.async_client import AsyncServiceClient, AsyncSession
from bursar.remote.messages import Stream
from bursar.remote.result_streams import PAGE, Until

if TYPE_CHECKING:
    from bursar.market.usage import SignedRecord
    from bursar.sealing.sealer import TaskSealer


# An event loop in a separate thread, for blocking callers.

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


class ServiceClient:
    """
    A blocking client: :class:`AsyncServiceClient`, run in a thread of its own.

    Every method waits for that client's method of the same name. Use it as a context, or
    :meth:`close` it.

    Parameters
    ----------
    access
        Address of the service, or an :class:`Access` with credentials.
    options
        Those of :class:`AsyncServiceClient`.
    """

    def __init__(self, access: Access | str, **options: Any) -> None:
        self._client = AsyncServiceClient(access, **options)
        self._portal = BlockingPortal()

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
        return self._client.access

    def close(self) -> None:
        """Close the connections; submitted tasks go on. A second call does nothing."""
        if not self._portal.is_closed:
            self._portal.run(self._client.close())
            self._portal.close()

    # The site.

    def site(self) -> api.SiteInfo:
        """Return the facts and free slots that the service states."""
        return self._portal.run(self._client.site())

    def health(self) -> api.Health:
        """Return whether the service responds."""
        return self._portal.run(self._client.health())

    def ready(self) -> api.Health:
        """Return whether the service accepts work."""
        return self._portal.run(self._client.ready())

    # Instances.

    def create_instance(
        self, *, label: str = "", agreement: str = "", keep: float | None = None, key: str = ""
    ) -> api.InstanceInfo:
        """Create an instance."""
        return self._portal.run(
            self._client.create_instance(label=label, agreement=agreement, keep=keep, key=key)
        )

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
        context = self._client.session(label=label, agreement=agreement, keep=keep, seal=seal)
        session = self._portal.run(_entered(context))
        with ExitStack() as stack:
            stack.push(lambda *error: self._portal.run(_left(context, *error)))
            yield Session(self._portal, session)

    def attach(self, handle: str, *, seal: "TaskSealer | None" = None) -> "Session":
        """Return a session of an existing instance."""
        return Session(self._portal, self._client.attach(handle, seal=seal))

    def instances(self) -> list[api.InstanceInfo]:
        """Return the caller's instances."""
        return self._portal.run(self._client.instances())

    def instance(self, handle: str) -> api.InstanceInfo:
        """Return one instance of the caller."""
        return self._portal.run(self._client.instance(handle))

    def destroy(self, handle: str) -> None:
        """Kill an instance's tasks and delete all results and files."""
        self._portal.run(self._client.destroy(handle))

    def events(self, handle: str, after: int = 0) -> Iterator[api.InstanceInfo]:
        """Yield the instance's state at every change, without an end."""
        return self._portal.iterate(self._client.events(handle, after))

    # Tasks and results.

    def submit(self, handle: str, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Add tasks and return their numbers in the instance."""
        return self._portal.run(self._client.submit(handle, tasks, key))

    def tasks(self, handle: str) -> Iterator[api.TaskInfo]:
        """Yield the state of each task."""
        return self._portal.iterate(self._client.tasks(handle))

    def cancel(
        self, handle: str, numbers: Sequence[int] | None = None, *, grace: float | None = None
    ) -> int:
        """Cancel tasks, ``numbers`` None: all; return how many are stopped."""
        return self._portal.run(self._client.cancel(handle, numbers, grace=grace))

    def results(
        self, handle: str, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> Iterator[api.Result]:
        """Yield results on arrival, each once."""
        return self.attach(handle).results(after, acknowledge=acknowledge, until=until)

    def page(
        self, handle: str, after: int = 0, *, limit: int = PAGE, wait: float = 0.0
    ) -> api.ResultPage:
        """Return the results after a cursor that arrive within ``wait`` seconds."""
        return self._portal.run(self._client.page(handle, after, limit=limit, wait=wait))

    def forget(self, handle: str, through: int) -> None:
        """Let the service delete the results up to a cursor."""
        self._portal.run(self._client.forget(handle, through))

    # Files.

    def files(self, handle: str) -> list[api.FileInfo]:
        """Return the files of an instance."""
        return self._portal.run(self._client.files(handle))

    def upload(
        self, handle: str, name: str, source: Path | bytes, *, executable: bool = False
    ) -> api.FileInfo:
        """Write a file of an instance, in place of one of that name."""
        return self._portal.run(self._client.upload(handle, name, source, executable=executable))

    def upload_archive(self, handle: str, source: Path) -> list[api.FileInfo]:
        """Unpack an archive (tar, also compressed, or zip) in an instance."""
        return self._portal.run(self._client.upload_archive(handle, source))

    def copy_files(
        self, handle: str, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Puts files of another instance into one; see the asynchronous client."""
        return self._portal.run(self._client.copy_files(handle, source, names, wait=wait))

    def download(self, handle: str, name: str, target: Path) -> int:
        """Write a file of an instance to this machine, whole or not at all; return the size."""
        return self._portal.run(self._client.download(handle, name, target))

    def read(self, handle: str, name: str) -> bytes:
        """Return the content of a file of an instance."""
        return self._portal.run(self._client.read(handle, name))

    def remove(self, handle: str, name: str) -> None:
        """Delete a file of an instance."""
        self._portal.run(self._client.remove(handle, name))

    def output(self, handle: str, task: int, stream: Stream = "stdout") -> bytes:
        """Return the whole output of a task, also when the result holds only a part."""
        return self._portal.run(self._client.output(handle, task, stream))

    def save_output(self, handle: str, task: int, stream: Stream, target: Path) -> int:
        """Write a task's output to a file; return the size in bytes."""
        return self._portal.run(self._client.save_output(handle, task, stream, target))

    # Money.

    def trade(self, message: TradeMessage) -> list[AnyMessage]:
        """Send a trade message and return the service's answers."""
        return self._portal.run(self._client.trade(message))

    def agreements(self) -> list[api.AgreementInfo]:
        """Return the caller's agreements."""
        return self._portal.run(self._client.agreements())

    def agreement(self, name: str) -> api.AgreementInfo:
        """Return one agreement of the caller."""
        return self._portal.run(self._client.agreement(name))

    def cancel_agreement(self, name: str) -> api.AgreementInfo:
        """End an agreement early."""
        return self._portal.run(self._client.cancel_agreement(name))

    def account(self) -> api.AccountInfo:
        """Return the caller's account."""
        return self._portal.run(self._client.account())

    def invoice(self, since: float = 0.0, until: float | None = None) -> api.InvoiceInfo:
        """Return the charges of a period, seconds since the epoch; ``until`` None: until now."""
        return self._portal.run(self._client.invoice(since, until))

    def usage(self) -> "list[SignedRecord]":
        """Return the caller's usage records, signed by the service."""
        return self._portal.run(self._client.usage())

    # Administration.

    def overview(self) -> Overview:
        """Return the state of the whole service."""
        return self._portal.run(self._client.overview())

    def tokens(self) -> list[TokenInfo]:
        """Return all valid tokens."""
        return self._portal.run(self._client.tokens())

    def create_token(self, new: NewToken) -> TokenInfo:
        """Create a token; only this answer holds the secret."""
        return self._portal.run(self._client.create_token(new))

    def revoke_token(self, name: str) -> None:
        """Revoke a token."""
        self._portal.run(self._client.revoke_token(name))

    def deposit(self, user: str, amount: int, key: str = "") -> api.AccountInfo:
        """Add micro-units to a user's account; the same key again adds nothing."""
        return self._portal.run(self._client.deposit(user, amount, key))

    def drain(self) -> None:
        """Stop accepting work; the service ends when the accepted work is done."""
        self._portal.run(self._client.drain())


class Session:
    """
    A blocking session of one instance, made by :class:`ServiceClient`.

    Every method waits for the method of :class:`AsyncSession` of the same name.
    """

    def __init__(self, portal: BlockingPortal, session: AsyncSession) -> None:
        self._portal = portal
        self._session = session

    @property
    def handle(self) -> str:
        """Handle of the instance."""
        return self._session.handle

    def info(self) -> api.InstanceInfo:
        """Return the instance's state."""
        return self._portal.run(self._session.info())

    def submit(self, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Add tasks and return their numbers in the instance."""
        return self._portal.run(self._session.submit(tasks, key))

    def results(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> Iterator[api.Result]:
        """Yield results on arrival, each once."""
        found = self._session.batches(after, acknowledge=acknowledge, until=until)
        for batch in self._portal.iterate(found):
            yield from batch

    def cancel(self, numbers: Sequence[int] | None = None, *, grace: float | None = None) -> int:
        """Cancel tasks, ``numbers`` None: all; return how many are stopped."""
        return self._portal.run(self._session.cancel(numbers, grace=grace))

    def destroy(self) -> None:
        """Kill the instance's tasks and delete all results and files."""
        self._portal.run(self._session.destroy())

    def files(self) -> list[api.FileInfo]:
        """Return the instance's files."""
        return self._portal.run(self._session.files())

    def upload(self, name: str, source: Path | bytes, *, executable: bool = False) -> api.FileInfo:
        """Write a file of the instance."""
        return self._portal.run(self._session.upload(name, source, executable=executable))

    def copy_files(
        self, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Copy files of another instance; see :meth:`AsyncServiceClient.copy_files`."""
        return self._portal.run(self._session.copy_files(source, names, wait=wait))

    def download(self, name: str, target: Path) -> int:
        """Write a file of the instance to this machine; return the size in bytes."""
        return self._portal.run(self._session.download(name, target))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._portal.run(self._session.read(name))

    def output(self, task: int, stream: Stream = "stdout") -> bytes:
        """Return what a task printed."""
        return self._portal.run(self._session.output(task, stream))

    def save_output(self, task: int, stream: Stream, target: Path) -> int:
        """Write a task's output to a file; return the size in bytes."""
        return self._portal.run(self._session.save_output(task, stream, target))


async def _entered(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _left(
    context: AbstractAsyncContextManager[T],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool | None:
    return await context.__aexit__(kind, error, trace)
