"""
Ends leases, and pays their sites what the leases came to.

A lease whose provider keeps a record of its own ends in two steps: :meth:`LeaseCharges.end`
when the run gives its processors back, :meth:`LeaseCharges.pay` when the provider has said
from when to when they were held. Its hold stays until then. Any other lease is paid when it is
closed, by the run's own clock.
"""

from msgspec.structs import replace

from bursar.market.lease import Lease, SettledBy
from bursar.market.lease_holds import LeaseExposure, LeaseHolds


class LeaseCharges:
    """
    Settles the leases of one run.

    Parameters
    ----------
    holds
        Leases of the run, and the money set aside for them.
    """

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
        entry = self._holds.unsettled.pop(lease)
        start, end = held if held is not None else (entry.lease.start, entry.lease.start)
        entry.lease = replace(
            entry.lease, start=start, until=None, asked=held is None, settled_by=settled_by
        )
        return self._settle(entry, max(start, end), now)

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
            end = lease.start + lease.processor_seconds_for(paid) / lease.processors
        if paid > 0:
            holds.pay(entry, paid, now)
        if held > paid:
            holds.release(entry, held - paid, now)
        # Without a budget the owner funds holds as needed; what is left at the end goes back, so
        # that the sum granted is the sum spent.
        if not holds.open and not holds.unsettled:
            holds.return_unspent(now)
        return replace(lease, end=max(end, lease.start))
