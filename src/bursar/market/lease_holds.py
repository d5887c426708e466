"""
Money set aside for the worst case of open leases, and what leases came to at their end.

Processors are paid for the time they are held, idle or not. So the worst that
everything running can come to is that each lease stays open until its last
task reaches its limit, or to the end that was agreed; that much is always held in
the ledger, also for a lease that begins later. Where the provider may hold processors
for a while after the run was killed, that while is held besides, from the request on.

A lease whose provider keeps a record of its own ends in two steps: :meth:`LeaseCharges.end`
when the run gives its processors back, :meth:`LeaseCharges.pay` when the provider has said
from when to when they were held. Its hold stays until then. Any other lease is paid when it is
closed, by the run's own clock.
"""

import math
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from bursar.market.account_records import held_for, paid_to
from bursar.market.lease import Lease, SettledBy
from bursar.market.ledger import Ledger
from bursar.model.errors import BursarError
from bursar.model.money import MICROS, Micros, Refusal, Transfer, format_amount

# Keeps money set aside for the worst case of every open lease.

AHEAD = 2.0
"""Seconds that every hold is kept ahead of the clock."""

CHUNK = 10.0
"""Seconds that a hold reaches beyond what is needed, so that not every task moves money."""

SHARE = 0.01
"""Share of a lease's age by which a hold reaches beyond what is needed, where that is more."""


class LeaseExposure(msgspec.Struct, eq=False):
    """
    Says what a lease costs, and may cost at most.

    Parameters
    ----------
    ends
        Moments, by task, at which tasks on the lease end at the latest, seconds since the epoch.
    carries
        Price, by task, of the data that tasks on the lease are known to bring and send back,
        micro-units; tasks without a known price are left out.
    """

    lease: Lease
    ends: dict[int, float] = msgspec.field(default_factory=dict)
    carries: dict[int, Micros] = msgspec.field(default_factory=dict)
    account: str = ""

    def __post_init__(self) -> None:
        self.account = held_for(self.lease.id)

    def worst_end(self, now: float) -> float:
        """Return the latest end of the lease: the agreed one, or that of the last task."""
        until = self.lease.until
        if until is not None:
            return until
        return max(now, max(self.ends.values(), default=now))

    def owed(self, moment: float) -> Micros:
        """Return the charge up to a moment; 0 before the lease begins."""
        return self.lease.owed(moment)

    def worst(self, moment: float) -> Micros:
        """Return the lease's greatest possible cost if unwatched from a moment on."""
        lease = self.lease
        if lease.until is not None:
            moment = min(moment, lease.until)
        seconds = 0.0 if lease.asked else max(0.0, moment - lease.start)
        worst = lease.rectangle(seconds + lease.unwatched)
        return worst + sum(self.carries.values()) if self.carries else worst

    def rate(self, now: float) -> float:
        """Return the micro-units that the lease costs per second at a moment."""
        lease = self.lease
        if lease.asked or now < lease.start or not (lease.until is None or now < lease.until):
            return 0.0
        return lease.rate * MICROS

    def reserve(self, moment: float) -> float:
        """Return the seconds by which a hold may reach beyond a moment."""
        return max(CHUNK, SHARE * (moment - self.lease.start))


class LeaseHolds:
    """
    Moves money between a run's budget and the holds of its leases.

    Parameters
    ----------
    budget
        Micro-units; None for no limit: then the owner grants what is needed.

    Attributes
    ----------
    open
        Open leases by id, including leases that begin later.
    endless
        Those of the open leases that have no agreed end and are not only asked for.
    unsettled
        Leases that were given back and of which the providers have not reported the time.
    claims
        Lease of each admitted task.
    """

    def __init__(self, ledger: Ledger, budget: Micros | None) -> None:
        self.ledger = ledger
        self.budget = budget
        self.open: dict[str, LeaseExposure] = {}
        self.endless: dict[str, LeaseExposure] = {}
        self.unsettled: dict[str, LeaseExposure] = {}
        self.claims: dict[int, LeaseExposure] = {}

    def fund_budget(self, now: float) -> None:
        """Grant the budget, or the difference to what was granted before; nothing without one."""
        if self.budget is None:
            return
        # A resumed run may come with another budget: only the difference moves.
        missing = self.budget - self.ledger.funded
        if missing > 0:
            self.fund(now, missing, "budget")
        # What is held or spent cannot be taken back; the rest of the lowering shows at the next
        # check.
        elif missing < 0 and self.ledger.free:
            back = min(-missing, self.ledger.free)
            _moved(self.ledger.withdraw(now, "", "", back, memo="budget lowered"))

    def add(self, entry: LeaseExposure) -> None:
        """Enter an open lease."""
        lease = entry.lease
        self.open[lease.id] = entry
        if lease.until is None and not lease.asked:
            self.endless[lease.id] = entry

    def remove(self, lease: str) -> LeaseExposure:
        """Take out a lease that is open no more, with the claims of its tasks."""
        entry = self.open.pop(lease)
        self.endless.pop(lease, None)
        for task in entry.ends:
            del self.claims[task]
        return entry

    def claim(self, task: int, entry: LeaseExposure, end: float) -> None:
        """Note that a task runs on a lease until a moment at the latest."""
        entry.ends[task] = end
        self.claims[task] = entry

    def accruing(self) -> Iterator[LeaseExposure]:
        """Return the leases that cost something and are not paid yet."""
        yield from self.open.values()
        yield from self.unsettled.values()

    # Sums.

    def held(self, entry: LeaseExposure) -> Micros:
        """Return what is set aside for a lease."""
        return self.ledger.balance(entry.account)

    def spent(self, now: float) -> Micros:
        """Return the sum paid, and accrued by leases that are open or not settled."""
        spent = self.ledger.spent + sum(entry.owed(now) for entry in self.accruing())
        # The clock may run on unseen: a settlement takes no more than there is.
        return spent if self.budget is None else min(spent, self.ledger.funded)

    def spent_at(self, site: str, now: float) -> Micros:
        """Return the sum paid and accrued for the leases of one site."""
        owed = sum(e.owed(now) for e in self.accruing() if e.lease.site == site)
        return self.ledger.balance(paid_to(site)) + owed

    def out_of_money(self, now: float) -> float:
        """Return when the leases without an agreed end will have used up the budget."""
        if self.budget is None:
            return math.inf
        rate = 0.0
        left = self.ledger.free
        for entry in self.endless.values():
            rate += entry.rate(now)
            # Holds count as money left: all of them may be spent before the budget is used up.
            left += self.held(entry) - entry.worst(now)
        return math.inf if rate <= 0 else now + left / rate

    # Movements.

    def fund(self, now: float, amount: Micros, memo: str = "") -> None:
        """Have the owner grant an amount."""
        _moved(self.ledger.grant(now, "", "", amount, memo=memo))

    def return_unspent(self, now: float) -> None:
        """Without a budget, give what is free back to the owner."""
        if self.budget is None and self.ledger.free > 0:
            _moved(self.ledger.withdraw(now, "", "", self.ledger.free))

    def hold(self, entry: LeaseExposure, amount: Micros, now: float) -> None:
        """Set more aside for a lease; the caller knows that it is free."""
        _moved(self.ledger.hold(now, "", "", entry.lease.id, amount))

    def release(self, entry: LeaseExposure, amount: Micros, now: float) -> None:
        """Free part of what is set aside for a lease."""
        _moved(self.ledger.release(now, "", entry.lease.id, amount))

    def pay(self, entry: LeaseExposure, amount: Micros, now: float, memo: str = "") -> None:
        """Pay the lease's site out of what is set aside for the lease."""
        lease = entry.lease
        _moved(self.ledger.settle(now, "", lease.id, lease.site, amount, memo=memo))

    def fund_missing(self, amount: Micros, now: float) -> None:
        """Without a budget, have the owner grant what an amount exceeds the free money by."""
        if self.budget is None and amount > self.ledger.free:
            self.fund(now, amount - self.ledger.free)

    def change(self, entry: LeaseExposure, amount: Micros, now: float) -> Refusal | None:
        """Set exactly an amount aside for a lease; refuse when the free money is too little."""
        needed = amount - self.held(entry)
        self.fund_missing(needed, now)
        if needed > self.ledger.free:
            short = format_amount(needed - self.ledger.free, self.ledger.currency)
            return Refusal(f"the budget is {short} short of a longer lease", final=False)
        if needed > 0:
            self.hold(entry, needed, now)
        elif needed < 0:
            self.release(entry, -needed, now)
        return None

    def cover(
        self, until: dict[str, float], now: float, new: LeaseExposure | None = None
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
        entries = [*self.endless.values(), *([new] if new else [])]
        missing: list[tuple[LeaseExposure, Micros, Micros]] = []
        for entry in entries:
            lease = entry.lease
            if not lease.is_priced:
                continue
            end = max(entry.worst_end(now), until.get(lease.id, now))
            # Begins after all that is looked at: nothing is owed for it yet.
            if end < lease.start:
                continue
            held = self.held(entry)
            needed = entry.worst(end) - held
            # A hold is topped up only near its end: a movement of money per task would swell the
            # journal.
            if needed > 0 or (entry.rate(now) and held < entry.worst(now + AHEAD)):
                with_reserve = entry.worst(end + entry.reserve(end)) - held
                missing.append((entry, max(needed, 0), with_reserve))
        if not missing:
            return None
        total = sum(needed for _, needed, _ in missing)
        wanted = sum(with_reserve for _, _, with_reserve in missing)
        self.fund_missing(wanted, now)
        if self.budget is not None and total > self.ledger.free:
            # What was held ahead for convenience must not keep others from their worst case.
            self.release_ahead(until, now)
        if self.budget is not None and total > self.ledger.free:
            short = format_amount(total - self.ledger.free, self.ledger.currency)
            return Refusal(f"the budget is {short} short of the worst case", final=False)
        # The reserve ahead is a convenience, given to all leases or to none of them.
        generous = wanted <= self.ledger.free
        for entry, needed, with_reserve in missing:
            amount = with_reserve if generous else needed
            if amount > 0:
                self.hold(entry, amount, now)
        return None

    def release_ahead(self, until: dict[str, float], now: float) -> None:
        """Release the part of each hold that exceeds the worst case of an endless lease."""
        for entry in self.endless.values():
            end = max(entry.worst_end(now), until.get(entry.lease.id, now))
            surplus = self.held(entry) - entry.worst(end)
            if surplus > 0:
                self.release(entry, surplus, now)


def _moved(answer: Transfer | Refusal) -> None:
    # Every caller has looked at the balances before: only an amount that no ledger can hold is left
    # to be refused, and work that nobody set money aside for must not go on.
    if isinstance(answer, Refusal):
        raise BursarError(answer.reason)


# Ends leases, and pays their sites what the leases came to.


class LeaseCharges:
    """Settles the leases of one run."""

    def __init__(self, holds: LeaseHolds) -> None:
        self._holds = holds

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Ids of returned leases whose providers have not reported the time held yet."""
        return tuple(self._holds.unsettled)

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
        return self._settle(self._holds.remove(lease), now, now)

    def close_lost(self, lease: Lease, last_seen: float) -> Lease:
        """
        End a killed process's lease whose provider keeps no record of the time held.

        The lease is paid up to the last moment at which that process is known to have run.
        """
        return self._settle(LeaseExposure(lease), last_seen, last_seen)

    def end(self, lease: str, now: float) -> Lease:
        """
        Return a lease's processors; the provider reports later how long they were held.

        The most that the lease may still cost stays held; the rest is free again.

        Returns
        -------
        Lease
            The lease without an end, which :meth:`pay` finds; ``until`` is no later than now.
        """
        entry = self._holds.remove(lease)
        agreed = entry.lease.until
        if not entry.lease.asked:
            until = now if agreed is None else min(agreed, now)
            entry.lease = replace(entry.lease, until=max(until, entry.lease.start))
        self._await_report(entry, now)
        # Freed at once: the next lease of a tight budget waits for nothing but this money.
        surplus = self._holds.held(entry) - entry.worst(now)
        if surplus > 0:
            self._holds.release(entry, surplus, now)
        return entry.lease

    def restore(self, lease: Lease, now: float) -> None:
        """Keep the most that an unsettled lease of an earlier process may cost on hold."""
        self._await_report(LeaseExposure(lease), now)

    def pay(
        self,
        lease: str,
        held: tuple[float, float] | None,
        now: float,
        settled_by: SettledBy = "record",
        unit_price: float | None = None,
        *,
        fixed_price: float | None = None,
        charged: Micros | None = None,
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
        unit_price, fixed_price
            Prices by the provider's record, currency units per processor-second and for the whole
            lease; None: those of the lease.
        charged
            What the provider charged in all, micro-units; None: what time and prices come to. Only
            for a lease whose price is known.

        Returns
        -------
        Lease
            The lease with its end, the moment up to which it is paid; ``asked`` where its
            processors never arrived.
        """
        entry = self._holds.unsettled.pop(lease)
        start, end = held if held is not None else (entry.lease.start, entry.lease.start)
        before = entry.lease
        entry.lease = replace(
            entry.lease,
            start=start,
            until=None,
            asked=held is None,
            settled_by=settled_by,
            unit_price=before.unit_price if unit_price is None else unit_price,
            fixed_price=before.fixed_price if fixed_price is None else fixed_price,
            charged=charged if held is not None and before.is_priced else None,
        )
        return self._settle(entry, max(start, end), now)

    def carry(self, entry: LeaseExposure, bytes_in: int, bytes_out: int, now: float) -> None:
        """Count what an attempt brought and sent back, and set its price aside at once."""
        lease = entry.lease
        entry.lease = replace(
            lease, bytes_in=lease.bytes_in + bytes_in, bytes_out=lease.bytes_out + bytes_out
        )
        # A lease that is paid already has nothing set aside, and takes nothing any more.
        if lease.id in self._holds.open or lease.id in self._holds.unsettled:
            self._hold_up_to(entry, entry.worst(entry.worst_end(now)), now)

    def _await_report(self, entry: LeaseExposure, now: float) -> None:
        """Hold the most that a lease may cost, as far as the money allows."""
        holds = self._holds
        holds.unsettled[entry.lease.id] = entry
        self._hold_up_to(entry, entry.worst(now), now)

    def _hold_up_to(self, entry: LeaseExposure, amount: int, now: float) -> None:
        """Raise a lease's hold to an amount, or by all that is free if that is less."""
        holds = self._holds
        missing = amount - holds.held(entry)
        holds.fund_missing(missing, now)
        missing = min(missing, holds.ledger.free)
        if missing > 0:
            holds.hold(entry, missing, now)

    def _settle(self, entry: LeaseExposure, end: float, now: float) -> Lease:
        """Pay a lease up to its end by movements made now, and release what is left of its hold."""
        holds, lease = self._holds, entry.lease
        owed = entry.owed(end)
        held = holds.held(entry)
        if owed > held:
            # The clock ran on unseen (the machine slept): what is free goes in first.
            self._hold_up_to(entry, owed, now)
            held = holds.held(entry)
        paid = min(owed, held)
        # The money ends before the lease: the lease ends on paper when it was used up, so that the
        # bill never exceeds what was paid.
        if paid < owed and lease.unit_price:
            seconds = lease.processor_seconds_for(paid - lease.data + lease.credit)
            end = lease.start + seconds / lease.processors
        # Movements of their own, so that the ledger says what time and what data came to.
        for_data = min(lease.data, paid)
        if paid > for_data:
            holds.pay(entry, paid - for_data, now)
        if for_data > 0:
            holds.pay(entry, for_data, now, lease.carried)
        if held > paid:
            holds.release(entry, held - paid, now)
        # Without a budget the owner funds holds as needed; what is left at the end goes back, so
        # that the sum granted is the sum spent.
        if not holds.open and not holds.unsettled:
            holds.return_unspent(now)
        return replace(lease, end=max(end, lease.start))
