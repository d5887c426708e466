"""The client of an execution service, for programs without a loop of their own."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.remote import messages as api
from bursar.remote.access import Access
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.blocking_portal import BlockingPortal
from bursar.remote.following import PAGE, Until
from bursar.remote.session import AsyncSession
from bursar.remote.task_output import Stream

if TYPE_CHECKING:
    from bursar.market.usage import SignedRecord
    from bursar.sealing.sealer import TaskSealer

T = TypeVar("T")


class ServiceClient:
    """
    The client of an execution service: :class:`AsyncServiceClient`, run in a thread of its own.

    Every method is that one's of the same name, waited for. Use it as a context, or
    :meth:`close` it.

    Parameters
    ----------
    access
        The service's address, or that and who one is.
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
        """How the service is reached."""
        return self._client.access

    def close(self) -> None:
        """Lets go of its connections; what was submitted goes on. Again: no change."""
        if not self._portal.is_closed:
            self._portal.run(self._client.close())
            self._portal.close()

    # The site.

    def site(self) -> api.SiteInfo:
        """What the service says of itself."""
        return self._portal.run(self._client.site())

    def health(self) -> api.Health:
        """Whether it lives."""
        return self._portal.run(self._client.health())

    def ready(self) -> api.Health:
        """Whether it takes work."""
        return self._portal.run(self._client.ready())

    # Instances.

    def create_instance(
        self, *, label: str = "", agreement: str = "", keep: float | None = None, key: str = ""
    ) -> api.InstanceInfo:
        """A new instance."""
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
        """A new instance for the length of a context; it is destroyed at the end."""
        context = self._client.session(label=label, agreement=agreement, keep=keep, seal=seal)
        session = self._portal.run(_entered(context))
        with ExitStack() as stack:
            stack.push(lambda *error: self._portal.run(_left(context, *error)))
            yield Session(self._portal, session)

    def attach(self, handle: str, *, seal: "TaskSealer | None" = None) -> "Session":
        """An instance that is there already."""
        return Session(self._portal, self._client.attach(handle, seal=seal))

    def instances(self) -> list[api.InstanceInfo]:
        """The caller's own."""
        return self._portal.run(self._client.instances())

    def instance(self, handle: str) -> api.InstanceInfo:
        """One of them."""
        return self._portal.run(self._client.instance(handle))

    def destroy(self, handle: str) -> None:
        """Its tasks are killed; its results and files go."""
        self._portal.run(self._client.destroy(handle))

    def events(self, handle: str, after: int = 0) -> Iterator[api.InstanceInfo]:
        """The instance whenever something of it has changed, without an end."""
        return self._portal.iterate(self._client.events(handle, after))

    # Tasks and results.

    def submit(self, handle: str, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Adds tasks; their numbers."""
        return self._portal.run(self._client.submit(handle, tasks, key))

    def tasks(self, handle: str) -> Iterator[api.TaskInfo]:
        """Where each task stands."""
        return self._portal.iterate(self._client.tasks(handle))

    def cancel(
        self, handle: str, numbers: Sequence[int] | None = None, *, grace: float | None = None
    ) -> int:
        """Tasks are not wanted any more, None: all; how many that stops."""
        return self._portal.run(self._client.cancel(handle, numbers, grace=grace))

    def results(
        self, handle: str, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> Iterator[api.Result]:
        """Results as they come, each once."""
        return self.attach(handle).results(after, acknowledge=acknowledge, until=until)

    def page(
        self, handle: str, after: int = 0, *, limit: int = PAGE, wait: float = 0.0
    ) -> api.ResultPage:
        """Results after a cursor that are there within so many seconds."""
        return self._portal.run(self._client.page(handle, after, limit=limit, wait=wait))

    def forget(self, handle: str, through: int) -> None:
        """The service need not keep results up to a cursor any longer."""
        self._portal.run(self._client.forget(handle, through))

    # Files.

    def files(self, handle: str) -> list[api.FileInfo]:
        """Of an instance."""
        return self._portal.run(self._client.files(handle))

    def upload(
        self, handle: str, name: str, source: Path | bytes, *, executable: bool = False
    ) -> api.FileInfo:
        """Puts a file into an instance, in place of one of that name."""
        return self._portal.run(self._client.upload(handle, name, source, executable=executable))

    def upload_archive(self, handle: str, source: Path) -> list[api.FileInfo]:
        """Puts the files of an archive (tar, also compressed, or zip) into an instance."""
        return self._portal.run(self._client.upload_archive(handle, source))

    def copy_files(
        self, handle: str, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Puts files of another instance into one; see the asynchronous client."""
        return self._portal.run(self._client.copy_files(handle, source, names, wait=wait))

    def download(self, handle: str, name: str, target: Path) -> int:
        """Writes a file of an instance to this machine, whole or not at all; its bytes."""
        return self._portal.run(self._client.download(handle, name, target))

    def read(self, handle: str, name: str) -> bytes:
        """A file of an instance."""
        return self._portal.run(self._client.read(handle, name))

    def remove(self, handle: str, name: str) -> None:
        """A file of an instance goes."""
        self._portal.run(self._client.remove(handle, name))

    def output(self, handle: str, task: int, stream: Stream = "stdout") -> bytes:
        """What a task printed, also when its result does not hold it."""
        return self._portal.run(self._client.output(handle, task, stream))

    def save_output(self, handle: str, task: int, stream: Stream, target: Path) -> int:
        """Writes what a task printed to a file; its bytes."""
        return self._portal.run(self._client.save_output(handle, task, stream, target))

    # Money.

    def trade(self, message: TradeMessage) -> list[AnyMessage]:
        """Sends a message of a deal; what the service answers."""
        return self._portal.run(self._client.trade(message))

    def agreements(self) -> list[api.AgreementInfo]:
        """The caller's own."""
        return self._portal.run(self._client.agreements())

    def agreement(self, name: str) -> api.AgreementInfo:
        """One of them."""
        return self._portal.run(self._client.agreement(name))

    def cancel_agreement(self, name: str) -> api.AgreementInfo:
        """An agreement ends before its time."""
        return self._portal.run(self._client.cancel_agreement(name))

    def account(self) -> api.AccountInfo:
        """The caller's own."""
        return self._portal.run(self._client.account())

    def invoice(self, since: float = 0.0, until: float | None = None) -> api.InvoiceInfo:
        """What the caller was charged in a time, seconds since the epoch; None: until now."""
        return self._portal.run(self._client.invoice(since, until))

    def usage(self) -> "list[SignedRecord]":
        """What the caller was delivered, signed by the service."""
        return self._portal.run(self._client.usage())

    # Administration.

    def overview(self) -> api.Overview:
        """All there is."""
        return self._portal.run(self._client.overview())

    def tokens(self) -> list[api.TokenInfo]:
        """All that are good."""
        return self._portal.run(self._client.tokens())

    def create_token(self, new: api.NewToken) -> api.TokenInfo:
        """A new one: its secret is in this answer only."""
        return self._portal.run(self._client.create_token(new))

    def revoke_token(self, name: str) -> None:
        """It is good no longer."""
        self._portal.run(self._client.revoke_token(name))

    def deposit(self, user: str, amount: int, key: str = "") -> api.AccountInfo:
        """Money for a user's account, micro-units; the same key again adds nothing."""
        return self._portal.run(self._client.deposit(user, amount, key))

    def drain(self) -> None:
        """The service takes nothing more, and ends once it may."""
        self._portal.run(self._client.drain())


class Session:
    """
    An instance at a service: :class:`AsyncSession`, waited for.

    Made by :meth:`ServiceClient.session` and :meth:`ServiceClient.attach`.
    """

    def __init__(self, portal: BlockingPortal, session: AsyncSession) -> None:
        self._portal = portal
        self._session = session

    @property
    def handle(self) -> str:
        """Of the instance."""
        return self._session.handle

    def info(self) -> api.InstanceInfo:
        """How it stands."""
        return self._portal.run(self._session.info())

    def submit(self, tasks: Iterable[api.TaskSpec], key: str = "") -> Sequence[int]:
        """Adds tasks; their numbers."""
        return self._portal.run(self._session.submit(tasks, key))

    def results(
        self, after: int = 0, *, acknowledge: bool = False, until: Until = "done"
    ) -> Iterator[api.Result]:
        """Results as they come, each once."""
        found = self._session.batches(after, acknowledge=acknowledge, until=until)
        for batch in self._portal.iterate(found):
            yield from batch

    def cancel(self, numbers: Sequence[int] | None = None, *, grace: float | None = None) -> int:
        """Tasks are not wanted any more, None: all; how many that stops."""
        return self._portal.run(self._session.cancel(numbers, grace=grace))

    def destroy(self) -> None:
        """Its tasks are killed; its results and files go."""
        self._portal.run(self._session.destroy())

    def files(self) -> list[api.FileInfo]:
        """It has."""
        return self._portal.run(self._session.files())

    def upload(self, name: str, source: Path | bytes, *, executable: bool = False) -> api.FileInfo:
        """Puts a file into it."""
        return self._portal.run(self._session.upload(name, source, executable=executable))

    def copy_files(
        self, source: str, names: Sequence[str], *, wait: float = 0.0
    ) -> list[api.FileInfo]:
        """Puts files of another instance into it; see the asynchronous client."""
        return self._portal.run(self._session.copy_files(source, names, wait=wait))

    def download(self, name: str, target: Path) -> int:
        """Writes a file of it to this machine; its bytes."""
        return self._portal.run(self._session.download(name, target))

    def read(self, name: str) -> bytes:
        """A file of it."""
        return self._portal.run(self._session.read(name))

    def output(self, task: int, stream: Stream = "stdout") -> bytes:
        """What a task printed."""
        return self._portal.run(self._session.output(task, stream))

    def save_output(self, task: int, stream: Stream, target: Path) -> int:
        """Writes what a task printed to a file; its bytes."""
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
