"""
The bill: what a run cost, by site, by lease and by task.

Its items add up to what the ledger paid, to the micro-unit: a task bears the processor time it
held, rounded so that the sum over a lease's tasks is right to a micro-unit, and what remains of the
lease (its idle time and its fixed charge) is an item of its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType, field

from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.units import rounded_size
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.market.purchasing import DisputeRecord
from bursar.model.money import MICROS, DataPrices, ExchangeRate, Micros, format_amount, from_micros
from bursar.model.task import Status, Task
from bursar.provisioning.accounting import PilotUsage, agree
from bursar.report.copy_costs import CopiesItem, copies_item
from bursar.report.tables import plain, table_of

if TYPE_CHECKING:
    from rich.console import Console

TOP = 10
"""Tasks shown where not all are asked for."""


class LeaseItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    One lease on the bill.

    Parameters
    ----------
    tasks, remainder
        Amounts charged to the lease's tasks and left over: micro-units.
    data
        Amount for the data that tasks brought and sent back, micro-units; unset where there was
        none.
    total
        Sum of these, which the ledger paid for the lease.
    settled_by
        Whose word the seconds are: ``"record"``, the site's own record; ``"bound"``, the most
        that may have been held, where the site had no record any more; None, the run's clock.
    credit, lent
        Price of processors that other runs had and paid for, micro-units, and their
        processor-seconds; unset where there were none.
    recorded
        Processor-seconds by the site's own record; None where it has none.
    agrees
        Whether these are ours but for rounding; None where there is nothing to compare.
    unit_price, fixed_price
        Prices that were paid, currency units per processor-second and for the whole lease; unset
        where they are those of the plan or unknown.
    """

    lease: str
    site: str
    processors: int
    seconds: float
    tasks: Micros = field(name="tasks_micros")
    remainder: Micros = field(name="remainder_micros")
    total: Micros = field(name="total_micros")
    settled_by: str | None = None
    recorded: float | None = field(name="recorded_cpu_s", default=None)
    agrees: bool | None = None
    data: Micros | UnsetType = field(name="data_micros", default=UNSET)
    credit: Micros | UnsetType = field(name="credit_micros", default=UNSET)
    lent: float | UnsetType = field(name="lent_cpu_s", default=UNSET)
    unit_price: float | UnsetType = UNSET
    fixed_price: float | UnsetType = UNSET

    @property
    def billed(self) -> float:
        """Sum of processor-seconds that are paid."""
        return self.processors * self.seconds - (self.lent or 0.0)


class SiteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """
    One site's own figure beside the bill's.

    Parameters
    ----------
    amount
        Micro-units paid to it.
    billed
        Processor-seconds that are paid.
    recorded
        Processor-seconds by the site's own record, those of jobs that are on no lease included;
        None where it has none.
    agrees
        Whether nothing differs; None where there is nothing to compare.
    differing
        Leases for which the two differ by more than rounding, or of which the site has no record
        although it has one of others; and jobs that are on no lease.
    exchange
        Rate by which the site's prices were changed into the bill's currency; absent where they
        are in it.
    """

    site: str
    amount: Micros = field(name="amount_micros")
    billed: float = field(name="billed_cpu_s")
    recorded: float | None = field(name="recorded_cpu_s")
    agrees: bool | None
    differing: list[str]
    exchange: ExchangeRate | UnsetType = UNSET

    def __str__(self) -> str:
        if self.recorded is None:
            text = f"{self.billed:.0f} CPU s by our clock; {self.site} keeps no record"
        else:
            text = (
                f"{self.billed:.0f} CPU s billed, {self.recorded:.0f} by {self.site}'s own record"
            )
            if self.agrees:
                text += ": they agree"
            else:
                text += f": they DIFFER ({', '.join(self.differing)})"
        if self.exchange is UNSET:
            return text
        own = format_amount(round(self.amount / self.exchange.rate), self.exchange.currency)
        return f"{text}; {own} at {self.exchange.rate:g} (rate since {self.exchange.since})"


class MachineItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    One machine that was bought of a cloud.

    Parameters
    ----------
    lease, site
        Lease that it was bought for, and the cloud.
    machine, type
        The provider's identity of the machine, and of its type.
    seconds
        Seconds that were paid, by the provider's rules.
    hourly
        Price of a machine-hour, currency units; None when unknown.
    price
        Source and date of that price, in words.
    """

    lease: str
    site: str
    machine: str
    type: str
    seconds: float
    hourly: float | None
    price: str

    def __str__(self) -> str:
        hours = f"{self.machine}, {self.type}: {self.seconds / 3600:.4f} h"
        if self.hourly is None:
            return f"{hours}, price unknown"
        return f"{hours} at {self.hourly:.6g} an hour ({self.price})"


class DataItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    Data that the tasks at one site brought there and sent back, where that has a price.

    Parameters
    ----------
    bytes_in, bytes_out
        Bytes brought, and sent back.
    amount
        Micro-units paid for them.
    prices
        Prices with their date.
    """

    site: str
    bytes_in: int
    bytes_out: int
    amount: Micros = field(name="amount_micros")
    prices: DataPrices

    def __str__(self) -> str:
        return data_words(self.bytes_in, self.bytes_out, self.prices)


def data_words(bytes_in: int, bytes_out: int, prices: DataPrices) -> str:
    """Write data and their prices for people."""
    rates = [(prices.into, "in"), (prices.out, "out")]
    at = " and ".join(f"{price:.6g} per GB {way}" for price, way in rates if price)
    return f"data: {rounded_size(bytes_in)} in, {rounded_size(bytes_out)} out, at {at} ({prices})"


class TaskItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    One task on the bill.

    Parameters
    ----------
    task, name, site
        Id and kind of the task, and the site of the last attempt.
    processor_seconds
        Processor-seconds held, over all attempts.
    amount
        Micro-units, over all attempts.
    repeated
        Part of ``amount`` for attempts that did not succeed.
    """

    task: str
    name: str
    site: str
    attempts: int
    processor_seconds: float
    amount: Micros = field(name="amount_micros")
    repeated: Micros = field(name="repeated_micros")


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """
    The bill of a run: leases, charges and totals.

    Parameters
    ----------
    total
        Micro-units paid, as the ledger says.
    granted, held
        By the owner so far, and set aside now: micro-units.
    unpriced
        Sites of unknown price, which no amount speaks of.
    figures
        Each site's own record beside the bill.
    unsettled
        Leases that were given back, and of which the sites have not said what they came to.
    disputes
        Bills of sites that their own signed usage records, or our count, do not bear out.
    machines
        Machines that were bought of clouds.
    data
        Data that were brought and sent back, by site.
    copies
        What copies came to; None: there were none.
    """

    run: str
    currency: str
    leases: list[LeaseItem]
    tasks: list[TaskItem]
    total: Micros
    granted: Micros
    held: Micros
    unpriced: list[str]
    figures: list[SiteFigures] = []
    unsettled: list[str] = []
    disputes: list[DisputeRecord] = []
    machines: list[MachineItem] = []
    data: list[DataItem] = []
    copies: CopiesItem | None = None

    @property
    def by_site(self) -> dict[str, Micros]:
        """Micro-units paid to each site."""
        paid: dict[str, Micros] = {}
        for item in self.leases:
            paid[item.site] = paid.get(item.site, 0) + item.total
        return paid

    def to_dict(self) -> dict[str, Any]:
        """Return the bill as JSON, with amounts in whole micro-units and in currency units."""
        # Only where there are some: most bills have none.
        some: dict[str, Any] = {
            "disputes": self.disputes,
            "machines": self.machines,
            "data": self.data,
        }
        some |= {} if self.copies is None else {"copies": self.copies}
        more = {name: msgspec.to_builtins(items) for name, items in some.items() if items}
        return {
            "run": self.run,
            "currency": self.currency,
            "total": from_micros(self.total),
            "total_micros": self.total,
            "granted_micros": self.granted,
            "held_micros": self.held,
            "unpriced_sites": self.unpriced,
            "unsettled": self.unsettled,
            "sites": msgspec.to_builtins(self.figures),
            "leases": msgspec.to_builtins(self.leases),
            "tasks": msgspec.to_builtins(self.tasks),
        } | more


def make_bill(
    run: str,
    ledger: Ledger,
    leases: Sequence[Lease],
    tasks: Sequence[Task],
    records: Iterable[AttemptRecord],
    recorded: Mapping[str, PilotUsage] | None = None,
    recorded_at: Mapping[str, str] | None = None,
    disputes: Sequence[DisputeRecord] = (),
    copies: Collection[tuple[int, int]] = (),
    bought: Collection[str] = (),
) -> Bill:
    """
    Make the bill of a run. Open leases of a run that goes on are not yet included.

    Parameters
    ----------
    ledger
        What was paid.
    leases
        All there were; requests that came to nothing are left out.
    tasks
        Of the campaign, which the records number.
    records
        Every attempt, by task.
    recorded, recorded_at
        What the sites' own records say of each lease, and at which site.
    disputes
        Bills of sites that are wrong.
    copies
        Task and attempt of each copy.
    bought
        Leases that were bought for copies.
    """
    recorded, recorded_at = recorded or {}, recorded_at or {}
    paid = ledger.settled()
    # Requests that never got processors cost nothing.
    leases = [lease for lease in leases if not lease.asked]
    closed = {lease.id: lease for lease in leases if lease.end is not None}
    for_data = _paid_for_data(ledger, closed)
    by_task = charged_attempts(ledger, leases, tasks, records)
    borne = dict.fromkeys(closed, 0)
    for attempts in by_task.values():
        for record, share in attempts:
            if record.lease in borne:
                borne[record.lease] += share
    items = [
        LeaseItem(
            lease=lease.id,
            site=lease.site,
            processors=lease.processors,
            seconds=(lease.end or lease.start) - lease.start,
            tasks=borne[lease.id],
            remainder=paid.get(lease.id, 0) - borne[lease.id] - for_data.get(lease.id, 0),
            data=for_data.get(lease.id, UNSET),
            total=paid.get(lease.id, 0),
            settled_by=lease.settled_by or None,
            credit=lease.credit or UNSET,
            lent=lease.credit / (lease.unit_price * MICROS)
            if lease.credit and lease.unit_price
            else UNSET,
            unit_price=UNSET if lease.charged is None else lease.unit_price or 0.0,
            fixed_price=UNSET if lease.charged is None else lease.fixed_price or 0.0,
            **_compared(lease, recorded.get(lease.id)),
        )
        for lease in closed.values()
    ]
    return Bill(
        run=run,
        currency=leases[0].currency if leases else "SU",
        leases=items,
        figures=_figures(items, recorded, recorded_at),
        tasks=[_task_item(tasks[number], attempts) for number, attempts in by_task.items()],
        copies=copies_item(by_task, copies, {n: paid.get(n, 0) for n in bought if n in closed}),
        total=ledger.spent,
        granted=ledger.funded,
        held=ledger.held,
        unpriced=sorted({lease.site for lease in leases if not lease.is_priced}),
        disputes=list(disputes),
        machines=[
            MachineItem(
                lease=pilot,
                site=recorded_at.get(pilot, ""),
                machine=usage.job,
                type=usage.machine,
                seconds=usage.seconds,
                hourly=usage.hourly,
                price=usage.price,
            )
            for pilot, usage in recorded.items()
            if usage.machine
        ],
        data=_data_items(closed.values(), for_data),
    )


def charged_attempts(
    ledger: Ledger,
    leases: Iterable[Lease],
    tasks: Sequence[Task],
    records: Iterable[AttemptRecord],
) -> dict[int, list[tuple[AttemptRecord, Micros]]]:
    """
    Return the attempts of each task by its number, each with the micro-units that it bears.

    An attempt on a lease that has not ended bears nothing yet.

    Parameters
    ----------
    records
        Every attempt, by task.
    """
    paid = ledger.settled()
    closed = {one.id: one for one in leases if one.end is not None and not one.asked}
    for_data = _paid_for_data(ledger, closed)
    borne = dict.fromkeys(closed, 0)
    used = dict.fromkeys(closed, 0.0)
    by_task: dict[int, list[tuple[AttemptRecord, Micros]]] = {}
    for record in records:
        outcome = record.outcome
        lease = closed.get(record.lease)
        share = 0
        if lease is not None:
            seconds = max(0.0, outcome.end - max(outcome.start, lease.start))
            used[lease.id] += tasks[outcome.task].processors * seconds
            # Rounded over all so far, so that many short tasks are not all rounded to nothing.
            # Nor more than was paid: the site's record may be shorter than our clock's.
            time = paid.get(lease.id, 0) - for_data.get(lease.id, 0)
            so_far = min(lease.share(used[lease.id]), time)
            share = so_far - borne[lease.id]
            borne[lease.id] = so_far
        by_task.setdefault(outcome.task, []).append((record, share))
    return by_task


def _paid_for_data(ledger: Ledger, leases: Mapping[str, Lease]) -> dict[str, Micros]:
    """Return what the ledger paid for the data of each lease; leases without any are left out."""
    found: dict[str, Micros] = {}
    for row in ledger.rows:
        lease = leases.get(row.agreement) if row.kind == "settle" else None
        # Movements for time have no words.
        if lease is not None and lease.data_prices is not None and row.memo:
            found[lease.id] = found.get(lease.id, 0) + row.amount
    return found


def _data_items(leases: Iterable[Lease], paid: Mapping[str, Micros]) -> list[DataItem]:
    by_site: dict[str, list[Lease]] = {}
    for lease in leases:
        if lease.data_prices is not None and (lease.bytes_in or lease.bytes_out):
            by_site.setdefault(lease.site, []).append(lease)
    items = []
    for site, there in by_site.items():
        prices = there[-1].data_prices
        assert prices is not None
        items.append(
            DataItem(
                site=site,
                bytes_in=sum(lease.bytes_in for lease in there),
                bytes_out=sum(lease.bytes_out for lease in there),
                amount=sum(paid.get(lease.id, 0) for lease in there),
                prices=prices,
            )
        )
    return items


def print_bill(bill: Bill, *, every: bool = False, console: "Console | None" = None) -> None:
    """Print the bill as tables: leases, then tasks, the dearest first."""
    from rich.console import Console

    console = console or Console()
    currency = bill.currency

    def amount(micros: Micros) -> str:
        return format_amount(micros, currency)

    carried = ("data",) if bill.data else ()
    titles = ("lease", "site", "processors", "held", "tasks", "idle and fixed", *carried, "total")
    leases = [
        (
            item.lease,
            item.site,
            str(item.processors),
            f"{item.seconds:.1f} s" + (f", {item.lent:.1f} s lent" if item.lent else ""),
            *(amount(each) for each in (item.tasks, item.remainder)),
            *(amount(item.data or 0) for _ in carried),
            amount(item.total),
        )
        for item in bill.leases
    ]
    console.print(table_of(*titles, rows=leases, right=slice(2, None)))

    dearest = sorted(bill.tasks, key=lambda item: -item.amount)
    shown = dearest if every else dearest[:TOP]
    heads = ("task", "attempts", "processor time", "amount", "of this repeated")
    tasks = [
        (
            task.task,
            str(task.attempts),
            f"{task.processor_seconds:.3g} s",
            amount(task.amount),
            amount(task.repeated) if task.repeated else "",
        )
        for task in shown
    ]
    console.print()
    console.print(table_of(*heads, rows=tasks, right=slice(1, None)))
    if len(shown) < len(dearest):
        console.print(f"and {len(dearest) - len(shown)} more tasks (--all shows them)")
    if bill.copies is not None:
        console.print(f"copies: {bill.copies.words(bill.currency)}", soft_wrap=True)
    console.print()
    for one in bill.figures:
        console.print(f"{one.site}: {amount(one.amount)}; {one}", soft_wrap=True)
    for machine in bill.machines:
        console.print(f"{machine.site}: {machine}", soft_wrap=True)
    for data in bill.data:
        console.print(f"{data.site}: {data}: {amount(data.amount)}", soft_wrap=True)
    for item in bill.leases:
        if item.settled_by == "bound":
            console.print(
                f"{item.lease}: {item.site} has no record of it any more; paid is the most that "
                "it may have held",
                soft_wrap=True,
            )
    if bill.unsettled:
        console.print(
            f"not settled: {', '.join(bill.unsettled)}; {amount(bill.held)} stays set aside "
            f"(bursar run --resume {bill.run} asks again)",
            soft_wrap=True,
        )
    for dispute in bill.disputes:
        for finding in dispute.findings:
            console.print(
                f"{dispute.lease}: {plain(dispute.site)} {plain(finding)} "
                f"(agreement {plain(dispute.agreement)})",
                style="bold",
                soft_wrap=True,
            )
    for site in bill.unpriced:
        console.print(f"{site}: price unknown")
    console.print(f"total: {amount(bill.total)}", style="bold")


def _compared(lease: Lease, recorded: PilotUsage | None) -> dict[str, Any]:
    if recorded is None:
        return {}
    theirs = recorded.processors * recorded.seconds
    ours = lease.processors * ((lease.end or lease.start) - lease.start)
    width = max(lease.processors, recorded.processors)
    return {"recorded": theirs, "agrees": agree(ours, theirs, width)}


def _figures(
    items: Sequence[LeaseItem],
    recorded: Mapping[str, PilotUsage],
    recorded_at: Mapping[str, str],
) -> list[SiteFigures]:
    found = []
    listed = {item.lease for item in items}
    for site in dict.fromkeys([*(item.site for item in items), *recorded_at.values()]):
        here = [item for item in items if item.site == site]
        others = [
            usage
            for pilot, usage in recorded.items()
            if pilot not in listed and recorded_at.get(pilot) == site
        ]
        known = [item.recorded for item in here if item.recorded is not None]
        known += [usage.processors * usage.seconds for usage in others]
        differing = [item.lease for item in here if item.agrees is False]
        # Only where the site has records at all is a missing one a difference.
        if known:
            differing += [
                item.lease
                for item in here
                if item.recorded is None and not agree(item.billed, 0.0, item.processors)
            ]
        differing += [
            f"job {usage.job}"
            for usage in others
            if not agree(0.0, usage.processors * usage.seconds, usage.processors)
        ]
        found.append(
            SiteFigures(
                site=site,
                amount=sum(item.total for item in here),
                billed=sum(item.billed for item in here),
                recorded=sum(known) if known else None,
                agrees=not differing if known else None,
                differing=differing,
            )
        )
    return found


def _task_item(task: Task, attempts: Sequence[tuple[AttemptRecord, Micros]]) -> TaskItem:
    seconds = sum(r.outcome.end - r.outcome.start for r, _ in attempts)
    return TaskItem(
        task=task.id,
        name=task.name,
        site=attempts[-1][0].site,
        attempts=len(attempts),
        processor_seconds=task.processors * seconds,
        amount=sum(share for _, share in attempts),
        repeated=sum(s for r, s in attempts if r.outcome.status is not Status.SUCCEEDED),
    )
