"""
The budget guard: no work starts unless its worst case is set aside.

Processors are paid for the time they are held, idle or not. So the worst that
everything running can come to is that each lease stays open until its last
task reaches its limit; that much is always held in the ledger. Tasks without a
limit of their own get one: the moment at which the money of all open leases
would run out together.

Decisions only: times and events go in, transfers and effects come out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.market.threshold import Effect, Stop, Thresholds
from bursar.model.admission import Refusal
from bursar.model.goal import BudgetAction
from bursar.model.money import Micros, format_amount, to_micros
from bursar.model.outcome import Outcome
from bursar.model.transfer import Transfer

LEAD = 0.5
"""Seconds before the money runs out at which everything is stopped: to kill, and to close."""

CHUNK = 10.0
"""Seconds that a hold reaches beyond what is needed, so that not every task moves money."""


@dataclass(slots=True)
class _Open:
    """An open lease, and the worst end of each task that runs on it."""

    lease: Lease
    ends: dict[int, float] = field(default_factory=dict)

    def worst_end(self, now: float) -> float:
        return max(now, max(self.ends.values(), default=now))

    def owed(self, moment: float) -> Micros:
        held = max(0.0, moment - self.lease.start)
        return self.lease.charge(self.lease.processors * held)

    @property
    def rate(self) -> float:
        """Micro-units per second."""
        return self.lease.rate * 1_000_000


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
        Wall-time limit of a task, seconds; None where it has none.
    rows
        The ledger of an earlier life.
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
        self._told = len(self.ledger)
        self._budget = budget
        self._limit_of = limit_of
        self._currency = currency
        self._open: dict[str, _Open] = {}
        self._thresholds = Thresholds(budget, on_budget or {})

    def begin(self, now: float) -> None:
        """The owner grants the budget, or what it has become since the last life."""
        if self._budget is None:
            return
        missing = self._budget - self.ledger.funded
        if missing > 0:
            self.ledger.fund(now, missing, "budget")
        elif missing < 0:
            self.ledger.withdraw(now, min(-missing, self.ledger.free), "budget lowered")

    def open(self, lease: Lease) -> Refusal | None:
        """
        A lease begins.

        Returns
        -------
        Refusal or None
            Why there is no money even to begin it.
        """
        entry = _Open(lease)
        if lease.is_priced:
            refusal = self._cover({lease.id: lease.start}, lease.start, entry)
            if refusal is not None:
                return refusal
        self._open[lease.site] = entry
        return None

    def close(self, site: str, now: float) -> Lease:
        """
        A lease ends: its site is paid, what is left of the hold is free again.

        Returns
        -------
        Lease
            With its end, which is the moment up to which it is paid.
        """
        entry = self._open.pop(site)
        return self._settle(entry, now)

    def close_lost(self, lease: Lease, last_seen: float) -> Lease:
        """
        Ends a lease of an earlier life that was killed.

        It is paid up to the last moment that life is known to have been there.
        """
        return self._settle(_Open(lease), max(lease.start, last_seen))

    @property
    def leased(self) -> tuple[str, ...]:
        """Sites with an open lease."""
        return tuple(self._open)

    # What the dispatcher asks.

    def admit(self, task: int, site: str, now: float) -> float | Refusal:
        """Whether a task may start, and how long it may run; see the dispatcher's guard."""
        entry = self._open.get(site)
        if entry is None:
            return Refusal(f"no processors are leased at {site}", final=False)
        limit = self._limit_of(task)
        if self._budget is None or not self._priced():
            seconds = math.inf if limit is None else limit
            entry.ends[task] = now
            return seconds
        if limit is None:
            limit = self.out_of_money(now) - LEAD - now
            if limit <= 0:
                return self._too_little(now, "the budget is used up")
        refusal = self._cover({entry.lease.id: now + limit}, now)
        if refusal is not None:
            return self._too_little(now, refusal.reason)
        entry.ends[task] = now + limit
        return limit

    def withdraw(self, task: int, now: float) -> None:
        """An admitted task was not started after all."""
        for entry in self._open.values():
            entry.ends.pop(task, None)

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """Tasks ended: they encumber nothing more. Processors are paid when the lease ends."""
        for outcome in outcomes:
            for entry in self._open.values():
                entry.ends.pop(outcome.task, None)
        return self.transfers()

    def transfers(self) -> Sequence[Transfer]:
        """Movements made since last asked."""
        rows = self.ledger.rows_from(self._told)
        self._told += len(rows)
        return rows

    # What the clock asks.

    def tick(self, now: float) -> list[Effect]:
        """
        Keeps the holds ahead of the clock.

        Returns
        -------
        list of Effect
            What the budget asks for now.
        """
        if not self._priced():
            return []
        effects = self._thresholds.due(self.spent(now))
        if self._budget is not None and self._open and now >= self.out_of_money(now) - LEAD:
            effects.append(Stop("the budget is used up: what runs is stopped"))
            return effects
        refusal = self._cover({}, now)
        if refusal is not None:
            effects.append(Stop(f"{refusal.reason}: what runs is stopped"))
        return effects

    def spent(self, now: float) -> Micros:
        """Paid, and accrued by the open leases."""
        return self.ledger.spent + sum(entry.owed(now) for entry in self._open.values())

    @property
    def held(self) -> Micros:
        """Set aside."""
        return self.ledger.held

    def out_of_money(self, now: float) -> float:
        """When the open leases, all kept, will have used up the budget."""
        if self._budget is None:
            return math.inf
        rate = sum(entry.rate for entry in self._open.values())
        left = self.ledger.free + self.ledger.held
        left -= sum(entry.owed(now) for entry in self._open.values())
        return math.inf if rate <= 0 else now + left / rate

    # Inside.

    def _priced(self) -> bool:
        return any(entry.lease.is_priced for entry in self._open.values())

    def _too_little(self, now: float, reason: str) -> Refusal:
        running = any(entry.ends for entry in self._open.values())
        return Refusal(reason, final=not running)

    def _cover(
        self, until: dict[str, float], now: float, new: _Open | None = None
    ) -> Refusal | None:
        """
        Sets aside what every open lease can come to, at the worst.

        Parameters
        ----------
        until
            Lease to a moment it may have to last beyond its tasks' ends.
        new
            A lease about to be opened.
        """
        entries = [*self._open.values(), *([new] if new else [])]
        missing: list[tuple[_Open, Micros, Micros]] = []
        for entry in entries:
            lease = entry.lease
            if not lease.is_priced:
                continue
            end = max(entry.worst_end(now), until.get(lease.id, now))
            held = self.ledger.balance(f"held:{lease.id}")
            needed = entry.owed(end) - held
            if needed > 0 or (entry.rate and held < entry.owed(now + 2.0)):
                missing.append((entry, max(needed, 0), entry.owed(end + CHUNK) - held))
        total = sum(needed for _, needed, _ in missing)
        wished = sum(wish for _, _, wish in missing)
        if self._budget is None:
            if wished > self.ledger.free:
                self.ledger.fund(now, wished - self.ledger.free)
        elif total > self.ledger.free:
            short = format_amount(total - self.ledger.free, self._currency)
            return Refusal(f"the budget is {short} short of the worst case", final=False)
        generous = wished <= self.ledger.free
        for entry, needed, wish in missing:
            amount = wish if generous else needed
            if amount > 0:
                self.ledger.hold(now, entry.lease.id, amount)
        return None

    def _settle(self, entry: _Open, end: float) -> Lease:
        lease = entry.lease
        held = self.ledger.balance(f"held:{lease.id}")
        owed = entry.owed(end)
        if owed > held and self._budget is None:
            self.ledger.fund(end, owed - held)
        if owed > held:
            # The clock ran on unseen (the machine slept): first what is free goes in.
            extra = min(owed - held, self.ledger.free)
            if extra > 0:
                self.ledger.hold(end, lease.id, extra)
                held += extra
        paid = min(owed, held)
        if paid < owed and lease.unit_price:
            end = lease.start + lease.processor_seconds_for(paid) / lease.processors
        if paid > 0:
            self.ledger.settle(end, lease.id, lease.site, paid)
        if held > paid:
            self.ledger.release(end, lease.id, held - paid)
        if self._budget is None and not self._open and self.ledger.free > 0:
            self.ledger.withdraw(end, self.ledger.free)
        return msgspec.structs.replace(lease, end=end)


def budget_of(amount: float | None) -> Micros | None:
    """A goal's budget as an amount."""
    return None if amount is None else to_micros(amount)
