"""
The budget guard: no work starts unless its worst case is set aside; actions due at thresholds.

:mod:`bursar.market.lease_holds` keeps the worst case of all leases set aside, and pays them at
their end; the guard admits tasks and leases, and watches the clock. Tasks without a limit of
their own get one: the moment at which the money of all open leases would run out together.

Decisions only: times and events go in, transfers and effects come out.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from bursar.market.lease import Lease
from bursar.market.lease_holds import AHEAD, LeaseCharges, LeaseExposure, LeaseHolds
from bursar.market.ledger import Ledger
from bursar.model.campaign import BudgetAction
from bursar.model.money import (
    MICROS,
    Micros,
    Refusal,
    Transfer,
    format_amount,
    from_micros,
    to_micros,
)
from bursar.model.task import Outcome

# Defines the actions that are due when spending reaches a share of the budget.


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """Tells the user about the spending."""

    reason: str


@dataclass(frozen=True, slots=True)
class BudgetDrain:
    """Starts no more tasks; running ones go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class BudgetHalt:
    """
    Stops running tasks and releases the processors.

    Parameters
    ----------
    site
        Where; empty for everywhere.
    """

    reason: str
    site: str = ""


BudgetEffect = BudgetWarning | BudgetDrain | BudgetHalt


class BudgetThresholds:
    """
    Holds the actions of a budget, each of which is due once.

    They look at what is spent, time already accrued included and holds left
    out: a hold is a worst case that mostly comes back, so a campaign whose
    tasks have generous limits would otherwise be warned at its first task.

    Parameters
    ----------
    budget
        Micro-units; None for no budget, where nothing is ever due.
    on_budget
        Share of the budget to action. Unless it says something else for the
        whole budget, everything stops there.
    """

    def __init__(self, budget: Micros | None, on_budget: Mapping[float, BudgetAction]) -> None:
        self._budget = budget
        actions: dict[float, BudgetAction] = {1.0: "stop", **on_budget}
        self._waiting = sorted(actions.items()) if budget else []

    def amend(self, budget: Micros | None) -> None:
        """Change the budget; actions already taken are not repeated."""
        self._budget = budget
        if not budget:
            self._waiting = []

    @property
    def next_due(self) -> float | None:
        """Micro-units spent at which the next action is due; None for never."""
        return self._waiting[0][0] * self._budget if self._waiting and self._budget else None

    def due(self, spent: Micros) -> list[BudgetEffect]:
        """Return the actions that ``spent`` has reached and that were not due before."""
        effects: list[BudgetEffect] = []
        while self._waiting and self._budget and spent >= self._waiting[0][0] * self._budget:
            share, action = self._waiting.pop(0)
            effects.append(_effect(action, f"{share:.3g}" if share < 0.01 else f"{share:.0%}"))
        return effects


def _effect(action: BudgetAction, share: str) -> BudgetEffect:
    if action == "warn":
        return BudgetWarning(f"{share} of the budget is spent")
    if action == "drain":
        return BudgetDrain(f"{share} of the budget is spent: nothing more starts")
    return BudgetHalt(f"{share} of the budget is spent: what runs is stopped")


# The budget guard: no work starts unless its worst case is set aside.

LEAD = 0.5
"""Seconds before the money runs out at which everything is stopped: to kill, and to close."""

_LEAST = 0.2
"""Shortest time between two checks, seconds."""


class BudgetGuard:
    """
    Admits the tasks and leases of one run, and watches what they cost.

    Parameters
    ----------
    budget
        Micro-units; None for no limit: then the owner grants what is needed.
    on_budget
        Share of the budget to action.
    limit_of
        Function from a task to its wall-time limit, seconds; None for no limit.
    data_of
        Function from a task to the bytes that it is known to bring and to send back. Asked only
        where data have a price.
    rows
        Ledger rows to start from; empty for a new run.
    """

    def __init__(
        self,
        budget: Micros | None,
        *,
        limit_of: Callable[[int], float | None],
        data_of: Callable[[int], tuple[int, int]] = lambda task: (0, 0),
        on_budget: Mapping[float, BudgetAction] | None = None,
        currency: str = "SU",
        rows: Iterable[Transfer] = (),
    ) -> None:
        self.ledger = Ledger(rows, currency=currency)
        self._transferred = len(self.ledger)
        self._limit_of = limit_of
        self._data_of = data_of
        # Of each admitted task whose data have a price, also after its lease was given back.
        self._carriers: dict[int, LeaseExposure] = {}
        self._holds = LeaseHolds(self.ledger, budget)
        self.charges = LeaseCharges(self._holds)
        self._thresholds = BudgetThresholds(budget, on_budget or {})

    def begin(self, now: float) -> None:
        """Grant the budget, or the change of the budget since the last start of the run."""
        self._holds.fund_budget(now)

    def open(self, lease: Lease, now: float | None = None) -> Refusal | None:
        """
        Open a lease that begins now or at a later start.

        A lease whose processors have just arrived takes the place of its request. Where the money
        of a lease with an agreed end is set aside for tasks without a limit, these get a shorter
        one: they have until the money is used up, and that comes sooner now.

        Parameters
        ----------
        now
            Present moment, seconds since the epoch; None: the lease's start.

        Returns
        -------
        Refusal or None
            Why there is no money even to begin the lease, or to pay it to its agreed end.
        """
        entry = LeaseExposure(lease)
        if lease.is_priced:
            now = lease.start if now is None else now
            # Money first, lease afterwards: a refusal must leave nothing open.
            refusal = self._holds.cover({lease.id: lease.start}, now, entry)
            if refusal is not None and lease.until is not None:
                self._shorten(entry.worst(lease.until), now)
                refusal = self._holds.cover({lease.id: lease.start}, now, entry)
            if refusal is not None:
                return refusal
        self._holds.add(entry)
        return None

    def end_at(self, lease: str, until: float, now: float) -> Lease | Refusal:
        """
        Move the agreed end of a lease, but not before now.

        Returns
        -------
        Lease or Refusal
            The lease as it is now, or why there is no money for the change.
        """
        entry = self._holds.open[lease]
        if entry.lease.until is None:
            return entry.lease
        until = max(until, now)
        changed = replace(entry.lease, until=until)
        if changed.is_priced:
            # The hold moves before the end does, or a lease could run longer than it is paid for.
            most = LeaseExposure(changed).worst(until)
            refusal = self._holds.change(entry, most, now)
            if refusal is not None:
                return refusal
        entry.lease = changed
        return changed

    def find(self, lease: str) -> Lease | None:
        """Return an open lease; None: there is none of this id."""
        entry = self._holds.open.get(lease)
        return None if entry is None else entry.lease

    def credit(self, lease: Lease) -> None:
        """Take over the credit of an open lease, for what other runs pay of its processors."""
        self._holds.open[lease.id].lease = lease

    @property
    def money_left(self) -> float | None:
        """Currency units that are neither spent nor set aside; None without a budget."""
        return None if self._holds.budget is None else from_micros(self.ledger.free)

    def affordable(self, lease: str) -> float:
        """Return by how many seconds the free money could prolong a lease; infinite if free."""
        rate = self._holds.open[lease].lease.rate * MICROS
        if self._holds.budget is None or rate <= 0:
            return math.inf
        return self.ledger.free / rate

    def amend(self, budget: Micros | None, now: float) -> Refusal | None:
        """
        Change the budget while leases are open.

        Returns
        -------
        Refusal or None
            Why not, when more is spent or promised already; nothing is changed then.
        """
        if budget is not None and budget < self.ledger.spent + self.ledger.held:
            promised = format_amount(self.ledger.spent + self.ledger.held, self.ledger.currency)
            return Refusal(f"{promised} are spent or promised already", final=True)
        self._holds.budget = budget
        self._thresholds.amend(budget)
        self.begin(now)
        return None

    @property
    def leases(self) -> tuple[str, ...]:
        """Ids of the open leases, including leases that begin later."""
        return tuple(self._holds.open)

    # What the dispatcher asks.

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        """Return the seconds for which a task may run, or a refusal; see the dispatcher's guard."""
        entry = self._holds.open.get(lease)
        if entry is None:
            return Refusal(f"{lease} has ended", final=False)
        prices = entry.lease.data_prices
        if prices is None:
            return self._admit(task, entry, now)
        entry.carries[task] = prices.charge(*self._data_of(task))
        answer = self._refuse_data(entry, now) or self._admit(task, entry, now)
        if isinstance(answer, Refusal):
            del entry.carries[task]
        else:
            self._carriers[task] = entry
        return answer

    def _refuse_data(self, entry: LeaseExposure, now: float) -> Refusal | None:
        """Set the data of a lease's tasks aside where the lease has an agreed end."""
        if entry.lease.until is None:
            return None  # covered with the time of the task
        refusal = self._holds.change(entry, entry.worst(entry.lease.until), now)
        return refusal and self._too_little(f"{refusal.reason} with its data")

    def _admit(self, task: int, entry: LeaseExposure, now: float) -> float | Refusal:
        """Admit a task by the time that its lease may take."""
        holds, lease = self._holds, entry.lease.id
        limit = self._limit_of(task)
        # An agreed lease was covered to its end when it was opened; no task can make it dearer.
        if holds.budget is None or entry.lease.until is not None or not self._priced():
            holds.claim(task, entry, now)
            return math.inf if limit is None else limit
        if limit is None:
            # A lease that is about to begin costs nothing yet.
            limit = holds.out_of_money(max(now, entry.lease.start)) - LEAD - now
            if limit <= 0:
                return self._too_little("the budget is used up")
        # The task's limit must fit in the money of all leases together: they draw on one budget.
        refusal = holds.cover({lease: now + limit}, now)
        if refusal is not None:
            return self._too_little(refusal.reason)
        holds.claim(task, entry, now + limit)
        return limit

    def encumber(self, task: int, lease: str, until: float) -> None:
        """Hold a lease's money for an admitted task until a moment, seconds since the epoch."""
        self._holds.claim(task, self._holds.open[lease], until)

    def withdraw(self, task: int, now: float) -> None:
        """Cancel the admission of a task that was not started after all."""
        entry = self._holds.claims.pop(task, None)
        if entry is not None:
            del entry.ends[task]
        if (carrier := self._carriers.pop(task, None)) is not None:
            carrier.carries.pop(task, None)

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """
        Drop the claims of ended tasks, and count the data that they carried.

        Processors and data are paid when the lease ends. What the data come to is set aside in the
        transaction with the outcomes, so that a kill neither forgets data nor counts them twice.
        """
        for outcome in outcomes:
            carrier = self._carriers.get(outcome.task)
            self.withdraw(outcome.task, now)
            if carrier is not None:
                self.charges.carry(carrier, outcome.bytes_in, outcome.bytes_out, now)
        return self.transfers()

    def transfers(self) -> Sequence[Transfer]:
        """Return the movements made since the last call."""
        rows = self.ledger.rows_from(self._transferred)
        self._transferred += len(rows)
        return rows

    def least_budget(self, task: int, lease: str, now: float, seconds: float) -> Micros:
        """
        Return the smallest budget with which a task could start now and finish.

        The same worst case as :meth:`admit` and :meth:`tick` ask for: every lease without an
        agreed end is kept until the task's end and :data:`LEAD`, or until the wall limits of
        the tasks on it; every agreed one is paid to its end.
        """
        entry, limit = self._holds.open[lease], self._limit_of(task)
        # Two conditions, and the dearer counts: `tick` must not halt the run before the task's end,
        # and `admit` must find the worst case of every lease.
        stopped, covered = self.ledger.spent, self.ledger.spent
        for other in self._holds.open.values():
            until = other.lease.until
            if until is not None:
                charge = other.worst(until)
                stopped, covered = stopped + charge, covered + charge
                continue
            worst = other.worst_end(now)
            if other is entry:
                worst = max(worst, now + (seconds if limit is None else limit))
            stopped += other.worst(now + seconds + LEAD)
            covered += other.worst(worst)
        return max(stopped, covered)

    # What the clock asks.

    def tick(self, now: float) -> list[BudgetEffect]:
        """
        Keep the holds ahead of the clock.

        Returns
        -------
        list of BudgetEffect
            Warnings, drains and halts that are due now.
        """
        if not self._priced():
            return []
        effects = self._thresholds.due(self.spent(now))
        # LEAD early: killing tasks and closing leases takes time, and that time is paid, too.
        if now >= self._holds.out_of_money(now) - LEAD:
            effects.append(BudgetHalt("the budget is used up: what runs is stopped"))
            return effects
        refusal = self._holds.cover({}, now)
        if refusal is not None:
            effects.append(BudgetHalt(f"{refusal.reason}: what runs is stopped"))
        return effects

    def next_tick(self, now: float) -> float:
        """Time at which :meth:`tick` is due next if nothing happens; infinite for never."""
        if not self._priced():
            return math.inf
        instants = []
        for entry in self._holds.endless.values():
            rate = entry.rate(now)
            if rate:
                held = self._holds.held(entry)
                # AHEAD before the hold is used up, so that a late timer finds money still held.
                instants.append(now + (held - entry.worst(now)) / rate - AHEAD)
        if instants and self._holds.budget is not None:
            instants.append(self._holds.out_of_money(now) - LEAD)
        due = self._thresholds.next_due
        if due is not None:
            total = sum(entry.rate(now) for entry in self._holds.open.values())
            if total:
                instants.append(now + (due - self.spent(now)) / total)
        # Rounding may put the next moment into the past: never a busy loop.
        return max(now + _LEAST, min(instants, default=math.inf))

    def rate(self, now: float) -> float:
        """Currency units per second that the open leases cost."""
        return sum(entry.rate(now) for entry in self._holds.open.values()) / MICROS

    def spent(self, now: float) -> Micros:
        """Return the sum paid, and accrued by leases that are open or not settled."""
        return self._holds.spent(now)

    def spent_at(self, site: str, now: float) -> Micros:
        """Return the sum paid and accrued for the leases of one site."""
        return self._holds.spent_at(site, now)

    # Inside.

    def _shorten(self, amount: Micros, now: float) -> None:
        """Free an amount that is set aside for tasks without a limit, as far as they have more."""
        holds = self._holds
        rate = sum(entry.rate(now) for entry in holds.endless.values())
        if holds.budget is None or rate <= 0:
            return
        moment = max(now, holds.out_of_money(now) - LEAD - amount / rate)
        for entry in holds.endless.values():
            for task, end in entry.ends.items():
                if self._limit_of(task) is None:
                    entry.ends[task] = min(end, moment)
        holds.release_ahead({}, now)

    def _priced(self) -> bool:
        return any(entry.lease.is_priced for entry in self._holds.open.values())

    def _too_little(self, reason: str) -> Refusal:
        # As long as something runs or is unsettled, money may still come back.
        return Refusal(reason, final=not self._holds.claims and not self._holds.unsettled)


def budget_amount(amount: float | None) -> Micros | None:
    """Return a goal's budget as an amount."""
    return None if amount is None else to_micros(amount)
