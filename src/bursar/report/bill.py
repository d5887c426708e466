"""
The bill: what a run cost, by site, by lease and by task.

Its items add up to what the ledger paid, to the micro-unit: a task bears the
processor time it held, rounded so that the sum over a lease's tasks is right to
a micro-unit, and what remains of the lease (its idle time and its fixed charge)
is an item of its own.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.dispatch.journal import Record
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.money import Micros, format_amount, from_micros
from bursar.model.outcome import Status
from bursar.model.task import Task

if TYPE_CHECKING:
    from rich.console import Console

TOP = 10
"""Tasks shown where not all are asked for."""


class LeaseItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    One lease on the bill.

    Parameters
    ----------
    lease, site
        Which.
    processors
        How many were held.
    seconds
        For how long.
    tasks, remainder
        What its tasks bear, and what is left: micro-units.
    total
        Their sum: what the ledger paid for it.
    """

    lease: str
    site: str
    processors: int
    seconds: float
    tasks: Micros
    remainder: Micros
    total: Micros


class TaskItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    One task on the bill.

    Parameters
    ----------
    task, name, site
        Which, what kind, and where it ran last.
    attempts
        How often it ran.
    processor_seconds
        That it held, over all attempts.
    amount
        Micro-units, over all attempts.
    repeated
        Of these, for attempts that did not succeed.
    """

    task: str
    name: str
    site: str
    attempts: int
    processor_seconds: float
    amount: Micros
    repeated: Micros


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a run cost.

    Parameters
    ----------
    run
        Its name.
    currency
        Of every amount.
    leases, tasks
        The items.
    total
        Micro-units paid, as the ledger says.
    granted, held
        By the owner so far, and set aside now: micro-units.
    unpriced
        Sites of unknown price, which no amount speaks of.
    """

    run: str
    currency: str
    leases: list[LeaseItem]
    tasks: list[TaskItem]
    total: Micros
    granted: Micros
    held: Micros
    unpriced: list[str]

    @property
    def by_site(self) -> dict[str, Micros]:
        """Micro-units paid to each site."""
        paid: dict[str, Micros] = {}
        for item in self.leases:
            paid[item.site] = paid.get(item.site, 0) + item.total
        return paid

    def to_dict(self) -> dict[str, Any]:
        """As JSON: amounts in whole micro-units beside their value in currency units."""
        return {
            "run": self.run,
            "currency": self.currency,
            "total": from_micros(self.total),
            "total_micros": self.total,
            "granted_micros": self.granted,
            "held_micros": self.held,
            "unpriced_sites": self.unpriced,
            "sites": [
                {"site": site, "amount_micros": amount} for site, amount in self.by_site.items()
            ],
            "leases": [
                {
                    "lease": item.lease,
                    "site": item.site,
                    "processors": item.processors,
                    "seconds": item.seconds,
                    "tasks_micros": item.tasks,
                    "remainder_micros": item.remainder,
                    "total_micros": item.total,
                }
                for item in self.leases
            ],
            "tasks": [
                {
                    "task": item.task,
                    "name": item.name,
                    "site": item.site,
                    "attempts": item.attempts,
                    "processor_seconds": item.processor_seconds,
                    "amount_micros": item.amount,
                    "repeated_micros": item.repeated,
                }
                for item in self.tasks
            ],
        }


def make_bill(
    run: str,
    ledger: Ledger,
    leases: Sequence[Lease],
    tasks: Sequence[Task],
    records: Iterable[Record],
) -> Bill:
    """
    The bill of a run, also of one that goes on: open leases are not on it yet.

    Parameters
    ----------
    ledger
        What was paid.
    leases
        All there were.
    tasks
        Of the campaign, which the records number.
    records
        Every attempt, by task.
    """
    paid = ledger.settled()
    closed = {lease.id: lease for lease in leases if lease.end is not None}
    borne = dict.fromkeys(closed, 0)
    used = dict.fromkeys(closed, 0.0)
    by_task: dict[int, list[tuple[Record, Micros]]] = {}
    for record in records:
        outcome = record.outcome
        lease = closed.get(record.lease)
        share = 0
        if lease is not None:
            seconds = max(0.0, outcome.end - max(outcome.start, lease.start))
            used[lease.id] += tasks[outcome.task].processors * seconds
            # Rounded over all so far, so that many short tasks are not all rounded to nothing.
            so_far = min(lease.share(used[lease.id]), paid.get(lease.id, 0))
            share = so_far - borne[lease.id]
            borne[lease.id] = so_far
        by_task.setdefault(outcome.task, []).append((record, share))
    return Bill(
        run=run,
        currency=leases[0].currency if leases else "SU",
        leases=[
            LeaseItem(
                lease=lease.id,
                site=lease.site,
                processors=lease.processors,
                seconds=(lease.end or lease.start) - lease.start,
                tasks=borne[lease.id],
                remainder=paid.get(lease.id, 0) - borne[lease.id],
                total=paid.get(lease.id, 0),
            )
            for lease in closed.values()
        ],
        tasks=[_task_item(tasks[number], attempts) for number, attempts in by_task.items()],
        total=ledger.spent,
        granted=ledger.funded,
        held=ledger.held,
        unpriced=sorted({lease.site for lease in leases if not lease.is_priced}),
    )


def print_bill(bill: Bill, *, every: bool = False, console: "Console | None" = None) -> None:
    """The bill as tables: leases, then tasks, the dearest first."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    currency = bill.currency

    def amount(micros: Micros) -> str:
        return format_amount(micros, currency)

    leases = Table("lease", "site", "processors", "held", "tasks", "idle and fixed", "total")
    leases.box = None
    for item in bill.leases:
        leases.add_row(
            item.lease,
            item.site,
            str(item.processors),
            f"{item.seconds:.1f} s",
            amount(item.tasks),
            amount(item.remainder),
            amount(item.total),
        )
    for column in leases.columns[2:]:
        column.justify = "right"
    console.print(leases)

    dearest = sorted(bill.tasks, key=lambda item: -item.amount)
    shown = dearest if every else dearest[:TOP]
    tasks = Table("task", "attempts", "processor time", "amount", "of this repeated", box=None)
    for task in shown:
        tasks.add_row(
            task.task,
            str(task.attempts),
            f"{task.processor_seconds:.3g} s",
            amount(task.amount),
            amount(task.repeated) if task.repeated else "",
        )
    for column in tasks.columns[1:]:
        column.justify = "right"
    console.print()
    console.print(tasks)
    if len(shown) < len(dearest):
        console.print(f"and {len(dearest) - len(shown)} more tasks (--all shows them)")
    console.print()
    for site, paid in bill.by_site.items():
        console.print(f"{site}: {amount(paid)}")
    for site in bill.unpriced:
        console.print(f"{site}: price unknown")
    console.print(f"total: {amount(bill.total)}", style="bold")


def _task_item(task: Task, attempts: Sequence[tuple[Record, Micros]]) -> TaskItem:
    return TaskItem(
        task=task.id,
        name=task.name,
        site=attempts[-1][0].site,
        attempts=len(attempts),
        processor_seconds=sum(
            task.processors * (r.outcome.end - r.outcome.start) for r, _ in attempts
        ),
        amount=sum(share for _, share in attempts),
        repeated=sum(s for r, s in attempts if r.outcome.status is not Status.SUCCEEDED),
    )
