"""Commands that use a service: ``bursar account``, ``watch``, ``instance`` and ``top``."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bursar.cli.options import (
    AsJson,
    BilledIn,
    InstanceId,
    ServiceName,
    all_keys,
    billed_between,
    parsed,
    print_json,
    print_note,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.remote.admin_messages import Overview
    from bursar.remote.async_client import AsyncServiceClient, AsyncSession


# Opens clients of services that are named on the command line.

T = TypeVar("T")

INTERRUPTED = 130

_SEALED = "its output is sealed, and comes with its result"
_NO_ANSWER = "its worker does not answer; its output comes at the latest with its result"
_LOGS_WAIT = 20.0  # seconds for which a service may hold a question for more output back


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
        from bursar.sealing.task_sealing import read_sealer

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
    from bursar.remote.access import find_service
    from bursar.remote.async_client import AsyncServiceClient

    service = find_service(site)
    async with AsyncServiceClient(service.access, notice=print_note) as client:
        yield ServiceSession(client, service.seal)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a command's work."""
    # Not at the top: commands that do without it begin sooner.
    import asyncio

    return asyncio.run(work)


def ask_service(site: str | None, question: "Callable[[AsyncServiceClient], Awaitable[T]]") -> T:
    """Return what the service of a name or URL answers to one question."""

    async def ask() -> T:
        async with connect_service(site) as service:
            return await question(service.client)

    return run_async(ask())


def run_until_done(work: Coroutine[Any, Any, T], interrupted: Callable[[], None]) -> T:
    """Return the result of a command's work; an interrupt is reported and ends the command."""
    try:
        return run_async(work)
    except KeyboardInterrupt:
        interrupted()
        raise typer.Exit(INTERRUPTED) from None


# ``bursar account``: a user's money and agreements at a service.


account_app = typer.Typer(
    name="account",
    no_args_is_help=True,
    help="Show and change your money at a service: balance, agreements, charges.",
)

Agreement = Annotated[
    str, typer.Argument(metavar="AGREEMENT", help="Id of the agreement.", show_default=False)
]


def register_account(root: typer.Typer) -> None:
    """Add ``bursar account`` to the command line."""
    root.add_typer(account_app)


@account_app.command("show")
def show(site: ServiceName = None, as_json: AsJson = False) -> None:
    """Show your balance: available, held for agreements, spent."""
    from bursar.report.service_views import print_account

    found = ask_service(site, lambda client: client.account())
    if as_json:
        print_json(all_keys(found))
    else:
        print_account(found)


@account_app.command("buy")
def buy(
    processors: Annotated[
        int,
        typer.Option(
            "--processors", "-p", min=1, help="Number of processors, reserved for you alone."
        ),
    ],
    time: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="Length of the reservation, from now: 90, 10m, 2h."
        ),
    ],
    most: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Highest total price that you accept."),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Buy processors at the current price. The command prints the agreement's id."""
    from bursar.formats.units import parse_amount, parse_duration
    from bursar.model.money import format_amount, to_micros
    from bursar.remote.async_client import purchase
    from bursar.report.tables import span

    seconds = parsed(parse_duration, time, "--for")
    limit = None if most is None else to_micros(parsed(parse_amount, most, "--most")[0])
    bought = ask_service(site, lambda client: purchase(client, processors, seconds, limit))
    if as_json:
        print_json({"agreements": all_keys([bought])})
        return
    price = format_amount(bought.charged + bought.held, bought.currency)
    print_note(f"{processors} processors for {span(seconds)}: {price}")
    print(bought.id)


@account_app.command("agreements")
def agreements(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List your agreements."""
    from bursar.report.service_views import print_agreements

    found = ask_service(site, lambda client: client.agreements())
    if as_json:
        print_json({"agreements": all_keys(found)})
    else:
        print_agreements(found)


@account_app.command("cancel")
def cancel_agreement(
    agreement: Agreement, site: ServiceName = None, as_json: AsJson = False
) -> None:
    """End an agreement early, on the terms that it states."""
    from bursar.report.service_views import print_agreements

    found = ask_service(site, lambda client: client.cancel_agreement(agreement))
    if as_json:
        print_json({"agreements": all_keys([found])})
    else:
        print_agreements([found])


@account_app.command("invoice")
def invoice(
    period: BilledIn = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Print what was charged, item by item, and the total."""
    from bursar.report.service_views import print_invoice

    begin, end = billed_between(period)
    found = ask_service(site, lambda client: client.invoice(begin, end))
    if as_json:
        print_json(all_keys(found))
    else:
        print_invoice(found)


@account_app.command("deposit")
def deposit(
    user: Annotated[
        str, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)
    ],
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT", help='Amount of money: 12.5 or "12.5 EUR".', show_default=False
        ),
    ],
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Idempotency key: a second deposit with the same key moves no money.",
        ),
    ] = "",
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Put money into a user's account. Your token needs the scope admin."""
    from bursar.formats.units import parse_amount
    from bursar.model.errors import InputError
    from bursar.model.money import to_micros
    from bursar.remote.messages import AccountInfo
    from bursar.report.service_views import print_account

    units, currency = parsed(parse_amount, amount, "AMOUNT")
    micros = to_micros(units)
    if micros < 1:
        raise InputError("expected more than nothing", where="AMOUNT")

    async def put(client: "AsyncServiceClient") -> AccountInfo:
        asked = (await client.site()).currency
        if currency not in (None, asked):
            raise InputError(f"the service counts in {asked}", where="AMOUNT")
        return await client.deposit(user, micros, key)

    found = ask_service(site, put)
    if as_json:
        print_json(all_keys(found))
    else:
        print_account(found)


# ``bursar top``: a service at a glance.


def register_top(root: typer.Typer) -> None:
    """Add ``bursar top`` to the command line."""
    root.command("top")(show_top)


def show_top(
    site: ServiceName = None,
    once: Annotated[bool, typer.Option("--once", help="Show the service once and exit.")] = False,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=0.2, help="Seconds between two updates."),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show a service live: instances, workers, throughput and spending."""

    run_until_done(_show(site, once=once, every=every, as_json=as_json), lambda: None)


async def _show(site: str | None, *, once: bool, every: float, as_json: bool) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live

    console = Console()
    async with connect_service(site) as service:
        view = _ServiceView(service.client)
        if as_json:
            print_json(all_keys(await view.as_dict()))
        elif once or not console.is_terminal:
            console.print(await view.panel())
        else:
            first = await view.panel(console.size.height)
            with Live(first, console=console, screen=True, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every)
                    live.update(await view.panel(console.size.height), refresh=True)


class _ServiceView:
    """Shows a service to its administrator as a whole, and to other users what is their own."""

    def __init__(self, client: "AsyncServiceClient") -> None:
        self._client = client
        self._before: Overview | None = None

    async def as_dict(self) -> Any:
        """Return the overview as JSON, for scripts."""
        seen = await self._overview()
        if seen is not None:
            return seen
        return {
            "instances": await self._client.instances(),
            "account": await self._client.account(),
        }

    async def panel(self, height: int | None = None) -> Any:
        """
        Ask the service and return a table for people; its rates cover the time since the last call.

        Parameters
        ----------
        height
            Lines of the screen, to which the table is cut; None: the whole table.
        """
        from bursar.report.service_views import overview_panel, own_panel, rates_between

        name = self._client.access.name
        seen = await self._overview()
        if seen is None:
            instances, account = await self._client.instances(), await self._client.account()
            return own_panel(name, instances, account, height)
        rates = rates_between(self._before, seen) if self._before is not None else None
        self._before = seen
        return overview_panel(name, seen, rates, height)

    async def _overview(self) -> "Overview | None":
        """None: one is no administrator."""
        from bursar.remote.http_transport import RemoteProblem

        try:
            return await self._client.overview()
        except RemoteProblem as problem:
            if problem.status != 403:
                raise
            return None


# ``bursar watch`` and ``bursar instance``: instances at a service, their files and their ends.

instance_app = typer.Typer(
    name="instance",
    no_args_is_help=True,
    help="List, cancel, export and destroy instances at a service, and fetch their files.",
)


def register(root: typer.Typer) -> None:
    """Add ``bursar watch`` and ``bursar instance`` to the command line."""
    root.command("watch")(watch)
    root.add_typer(instance_app)


@instance_app.command("list")
def list_instances(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List your instances."""
    from bursar.report.service_views import print_instances

    found = ask_service(site, lambda client: client.instances())
    if as_json:
        print_json({"instances": all_keys(found)})
    else:
        print_instances(found)


@instance_app.command("cancel")
def cancel_tasks(
    instance: InstanceId,
    tasks: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[TASK...]", help="Task numbers. Default: all tasks.", show_default=False
        ),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Cancel tasks: waiting ones do not start, running ones are killed."""

    count = ask_service(site, lambda client: client.cancel(instance, tasks or None))
    if as_json:
        print_json({"cancelled": count})
    else:
        print_note(f"{count} cancelled")


@instance_app.command("logs")
def show_logs(
    instance: InstanceId,
    task: Annotated[int, typer.Argument(metavar="TASK", help="Number of the task.", min=0)],
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print what the task prints while it runs, until it ends."
        ),
    ] = False,
    site: ServiceName = None,
) -> None:
    """Print what a task has printed so far: its stdout to stdout, its stderr to stderr."""
    run_async(_show_logs(site, instance, task, follow=follow))


async def _show_logs(site: str | None, handle: str, task: int, *, follow: bool) -> None:
    from bursar.remote.messages import STREAMS
    from bursar.remote.output_messages import printed

    targets = sys.stdout.buffer, sys.stderr.buffer
    serial, told = 0, ""
    offsets, digests = [0, 0], [sha256(), sha256()]

    def show(stream: int, content: bytes) -> None:
        targets[stream].write(content)
        targets[stream].flush()
        offsets[stream] += len(content)
        digests[stream].update(content)

    async with connect_service(site) as session:
        client = session.client
        while True:
            wait = _LOGS_WAIT if follow else 0.0
            said = await client.running_output(
                handle, task, serial, (offsets[0], offsets[1]), wait=wait
            )
            if said.result is not None:
                break
            if said.shown:
                if serial not in (0, said.serial):
                    print_note(f"task {task}: another attempt runs")
                    offsets[:], digests[:] = [0, 0], [sha256(), sha256()]
                serial = said.serial
                for stream, part in enumerate((said.stdout, said.stderr)):
                    show(stream, part.content)
                more = said.stdout.size > offsets[0] or said.stderr.size > offsets[1]
            else:
                more = False
                hidden = str(said.state)
                if said.serial:
                    hidden = _SEALED if said.sealed else _NO_ANSWER
                if hidden != told:
                    told = hidden
                    print_note(f"task {task}: {hidden}")
                await asyncio.sleep(follow)
            if not follow and not more:
                return
        page = await client.page(handle, said.result - 1, limit=1)
        (result,) = page.results
        for stream, name in enumerate(STREAMS):
            content = printed(result, name)
            if content is None:
                content = await client.output(handle, task, name)
            # Only what was not printed yet, unless that was another attempt's.
            seen = content[: offsets[stream]]
            is_same = sha256(seen).digest() == digests[stream].digest()
            show(stream, content[len(seen) :] if is_same else content)
        print_note(f"task {task}: {result.state}{f': {result.reason}' if result.reason else ''}")


@instance_app.command("destroy")
def destroy(instance: InstanceId, site: ServiceName = None) -> None:
    """Destroy an instance: kill its tasks, delete its results and files."""

    ask_service(site, lambda client: client.destroy(instance))


@instance_app.command("files")
def list_files(instance: InstanceId, site: ServiceName = None, as_json: AsJson = False) -> None:
    """List an instance's files: inputs that were sent and outputs that its tasks made."""

    found = ask_service(site, lambda client: client.files(instance))
    if as_json:
        print_json({"files": found})
        return
    for file in found:
        typer.echo(f"{file.size:>14,}  {file.name}")


@instance_app.command("fetch")
def fetch(
    instance: InstanceId,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]", help="Names of files. Default: all files.", show_default=False
        ),
    ] = None,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Folder into which the files are written.")
    ] = Path(),
    site: ServiceName = None,
) -> None:
    """Fetch an instance's files."""
    from bursar.remote.transfers import local_path

    async def download(client: "AsyncServiceClient") -> None:
        wanted = names or [file.name for file in await client.files(instance)]
        for name in wanted:
            target = local_path(into, name)
            size = await client.download(instance, name, target)
            print_note(f"{target}: {size:,} bytes")

    ask_service(site, download)


def watch(instance: InstanceId, site: ServiceName = None, as_json: AsJson = False) -> None:
    """Watch an instance until all its tasks have ended. Ctrl-C leaves them running."""

    failed = run_until_done(
        _watch(site, instance, as_json=as_json), lambda: print_note("interrupted; the tasks go on")
    )
    if failed:
        raise typer.Exit(1)


async def _watch(site: str | None, handle: str, *, as_json: bool) -> int:
    """Return the number of tasks that did not succeed."""
    from contextlib import aclosing

    from bursar.report.service_views import InstanceProgress, ended

    async with connect_service(site) as service:
        info = await service.client.instance(handle)
        with InstanceProgress() as progress:
            progress.update(info)
            async with aclosing(service.client.events(handle, info.results)) as changes:
                while ended(info) < info.counts.total:
                    info = await anext(changes)
                    progress.update(info)
            progress.end(info)
    if as_json:
        print_json(all_keys(info))
    return info.counts.total - info.counts.succeeded
