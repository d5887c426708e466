"""
The budget guard: no work starts unless its worst case is set aside.

Processors are paid for the time they are held, idle or not. So the worst that
everything running can come to is that each lease stays open until its last
task reaches its limit, or to the end that was agreed; that much is always held in
the ledger, also for a lease that begins later. Where the provider may hold processors
for a while after the run was killed, that while is held besides, from the request on.
Tasks without a limit of their own get one: the moment at which the money of all open
leases would run out together.

A lease whose provider keeps a record of its own ends in two steps: :meth:`BudgetGuard.end`
when the run gives its processors back, :meth:`BudgetGuard.pay` when the provider has said
from when to when they were held. Its hold stays until then.

Decisions only: times and events go in, transfers and effects come out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.market.budget_thresholds import BudgetEffect, BudgetHalt, BudgetThresholds
from bursar.market.lease import Lease, SettledBy
from bursar.market.ledger import Ledger, paid_to
from bursar.model.campaign import BudgetAction
from bursar.model.money import MICROS, Micros, Refusal, Transfer, format_amount, to_micros
from bursar.model.task import Outcome

LEAD = 0.5
"""Seconds before the money runs out at which everything is stopped: to kill, and to close."""

CHUNK = 10.0
"""Seconds that a hold reaches beyond what is needed, so that not every task moves money."""

_LEAST = 0.2
"""Shortest time between two checks, seconds."""

SHARE = 0.01
"""Share of a lease's age by which a hold reaches beyond what is needed, where that is more."""

AHEAD = 2.0
"""Seconds that every hold is kept ahead of the clock."""


@dataclass(slots=True)
class _GuardedLease:
    """Pairs an open lease with the worst end of each task that runs on the lease."""

    lease: Lease
    ends: dict[int, float] = field(default_factory=dict)

    def worst_end(self, now: float) -> float:
        until = self.lease.until
        if until is not None:
            return until
        return max(now, max(self.ends.values(), default=now))

    def owed(self, moment: float) -> Micros:
        lease = self.lease
        if lease.asked or moment < lease.start:
            return 0
        if lease.until is not None:
            moment = min(moment, lease.until)
        return lease.charge(lease.processors * (moment - lease.start))

    def worst(self, moment: float) -> Micros:
        """Return the lease's greatest possible cost if unwatched from a moment on."""
        lease = self.lease
        if lease.until is not None:
            moment = min(moment, lease.until)
        seconds = 0.0 if lease.asked else max(0.0, moment - lease.start)
        return lease.charge(lease.processors * (seconds + lease.unwatched))

    def rate(self, now: float) -> float:
        """Micro-units per second, at a moment."""
        lease = self.lease
        on = lease.start <= now and (lease.until is None or now < lease.until)
        on = on and not lease.asked
        return lease.rate * MICROS if on else 0.0

    def beyond(self, moment: float) -> float:
        """Seconds by which a hold may reach beyond a moment."""
        return max(CHUNK, SHARE * (moment - self.lease.start))


class BudgetGuard:
    """
    Holds, admits and settles for the leases of one run.

    Parameters
    ----------
    budget
        Micro-units; None for no limit: then the owner grants what is needed.
    on_budget
        Share of the budget to action.
    limit_of
        Function from a task to its wall-time limit, seconds; None for no limit.
    rows
        Ledger rows to start from; empty for a new run.
    """

    def __init__(
        self,
        budget: Micros | None,
        *,
        limit_of: Callable[[int], float | None],
        on_budget: "dict[float, BudgetAction] | None" = None,
        currency: str = "SU",
        rows: Iterable[Transfer] = (),
    ) -> None:
        self.ledger = Ledger(rows)
        self._transferred = len(self.ledger)
        self._budget = budget
        self._limit_of = limit_of
        self._currency = currency
        self._open: dict[str, _GuardedLease] = {}
        self._endless: dict[str, _GuardedLease] = {}  # the open leases without an agreed end
        self._unsettled: dict[
            str, _GuardedLease
        ] = {}  # given back; their providers have not said yet
        self._where: dict[int, _GuardedLease] = {}  # of each admitted task
        self._thresholds = BudgetThresholds(budget, on_budget or {})

    def begin(self, now: float) -> None:
        """Grant the budget, or the change of the budget since the last start of the run."""
        if self._budget is None:
            return
        # A resumed run may come with another budget: only the difference moves.
        missing = self._budget - self.ledger.funded
        if missing > 0:
            self.ledger.fund(now, missing, "budget")
        elif missing < 0:
            # What is held or spent cannot be taken back; the rest of the lowering shows at the next
            # check.
            self.ledger.withdraw(now, min(-missing, self.ledger.free), "budget lowered")

    def open(self, lease: Lease, now: float | None = None) -> Refusal | None:
        """
        Open a lease that begins now or at a later start.

        A lease whose processors have just arrived takes the place of its request.

        Parameters
        ----------
        now
            Present moment, seconds since the epoch; None: the lease's start.

        Returns
        -------
        Refusal or None
            Why there is no money even to begin the lease, or to pay it to its agreed end.
        """
        entry = _GuardedLease(lease)
        if lease.is_priced:
            now = lease.start if now is None else now
            # Money first, lease afterwards: a refusal must leave nothing open.
            refusal = self._cover({lease.id: lease.start}, now, entry)
            if refusal is not None:
                return refusal
        self._open[lease.id] = entry
        if lease.until is None and not lease.asked:
            self._endless[lease.id] = entry
        return None

    def end_at(self, lease: str, until: float, now: float) -> Lease | Refusal:
        """
        Move the agreed end of a lease, but not before now.

        Returns
        -------
        Lease or Refusal
            The lease as it is now, or why there is no money for the change.
        """
        entry = self._open[lease]
        if entry.lease.until is None:
            return entry.lease
        until = max(until, now)
        changed = msgspec.structs.replace(entry.lease, until=until)
        if changed.is_priced:
            # The hold moves before the end does, or a lease could run longer than it is paid for.
            needed = _GuardedLease(changed).worst(until) - self.ledger.balance(f"held:{lease}")
            if self._budget is None and needed > self.ledger.free:
                self.ledger.fund(now, needed - self.ledger.free)
            if needed > self.ledger.free:
                short = format_amount(needed - self.ledger.free, self._currency)
                return Refusal(f"the budget is {short} short of a longer lease", final=False)
            if needed > 0:
                self.ledger.hold(now, lease, needed)
            elif needed < 0:
                self.ledger.release(now, lease, -needed)
        entry.lease = changed
        return changed

    def affordable(self, lease: str) -> float:
        """Return by how many seconds the free money could prolong a lease; infinite if free."""
        rate = self._open[lease].lease.rate * MICROS
        if self._budget is None or rate <= 0:
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
            promised = format_amount(self.ledger.spent + self.ledger.held, self._currency)
            return Refusal(f"{promised} are spent or promised already", final=True)
        self._budget = budget
        self._thresholds.amend(budget)
        self.begin(now)
        return None

    def close(self, lease: str, now: float) -> Lease:
        """
        End a lease, pay the site, and free the rest of the hold.

        Parameters
        ----------
        now
            Moment to which the lease is paid; nothing is owed before its start.

        Returns
        -------
        Lease
            The lease with its end, the moment up to which it is paid.
        """
        entry = self._open.pop(lease)
        self._endless.pop(lease, None)
        for task in entry.ends:
            del self._where[task]
        return self._settle(entry, now)

    def close_lost(self, lease: Lease, last_seen: float) -> Lease:
        """
        End a killed process's lease whose provider keeps no record of the time held.

        The lease is paid up to the last moment at which that process is known to have run.
        """
        return self._settle(_GuardedLease(lease), last_seen)

    def end(self, lease: str, now: float) -> Lease:
        """
        Return a lease's processors; the provider reports later how long they were held.

        The most that the lease may still cost stays held; the rest is free again.

        Returns
        -------
        Lease
            The lease without an end, which :meth:`pay` finds; ``until`` is no later than now.
        """
        entry = self._open.pop(lease)
        self._endless.pop(lease, None)
        for task in entry.ends:
            del self._where[task]
        was = entry.lease.until
        if not entry.lease.asked:
            until = now if was is None else min(was, now)
            entry.lease = msgspec.structs.replace(entry.lease, until=max(until, entry.lease.start))
        self._await_settlement(entry, now)
        # Freed at once: the next lease of a tight budget waits for nothing but this money.
        surplus = self.ledger.balance(f"held:{lease}") - entry.worst(now)
        if surplus > 0:
            self.ledger.release(now, lease, surplus)
        return entry.lease

    def restore(self, lease: Lease, now: float) -> None:
        """Keep the most that an unsettled lease of an earlier process may cost on hold."""
        self._await_settlement(_GuardedLease(lease), now)

    def pay(
        self,
        lease: str,
        held: tuple[float, float] | None,
        now: float,
        settled_by: SettledBy = "record",
    ) -> Lease:
        """
        Settle a returned lease by the time that the provider reports.

        Parameters
        ----------
        lease
            Id of a lease passed to :meth:`end` or :meth:`restore`.
        held
            Begin and end of the time held, seconds since the epoch; None: never held, and
            nothing is owed.
        now
            Moment of the movements of money.
        settled_by
            Source of ``held``: the provider's record, or a bound where there is none.

        Returns
        -------
        Lease
            The lease with its end, the moment up to which it is paid; ``asked`` where its
            processors never arrived.
        """
        entry = self._unsettled.pop(lease)
        start, end = held if held is not None else (entry.lease.start, entry.lease.start)
        entry.lease = msgspec.structs.replace(
            entry.lease, start=start, until=None, asked=held is None, settled_by=settled_by
        )
        return self._settle(entry, max(start, end), now)

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Ids of returned leases whose providers have not reported the time held yet."""
        return tuple(self._unsettled)

    @property
    def leases(self) -> tuple[str, ...]:
        """Ids of the open leases, including leases that begin later."""
        return tuple(self._open)

    # What the dispatcher asks.

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        """Return the seconds for which a task may run, or a refusal; see the dispatcher's guard."""
        entry = self._open.get(lease)
        if entry is None:
            return Refusal(f"{lease} has ended", final=False)
        limit = self._limit_of(task)
        # An agreed lease was covered to its end when it was opened; no task can make it dearer.
        if self._budget is None or not self._priced() or entry.lease.until is not None:
            self._note(task, entry, now)
            return math.inf if limit is None else limit
        if limit is None:
            # A lease that is about to begin costs nothing yet.
            limit = self.out_of_money(max(now, entry.lease.start)) - LEAD - now
            if limit <= 0:
                return self._too_little(now, "the budget is used up")
        # The task's limit must fit in the money of all leases together: they draw on one budget.
        refusal = self._cover({entry.lease.id: now + limit}, now)
        if refusal is not None:
            return self._too_little(now, refusal.reason)
        self._note(task, entry, now + limit)
        return limit

    def encumber(self, task: int, lease: str, until: float) -> None:
        """Hold a lease's money for an admitted task until a moment, seconds since the epoch."""
        self._note(task, self._open[lease], until)

    def withdraw(self, task: int, now: float) -> None:
        """Cancel the admission of a task that was not started after all."""
        entry = self._where.pop(task, None)
        if entry is not None:
            del entry.ends[task]

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """Drop the claims of ended tasks; processors are paid when the lease ends."""
        for outcome in outcomes:
            self.withdraw(outcome.task, now)
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

        Parameters
        ----------
        seconds
            Runtime of the task.
        """
        entry, limit = self._open[lease], self._limit_of(task)
        # Two conditions, and the dearer counts: `tick` must not halt the run before the task's end,
        # and `admit` must find the worst case of every lease.
        stopped, covered = self.ledger.spent, self.ledger.spent
        for other in self._open.values():
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
        if self._budget is not None and self._open and now >= self.out_of_money(now) - LEAD:
            effects.append(BudgetHalt("the budget is used up: what runs is stopped"))
            return effects
        refusal = self._cover({}, now)
        if refusal is not None:
            effects.append(BudgetHalt(f"{refusal.reason}: what runs is stopped"))
        return effects

    def next_tick(self, now: float) -> float:
        """Time at which :meth:`tick` is due next if nothing happens; infinite for never."""
        if not self._priced():
            return math.inf
        instants = []
        for entry in self._endless.values():
            rate = entry.rate(now)
            if rate:
                held = self.ledger.balance(f"held:{entry.lease.id}")
                # AHEAD before the hold is used up, so that a late timer finds money still held.
                instants.append(now + (held - entry.worst(now)) / rate - AHEAD)
        if instants and self._budget is not None:
            instants.append(self.out_of_money(now) - LEAD)
        due = self._thresholds.next_due
        if due is not None:
            total = sum(entry.rate(now) for entry in self._open.values())
            if total:
                instants.append(now + (due - self.spent(now)) / total)
        # Rounding may put the next moment into the past: never a busy loop.
        return max(now + _LEAST, min(instants, default=math.inf))

    def rate(self, now: float) -> float:
        """Currency units per second that the open leases cost."""
        return sum(entry.rate(now) for entry in self._open.values()) / MICROS

    def spent(self, now: float) -> Micros:
        """Return the sum paid, and accrued by leases that are open or not settled."""
        return self.ledger.spent + sum(entry.owed(now) for entry in self._accruing())

    def spent_at(self, site: str, now: float) -> Micros:
        """Return the sum paid and accrued for the leases of one site."""
        owed = sum(e.owed(now) for e in self._accruing() if e.lease.site == site)
        return self.ledger.balance(paid_to(site)) + owed

    @property
    def held(self) -> Micros:
        """Return the sum of all holds."""
        return self.ledger.held

    def out_of_money(self, now: float) -> float:
        """Return when the leases without an agreed end will have used up the budget."""
        if self._budget is None:
            return math.inf
        rate = 0.0
        left = self.ledger.free
        for entry in self._endless.values():
            rate += entry.rate(now)
            # Holds count as money left: all of them may be spent before the budget is used up.
            left += self.ledger.balance(f"held:{entry.lease.id}") - entry.worst(now)
        return math.inf if rate <= 0 else now + left / rate

    # Inside.

    def _note(self, task: int, entry: _GuardedLease, end: float) -> None:
        entry.ends[task] = end
        self._where[task] = entry

    def _priced(self) -> bool:
        return any(entry.lease.is_priced for entry in self._open.values())

    def _too_little(self, now: float, reason: str) -> Refusal:
        # As long as something runs or is unsettled, money may still come back.
        return Refusal(reason, final=not self._where and not self._unsettled)

    def _accruing(self) -> Iterator[_GuardedLease]:
        yield from self._open.values()
        yield from self._unsettled.values()

    def _await_settlement(self, entry: _GuardedLease, now: float) -> None:
        """Hold the most that a lease may cost, as far as the money allows."""
        lease = entry.lease
        self._unsettled[lease.id] = entry
        missing = entry.worst(now) - self.ledger.balance(f"held:{lease.id}")
        if self._budget is None and missing > self.ledger.free:
            self.ledger.fund(now, missing - self.ledger.free)
        missing = min(missing, self.ledger.free)
        if missing > 0:
            self.ledger.hold(now, lease.id, missing)

    def _cover(
        self, until: dict[str, float], now: float, new: _GuardedLease | None = None
    ) -> Refusal | None:
        """
        Set aside the most that every open lease can cost; hold nothing new if the budget is short.

        A lease with an agreed end was covered to that end when it was opened.

        Parameters
        ----------
        until
            Moments, by lease id, to which leases must be covered even if their tasks end before.
        new
            Lease about to be opened, which is covered too; None: none.
        """
        entries = [*self._endless.values(), *([new] if new else [])]
        missing: list[tuple[_GuardedLease, Micros, Micros]] = []
        for entry in entries:
            lease = entry.lease
            if not lease.is_priced:
                continue
            end = max(entry.worst_end(now), until.get(lease.id, now))
            # Begins after all that is looked at: nothing is owed for it yet.
            if end < lease.start:
                continue
            held = self.ledger.balance(f"held:{lease.id}")
            needed = entry.worst(end) - held
            # A hold is topped up only near its end: a movement of money per task would swell the
            # journal.
            if needed > 0 or (entry.rate(now) and held < entry.worst(now + AHEAD)):
                with_reserve = entry.worst(end + entry.beyond(end)) - held
                missing.append((entry, max(needed, 0), with_reserve))
        total = sum(needed for _, needed, _ in missing)
        wanted = sum(with_reserve for _, _, with_reserve in missing)
        if self._budget is None:
            if wanted > self.ledger.free:
                self.ledger.fund(now, wanted - self.ledger.free)
        elif total > self.ledger.free:
            # What was held ahead for convenience must not keep others from their worst case.
            self._release_ahead(until, now)
        if self._budget is not None and total > self.ledger.free:
            short = format_amount(total - self.ledger.free, self._currency)
            return Refusal(f"the budget is {short} short of the worst case", final=False)
        # The reserve ahead is a convenience, given to all leases or to none of them.
        generous = wanted <= self.ledger.free
        for entry, needed, with_reserve in missing:
            amount = with_reserve if generous else needed
            if amount > 0:
                self.ledger.hold(now, entry.lease.id, amount)
        return None

    def _release_ahead(self, until: dict[str, float], now: float) -> None:
        """Release the part of each hold that exceeds the worst case of an endless lease."""
        for entry in self._endless.values():
            lease = entry.lease
            end = max(entry.worst_end(now), until.get(lease.id, now))
            beyond = self.ledger.balance(f"held:{lease.id}") - entry.worst(end)
            if beyond > 0:
                self.ledger.release(now, lease.id, beyond)

    def _settle(self, entry: _GuardedLease, end: float, now: float | None = None) -> Lease:
        lease = entry.lease
        moved = end if now is None else now
        held = self.ledger.balance(f"held:{lease.id}")
        owed = entry.owed(end)
        if owed > held and self._budget is None:
            self.ledger.fund(moved, owed - held)
        if owed > held:
            # The clock ran on unseen (the machine slept): first what is free goes in.
            extra = min(owed - held, self.ledger.free)
            if extra > 0:
                self.ledger.hold(moved, lease.id, extra)
                held += extra
        paid = min(owed, held)
        # The money ends before the lease: the lease ends on paper when it was used up, so that the
        # bill never exceeds what was paid.
        if paid < owed and lease.unit_price:
            end = lease.start + lease.processor_seconds_for(paid) / lease.processors
        if paid > 0:
            self.ledger.settle(moved, lease.id, lease.site, paid)
        if held > paid:
            self.ledger.release(moved, lease.id, held - paid)
        # Without a budget the owner funds holds as needed; what is left at the end goes back, so
        # that the sum granted is the sum spent.
        is_last = not self._open and not self._unsettled
        if self._budget is None and is_last and self.ledger.free > 0:
            self.ledger.withdraw(moved, self.ledger.free)
        return msgspec.structs.replace(lease, end=max(end, lease.start))


def budget_amount(amount: float | None) -> Micros | None:
    """Return a goal's budget as an amount."""
    return None if amount is None else to_micros(amount)
