"""One life of the engine of a simulated run: its clock, its store, its guard and its leases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import JournalState, RunEvent
from bursar.engine import reactor
from bursar.engine.core import EngineCore
from bursar.engine.ready_tasks import MASK
from bursar.engine.transactions import EngineTransaction
from bursar.market.account_records import held_for
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.errors import BursarError
from bursar.model.money import Refusal, Transfer
from bursar.model.task import Outcome
from bursar.runs.incarnations import leases_of
from bursar_devtools.faults.event_trace import EventTrace

EPOCH = 1e6
"""The journal's time 0, seconds since the epoch."""

LASTING_LEASE = "lease-1"
"""Name of the lease of the workers that stay."""


class LifeWorld(Protocol):
    """The simulated time in which a life passes."""

    time: float
    trace: EventTrace

    def later(
        self,
        seconds: float,
        call: Callable[[], None],
        is_alive: Callable[[], bool] = lambda: True,
    ) -> "EventTimer": ...

    def delay(self, most: float) -> float: ...


def told_of(outcome: Outcome) -> str:
    mark = "c" if outcome.task > MASK else ""
    return (
        f"{outcome.task & MASK}{mark}.{outcome.attempt} {outcome.status} {outcome.reason}".strip()
    )


def lease_from(start: float) -> Lease:
    return Lease(id="", site="here", processors=1, unit_price=1.0, fixed_price=0.5, start=start)


def wrong_money(state: JournalState, life: "EngineLife") -> str:
    """Return what is wrong with the ledger of a run at its end, but for the lease that stays."""
    ledger, leases = Ledger(state.transfers), leases_of(state.events)
    for lease in leases.values():
        if lease.id == LASTING_LEASE:
            continue
        if lease.end is None:
            return f"{lease.id} is not given back"
        held, paid = ledger.balance(held_for(lease.id)), ledger.settled().get(lease.id, 0)
        assert lease.until is not None
        if held or paid != lease.rectangle(min(lease.end, lease.until) - lease.start):
            return f"{lease.id} has {held} set aside and {paid} paid"
    if ledger.rows != life.guard.ledger.rows:
        return "the journal and the guard do not know the same movements of money"
    return ""


class EventTimer:
    """A callback at a moment, which may be cancelled."""

    def __init__(self, call: Callable[[], None], is_alive: Callable[[], bool]) -> None:
        self._call, self._is_alive = call, is_alive

    def cancel(self) -> None:
        self._is_alive = lambda: False

    def fire(self) -> None:
        if self._is_alive():
            self._call()


class NumberedGuard(BudgetGuard):
    """Knows by which numbers money is set aside."""

    def __init__(self, rows: Sequence[Transfer]) -> None:
        super().__init__(None, limit_of=lambda task: None, rows=rows)
        self.held: set[int] = set()

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        answer = super().admit(task, lease, now)
        if not isinstance(answer, Refusal):
            self.held.add(task)
        return answer

    def withdraw(self, task: int, now: float) -> None:
        super().withdraw(task, now)
        self.held.discard(task)


@dataclass(slots=True, eq=False)
class EngineLife:
    """
    One incarnation of the engine: its state, its clock and its store.

    Parameters
    ----------
    core
        The engine; None until it has begun.
    """

    world: LifeWorld
    journal: RunJournal
    guard: NumberedGuard
    core: EngineCore | None = None
    pending: EngineTransaction = field(default_factory=EngineTransaction)
    fault: BursarError | None = None
    is_over: bool = False
    is_committing: bool = False

    def now(self) -> float:
        return EPOCH + self.world.time

    def soon(self, callback: Callable[[], None]) -> None:
        self.later(0.0, callback)

    def at(self, moment: float, callback: Callable[[], None]) -> EventTimer:
        return self.later(moment - self.now(), callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> EventTimer:
        return self.world.later(seconds, callback, lambda: not self.is_over)

    def note_lease(self, lease: Lease) -> None:
        """Journal a lease together with the movements of money that belong to it."""
        text = msgspec.json.encode(lease).decode()
        self.pending.events.append(RunEvent(self.now(), "lease", text))
        self.pending.transfers.extend(self.guard.transfers())
        self.commit_soon()

    def close_lease(self, lease: str) -> None:
        """Pay a lease, if it is open."""
        if lease in self.guard.leases:
            self.note_lease(self.guard.charges.close(lease, self.now()))

    def commit_soon(self) -> None:
        if not self.is_committing:
            self.is_committing = True
            self.later(self.world.delay(0.1), self._write)

    def fail(self, error: BaseException) -> None:
        raise error

    def _write(self) -> None:
        done, self.pending = self.pending, EngineTransaction()
        self.world.trace.note("journal", f"{[told_of(r.outcome) for r in done.records]}")
        self.journal.commit(done.records, done.transfers, done.events, done.starts)
        # A kill in between: durable, and nobody has been told.
        self.later(self.world.delay(0.1), partial(self._told, done))

    def _told(self, done: EngineTransaction) -> None:
        assert self.core is not None
        self.is_committing = False
        reactor.committed(self.core, done)
        if self.pending:
            self.commit_soon()
