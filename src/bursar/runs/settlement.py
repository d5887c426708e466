"""
Settlement of leases that were given back, once their providers report what was used.

Leases of this incarnation and those that a killed one left open are treated alike: the site is
asked from when to when the processors were held, and the ledger pays exactly that. Until then
the worst case stays set aside.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease, SettledBy
from bursar.model.errors import BursarError
from bursar.model.money import Transfer
from bursar.sites.protocol import MeteringSite, NegotiatingSite, Site, TaskSharingSite
from bursar.supervisor import TaskSupervisor

SETTLING = 60.0
"""Seconds for which a run waits, at its begin and at its end, for leases to be settled."""

SOON = 3.0
"""Seconds of such a wait after which the run says what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """
    Terms common to all leases of a run.

    Parameters
    ----------
    run
        Identity of the run, by which worker processes are recognised.
    rigid
        Whether some task may hold several processors.
    inherited
        Leases of an earlier incarnation that go on: open in the guard, with workers that still run.
    """

    run: str
    currency: str
    rigid: bool
    inherited: Collection[str] = ()


class LeaseSettlements:
    """
    Settles leases in the background.

    Parameters
    ----------
    now
        The present time, seconds since the epoch.
    note
        Journals a lease with the movements of money that belong to it.
    notify
        Called with one line for people about each notable event.
    on_settled
        Called when money has become free.
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        guard: BudgetGuard,
        *,
        now: Callable[[], float],
        note: Callable[[str, str, Sequence[Transfer]], None],
        notify: Callable[[str], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._sites = sites
        self._guard = guard
        self._now = now
        self._note = note
        self._notify = notify
        self._on_settled = on_settled
        self._tasks = TaskSupervisor()
        self._settling: dict[str, asyncio.Task[None]] = {}  # by lease
        self._site_of: dict[str, str] = {}

    def keeps_count(self, site: str) -> bool:
        """Whether the provider of a site measures how long processors were held."""
        return isinstance(self._sites.get(site), MeteringSite)

    def unwatched(self, site: str) -> float:
        """Seconds for which a pilot there may go on after the run was killed."""
        there = self._sites.get(site)
        return there.unwatched if isinstance(there, MeteringSite) else 0.0

    def sets_aside(self, site: str) -> bool:
        """Whether the most that an allocation can cost is held before the site is asked for it."""
        # A batch job goes on for a while when the run is killed: its worst case is on disk before
        # it is asked for. While a price is negotiated, other allocations must not take the money.
        there = self._sites[site]
        if isinstance(there, NegotiatingSite) and there.facts.buying.negotiates:
            return True
        return self.unwatched(site) > 0

    def end(self, lease: str) -> None:
        """Note that a lease was given back, and settle the lease when the site reports."""
        now = self._now()
        # Journalled as given back before the site is asked: after a kill the next incarnation asks
        # on.
        given_back = self._guard.charges.end(lease, now)
        self._write(given_back)
        self._begin(given_back, None)

    def restore(self, lease: Lease, watched: float) -> None:
        """
        Take over a lease that a killed incarnation left open.

        Parameters
        ----------
        watched
            Last heartbeat of that incarnation, seconds since the epoch.
        """
        self._guard.charges.restore(lease, self._now())
        self._begin(lease, watched)

    async def settle_killed(
        self, leases: Iterable[Lease], last_seen: float, missed: Mapping[str, float]
    ) -> None:
        """
        Pay leases that a killed incarnation had open, by the provider's count if there is one.

        Parameters
        ----------
        last_seen
            Last heartbeat of that incarnation, seconds since the epoch.
        missed
            End of the paid time of bookings that were missed, by lease.
        """
        for lease in leases:
            if lease.end is not None:
                continue
            if lease.id not in missed and self.keeps_count(lease.site):
                self.restore(lease, last_seen)
            else:
                end = missed.get(lease.id, last_seen)
                ended = with_credit(self._sites, lease, end, self._notify)
                self._write(self._guard.charges.close_lost(*ended))
        await self.wait()  # what they do not come to is free for what is left

    async def wait(self, patience: float = SETTLING) -> tuple[str, ...]:
        """
        Wait for all settlements under way, with a message when that takes long.

        Parameters
        ----------
        patience
            Seconds to wait at most.

        Returns
        -------
        tuple of str
            Leases that are not settled by then.
        """
        if self._settling:
            await asyncio.wait(self._settling.values(), timeout=min(SOON, patience))
        if self._settling and patience > SOON:
            self._notify(
                f"waits up to {patience:g} s until {self._where()} says what "
                f"{_leases(len(self._settling))} came to"
            )
            await asyncio.wait(self._settling.values(), timeout=patience - SOON)
        return tuple(self._settling)

    async def close(self) -> tuple[str, ...]:
        """
        Stop asking the sites.

        Returns
        -------
        tuple of str
            Names of leases that are not settled; their money stays set aside.
        """
        where = self._where()
        await self._tasks.close()
        unsettled = self._guard.charges.unsettled
        if unsettled:
            self._notify(
                f"{where or 'a site'} did not say what {_leases(len(unsettled))} came to "
                f"({', '.join(unsettled)}): the money stays set aside; bursar run --resume settles"
            )
        return unsettled

    def _begin(self, lease: Lease, watched: float | None) -> None:
        self._site_of[lease.id] = lease.site
        task = self._tasks.start(
            self._settle(lease, watched), on_failure=partial(self._on_failure, lease.id)
        )
        self._settling[lease.id] = task
        task.add_done_callback(lambda _: self._settling.pop(lease.id, None))

    def _on_failure(self, lease: str, error: BaseException) -> None:
        self._notify(f"{lease} is not settled: {error}")

    async def _settle(self, lease: Lease, watched: float | None) -> None:
        site = self._sites[lease.site]
        assert isinstance(site, MeteringSite)
        # By the provider's count: pilots hold on for up to a minute after a kill, and for leases
        # that were closed at the last sign of life Slurm recorded up to three times what was
        # billed.
        metering = await site.meter(lease, watched)
        now = self._now()
        settled_by: SettledBy = ""
        held: tuple[float, float] | None
        if metering is None:
            # The provider knows nothing of it: our own count, up to the last sign of life of a run
            # that was killed.
            own = now if watched is None else watched
            end = own if lease.until is None else min(own, lease.until)
            # A request that was never granted came to nothing.
            held = None if lease.asked or end < lease.start else (lease.start, end)
        elif metering.seconds is None:
            held, settled_by = None, "record" if metering.is_recorded else "bound"
        else:
            start = lease.start if metering.began is None else metering.began
            held = (start, start + metering.seconds)
            settled_by = "record" if metering.is_recorded else "bound"
        paid: dict[str, Any] = {}
        if metering is not None:
            paid = {
                "unit_price": metering.unit_price,
                "fixed_price": metering.fixed_price,
                "charged": metering.charged,
            }
        self._write(self._guard.charges.pay(lease.id, held, now, settled_by, **paid))
        # The hold was for the worst case: what is left of it may pay for more work.
        self._on_settled()

    def _where(self) -> str:
        return ", ".join(dict.fromkeys(self._site_of[lease] for lease in self._settling))

    def _write(self, lease: Lease) -> None:
        self._note("lease", msgspec.json.encode(lease).decode(), self._guard.transfers())


def _leases(count: int) -> str:
    return f"{count} lease" + ("s" if count != 1 else "")


def with_credit(
    sites: Mapping[str, Site], lease: Lease, end: float, notify: Callable[[str], None]
) -> tuple[Lease, float]:
    """
    Return a lease that ends with the credit for what other runs paid, and its end.

    The end is a little later than stated where others paid for its processors only from then on.

    Parameters
    ----------
    end
        End of the lease by the run's clock, seconds since the epoch.
    notify
        Called with one line for people if the others cannot be asked: then there is no credit.
    """
    site: object = sites.get(lease.site)
    if not isinstance(site, TaskSharingSite) or not lease.unit_price or end < lease.start:
        return lease, end
    agreed = lease.until
    end = end if agreed is None else min(end, agreed)
    try:
        charge = site.end_lease(lease.id, end - lease.start)
    except BursarError as error:
        notify(f"{lease.id} is paid as if no other run had used its processors: {error}")
        return replace(lease, credit=0), end
    if charge is None:
        return replace(lease, credit=0), end
    end = lease.start + charge.seconds
    whole = lease.charge(lease.processors * (end - lease.start))
    until = None if agreed is None else max(agreed, end)
    return replace(lease, until=until, credit=whole - lease.fixed - charge.amount), end
