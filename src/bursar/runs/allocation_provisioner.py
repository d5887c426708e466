"""The allocations of a run: agreed on, held while there is work for them, given back, and paid."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from bursar.broker.trading import CampaignTrader
from bursar.engine.dispatcher import Dispatcher
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease, lease_of
from bursar.market.purchasing import MarketRecord
from bursar.model.allocation import Allocation
from bursar.model.errors import BudgetStop, BursarError, SiteError
from bursar.model.money import Refusal, Transfer
from bursar.provisioning.allocation_life import LATE, AllocationLife, AllocationObserver
from bursar.runs.run_market import RunMarket
from bursar.runs.settlement import LeaseSettlements, LeaseTerms, with_credit
from bursar.sites.allocation_keeper import AllocationKeeper, loss_of
from bursar.sites.protocol import (
    HeldProcessors,
    LastingSite,
    NegotiatingSite,
    SharedSite,
    Site,
    as_sold,
)
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

GRACE = 1e-3
"""Seconds for which processors stay past the agreed end, for tasks that end at just that time."""

_CLOSE = 1e-9

EXTENSION = 0.125
"""
First extension of a lease whose job takes longer than thought, as a share of the time it was
made for; each further one is twice as long. Extensions hold money, which other jobs that run
over their time may need more.
"""

_NEXT = 0.05
"""Seconds for which processors wait to hear what they run next."""

TransferListener = Callable[[str, str, Sequence[Transfer]], None]
"""Journals an event and the movements of money that belong to it."""


@dataclass(slots=True, eq=False)
class _RunAllocation:
    """
    An allocation of a run, with what only a run knows of it.

    Attributes
    ----------
    begun
        Done when its workers were started, or when that has failed.
    is_awaited
        Whether somebody waits for ``begun``, and gets its error.
    has_room
        Whether no other allocation of the run is late and holds what was booked.
    extension
        Seconds by which it is prolonged next.
    """

    keeper: AllocationKeeper
    begun: asyncio.Future[None]
    is_awaited: bool = False
    has_room: bool = False
    extension: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def allocation(self) -> Allocation:
        return self.keeper.allocation


class AllocationProvisioner:
    """
    Holds the allocations of a run from the agreement until they are given back and paid.

    Parameters
    ----------
    note
        Journals leases.
    notify
        Called with one line for people about each notable event.
    on_fault
        Called with the error of an allocation that failed after the agreement, and the allocation.
    on_left_over
        Called with an allocation that ended before its tasks did.
    route
        Finds the site of an allocation that was requested without one.
    trading
        Agrees on prices with owners that negotiate, allocation by allocation; None: whoever asks
        for an allocation has agreed on the price already.
    """

    def __init__(
        self,
        *,
        sites: Mapping[str, Site],
        guard: BudgetGuard,
        dispatcher: Dispatcher,
        terms: LeaseTerms,
        note: TransferListener,
        notify: Callable[[str], None],
        on_fault: Callable[[BursarError, Allocation], None],
        on_left_over: Callable[[Allocation], None],
        route: Callable[[Allocation], Allocation] | None = None,
        watch: AllocationObserver | None = None,
        settlements: LeaseSettlements,
        trading: CampaignTrader | None = None,
    ) -> None:
        self._watch = watch or AllocationObserver()
        self._settlements = settlements
        self._sites = sites
        self._guard = guard
        self._dispatcher = dispatcher
        self._endpoint = Endpoint(
            address=dispatcher.address,
            token=dispatcher.token,
            run=terms.run,
            admission=dispatcher.pilot_listener,
            entrance=dispatcher,
        )
        self._terms = terms
        self._note = note
        self._notify = notify
        self._on_fault = on_fault
        self._on_left_over = on_left_over
        self._route = route
        self._inherited = set(terms.inherited)
        self._lead: dict[str, float] = {}  # seconds ahead that processors are to be asked for
        self._held: dict[str, _RunAllocation] = {}
        self._crowded = asyncio.Event()
        self._leaving = False
        self._tasks = TaskSupervisor()  # one for each allocation
        self._failures: list[BaseException] = []  # while everything goes back
        self._trading = trading
        self._market: RunMarket | None = None
        if trading is not None:
            trading.start_anew()
            self._market = RunMarket(sites, trading, clock=self.now, on_deal=self._keep_deal)
        for site in sites.values():
            if isinstance(site, NegotiatingSite):
                site.on_deal = self._keep_deal

    async def sign(self, allocations: Sequence[Allocation]) -> None:
        """
        Agree on the allocations of a plan, whose clock begins now, and begin those due now.

        Raises
        ------
        BudgetStop
            When there is no money for them.
        SiteError
            When a site does not keep its offer, or fails.
        """
        by_site: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in allocations:
            by_site[allocation.site].append(allocation)
        for name in sorted(by_site):  # one order for all runs: none waits for another in a circle
            if isinstance(site := self._sites[name], SharedSite):
                await site.take(by_site[name], self._notify)
        now = self._dispatcher.now()
        if self._trading is not None:
            # Prices before leases: what is set aside and paid is the agreed price.
            allocations = self._trading.agree(allocations, now, self._keep_deal)
        for name, site in self._sites.items():
            self._lead[name] = await site.reserve([a for a in allocations if a.site == name])
        allocations = [as_sold(self._sites, allocation) for allocation in allocations]
        try:
            for allocation in allocations:
                # All leases before the first request: a plan whose end cannot be paid is not begun.
                self._open(allocation, now + (allocation.start or 0.0))
        except BudgetStop:
            # Before they began: nothing of them is owed.
            for lease in [one for one in self._guard.leases if one not in self._inherited]:
                self._write(self._guard.charges.close(lease, math.nextafter(now, -math.inf)))
            raise
        due = []
        for allocation in allocations:
            one = self._start(allocation, now)
            if allocation.start is not None and allocation.start <= 0:
                one.is_awaited = True
                due.append(one)
        for one in due:
            # A failure of these is the caller's to see, before any task runs; later ones go to
            # on_fault.
            await one.begun

    def request(self, allocation: Allocation) -> None:
        """Request an allocation, which begins when the site grants the processors."""
        self._start(allocation, self._dispatcher.now())

    def book(self, allocation: Allocation, origin: float) -> None:
        """
        Set aside the money for a booked allocation, and begin the allocation at the agreed start.

        Parameters
        ----------
        origin
            Time from which the allocation's start is counted, seconds since the epoch.

        Raises
        ------
        BudgetStop
            When there is no money for it.
        """
        start = origin + (allocation.start or 0.0)
        self._open(allocation, start)
        self._start(allocation, origin, keeps_start=self._dispatcher.now() > start + LATE)

    @property
    def booked(self) -> tuple[str, ...]:
        """Allocations that were booked and have not begun."""
        return tuple(
            a.name for a in self.allocations() if a.booked and a.granted is None and not a.leaving
        )

    def give_up(self, name: str) -> None:
        """Give an allocation back, begun or not; do nothing when it has ended already."""
        if name in self._held:
            self._held[name].keeper.finish()

    def find(self, name: str) -> Allocation | None:
        """Return an allocation that is asked for or held, as it is now; None: there is none."""
        one = self._held.get(name)
        return None if one is None else one.allocation

    def prolong(self, wanted: Allocation) -> Refusal | None:
        """
        Move the end of a present allocation to the wanted duration from now.

        Returns
        -------
        Refusal or None
            Why the budget does not allow that; None when the end was moved.
        """
        one = self._held[wanted.name]
        # A new duration, a new estimate: extensions begin small again.
        one.extension = EXTENSION * wanted.duration
        return self._end_at(one, self._dispatcher.now() + wanted.duration)

    def finished(self, name: str | None = None) -> None:
        """Note that tasks have ended; give back what has no tasks left, one allocation or all."""
        for key in list(self._held) if name is None else [name]:
            one = self._held.get(key)
            # Allocations without tasks of their own serve whatever comes, and stay until the end
            # of the run.
            if one is not None and one.allocation.tasks and not self._dispatcher.figures.left(key):
                one.keeper.finish()

    async def give_back(self) -> bool:
        """
        Give back idle allocations and those that have not begun.

        Returns
        -------
        bool
            Whether all were given back, as none was busy.
        """
        busy = self._dispatcher.figures.busy_leases()
        # Idle ones at once, even while others are busy: each second is paid.
        await self._end([one for name, one in self._held.items() if name not in busy])
        if busy:
            return False
        for site in self._sites.values():
            await site.reserve(())
        return True

    async def end(self) -> None:
        """
        Give everything back, what is reserved included; nothing is left over.

        A fault of ours with an allocation is raised here; before, it was passed to ``on_fault``.
        """
        # From now on the end of an allocation asks for no replacement.
        self._leaving = True
        try:
            await self._end(list(self._held.values()))
        finally:
            await self._tasks.close()
        if self._failures:
            raise self._failures[0]
        for site in self._sites.values():
            try:
                await site.reserve(())
            except SiteError as error:
                self._notify(str(error))

    def allocations(self) -> list[Allocation]:
        """Return all allocations that are asked for or held, as they are now."""
        return [one.allocation for one in self._held.values()]

    def by_site(self) -> dict[str, tuple[int, int]]:
        """Return the processors held at each site, and those of its queue that wait."""
        held, asked = dict.fromkeys(self._sites, 0), dict.fromkeys(self._sites, 0)
        for one in self._held.values():
            a = one.allocation
            if one.keeper.held is not None:
                held[a.site] += a.processors
            elif a.start is None and a.site:
                asked[a.site] += a.processors
        return {site: (held[site], asked[site]) for site in self._sites}

    @property
    def is_dead(self) -> bool:
        """
        Whether the run holds processors, all of these without workers, and waits for no others.

        Processors that are being given back do not count: their workers were told to leave.
        """
        return bool(self._held) and all(
            one.keeper.held is not None
            and not one.keeper.held.workers
            and not (one.allocation.leaving or one.allocation.is_over)
            for one in self._held.values()
        )

    # As the holder of allocations; see AllocationHolder.

    def now(self) -> float:
        """Return the present time, seconds since the epoch."""
        return self._dispatcher.now()

    def present(self, keeper: AllocationKeeper) -> int:
        """Return 0: what a run gives back ends at once, whatever runs there."""
        return 0

    async def acquire(self, keeper: AllocationKeeper) -> HeldProcessors:
        """Ask the site for processors, once there is room and money for them."""
        one = self._held[keeper.name]
        if one.allocation.booked:
            await self._room(one)
        if self._route is not None and not one.allocation.site:
            keeper.life.allocation = self._route(one.allocation)
        if self._market is not None and one.allocation.start is None:
            await self._agree(one)
        allocation = as_sold(self._sites, one.allocation, self._guard.money_left)
        keeper.life.allocation = allocation
        site = self._sites[allocation.site]
        if self._settlements.sets_aside(allocation.site):
            await self._set_aside(allocation)
        # Only what is held without an end can be taken over: an agreed one may pass meanwhile.
        if not (isinstance(site, LastingSite) and site.is_lasting and math.isinf(allocation.until)):
            self._dispatcher.attach(allocation.name)
        wanted = allocation.seen_from(self._dispatcher.now())
        return await site.acquire(
            replace(wanted, start=None) if wanted.booked else wanted,
            self._endpoint,
            rigid=self._terms.rigid,
            begin=partial(self._on_granted, one),
            on_event=self._notify,
        )

    async def _agree(self, one: _RunAllocation) -> None:
        """Agree on a price, perhaps at another site than the one that was asked for first."""
        assert self._market is not None
        made, error = await self._market.agree(one.allocation, self.allocations(), self._set_aside)
        if made.site != one.allocation.site:
            self._watch.moved(made)
        one.keeper.life.allocation = made
        if error is None:
            return
        if made.name in self._guard.leases and not self._settlements.sets_aside(made.site):
            self._pay(made.name, self._dispatcher.now())  # of a request: nothing is owed
        raise error

    async def begun(self, keeper: AllocationKeeper) -> None:
        """Tell those who wait that workers were started."""
        one = self._held[keeper.name]
        if not one.begun.done():
            one.begun.set_result(None)
        one.extension = EXTENSION * one.allocation.duration
        if one.allocation.works:
            self._watch.began(one.allocation)

    async def expired(self, keeper: AllocationKeeper) -> None:
        """Prolong an allocation if work is left and the budget allows, or stop its tasks."""
        if not await self._goes_on(self._held[keeper.name]):
            await self._dispatcher.vacate(keeper.name, "its processors' time is over")
            keeper.life.expire(self._dispatcher.now())

    def dismiss(self, keeper: AllocationKeeper) -> None:
        """Keep tasks from the workers of an allocation that is about to go."""
        if keeper.held is not None:
            self._dispatcher.dismiss(keeper.name)

    # One allocation.

    def _start(
        self, allocation: Allocation, origin: float, *, keeps_start: bool = False
    ) -> _RunAllocation:
        """Begin the life of an allocation whose start is counted from a moment."""
        due = -math.inf
        now = self._dispatcher.now()
        if allocation.start is not None:
            start = origin + allocation.start
            due = max(origin, start - self._lead.get(allocation.site, 0.0))
            allocation = replace(allocation, start=start)
        life = AllocationLife(
            replace(allocation, asked=now), due=due, grace=GRACE, keeps_start=keeps_start
        )
        begun = asyncio.get_running_loop().create_future()
        one = self._held[allocation.name] = _RunAllocation(AllocationKeeper(life, self), begun)
        one.task = self._tasks.start(self._run(one), on_failure=partial(self._on_failure, one))
        return one

    def _on_failure(self, one: _RunAllocation, error: BaseException) -> None:
        """Pass on a fault of ours, or of a site's adapter, which is no :class:`BursarError`."""
        if self._leaving:
            self._failures.append(error)
            return
        problem = f"{one.allocation.site}: {type(error).__name__}: {error}"
        self._on_fault(BursarError(problem), one.allocation)

    async def _run(self, one: _RunAllocation) -> None:
        name = one.allocation.name
        failed = False
        try:
            try:
                await one.keeper.run()
            finally:
                await one.keeper.release()
        except BursarError as error:
            if one.is_awaited and not one.begun.done():
                one.begun.set_exception(error)
            else:
                failed = True
                self._watch.ended(one.allocation, loss_of(error), str(error))
                self._on_fault(error, one.allocation)
        finally:
            if not one.begun.done():
                one.begun.set_result(None)
            del self._held[name]
            # A booked allocation may be waiting in _room for these processors.
            self._crowded.set()
            self._settle(one.keeper.life)
        if failed:
            return
        a = one.allocation
        self._watch.ended(a, a.loss or "ended", a.reason)
        if a.lost is not None:
            self._notify(f"{a.site}: {a.reason}")
        if not self._leaving and a.tasks and self._dispatcher.figures.left(name):
            self._on_left_over(a)

    async def _room(self, one: _RunAllocation) -> None:
        """Wait while other allocations of this run are late and hold booked processors."""
        site = one.allocation.site
        most = self._sites[site].facts.processors
        while True:
            others = [o for o in self._held.values() if o is not one]
            busy = [o.allocation for o in others if o.allocation.granted is not None or o.has_room]
            held = sum(a.processors for a in busy if a.site == site)
            if held + one.allocation.processors <= most:
                one.has_room = True
                return
            self._crowded.clear()
            await self._crowded.wait()

    async def _goes_on(self, one: _RunAllocation) -> bool:
        """Extend an allocation if work is left and money is there; return whether that was done."""
        name, now = one.allocation.name, self._dispatcher.now()
        if not one.allocation.extensible:
            return False
        if not self._dispatcher.figures.left(name):
            # The outcomes of its tasks are about to be reported; it may get other tasks.
            await one.keeper.pause(now + _NEXT)
            return True
        if self._end_at(one, now + one.extension) is None:
            # Doubled, so that a job of unknown length needs few extensions, and little money is
            # held for a short one.
            one.extension *= 2
            return True
        # Not as long, but as far as the money goes.
        # A hair less than can be paid: rounding up must not turn it into a refusal.
        seconds = self._guard.affordable(name) * (1 - _CLOSE) if name in self._guard.leases else 0.0
        return seconds > _NEXT and self._end_at(one, now + seconds) is None

    def _end_at(
        self, one: _RunAllocation, until: float, duration: float | None = None
    ) -> Refusal | None:
        """Move the end of an allocation and of its lease; return the refusal, or None."""
        name = one.allocation.name
        if name in self._guard.leases:
            # The money first: the end moves only as far as the lease is paid for.
            lease = self._guard.end_at(name, until, self._dispatcher.now())
            if isinstance(lease, Refusal):
                return lease
            self._write(lease)
        one.keeper.life.prolong(until, duration)
        self._keep_off(one.allocation)
        one.keeper.wake()
        return None

    def _keep_off(self, allocation: Allocation) -> None:
        """Keep tasks away that the end of an allocation would cut off."""
        if allocation.works and not allocation.extensible:
            until = None if math.isinf(allocation.until) else allocation.until
            speed = self._sites[allocation.site].facts.speed
            self._dispatcher.ends(allocation.name, until, speed)

    def _on_granted(
        self, one: _RunAllocation, processors: int | None = None, seconds: float | None = None
    ) -> None:
        """Note that a site has granted the processors, and begin to pay for the lease."""
        now, asked = self._dispatcher.now(), one.allocation.duration
        if not one.keeper.life.grant(now, processors, seconds):
            return  # granted before, or over: there is a lease for it, or will be none
        a = one.allocation
        self._keep_off(a)  # before a worker is there
        if a.start is None:
            self._open(a, now)
        elif a.paid_from != a.start and a.name not in self._inherited:
            # Nothing is paid for the time that the site let it wait.
            self._write(self._guard.charges.close(a.name, math.nextafter(a.start, -math.inf)))
            self._open(a, now)
        if seconds is not None and seconds > asked and not a.whole:
            # More time than was asked for, if there is money for it; else it ends as agreed.
            self._end_at(one, now + seconds, seconds)

    async def _end(self, ending: Sequence[_RunAllocation]) -> None:
        for one in ending:
            one.keeper.finish()
        if tasks := [one.task for one in ending if one.task is not None]:
            await asyncio.wait(tasks)

    # Its lease.

    def give_back_unused(self) -> None:
        """End inherited leases that no allocation has taken over."""
        for name in self._inherited & set(self._guard.leases):
            if name not in self._held:
                self._dispatcher.dismiss(name)
                self._pay(name, self._dispatcher.now())

    def _open(self, allocation: Allocation, start: float, *, asked: bool = False) -> None:
        if allocation.name in self._inherited and allocation.name in self._guard.leases:
            return  # paid from its first begin on
        lease = lease_of(
            allocation,
            start,
            currency=self._terms.currency,
            until=start + allocation.duration,
            asked=asked,
            unwatched=self._settlements.unwatched(allocation.site),
            data_prices=self._sites[allocation.site].facts.data_prices,
        )
        if (refusal := self._guard.open(lease, self._dispatcher.now())) is not None:
            raise BudgetStop(f"{allocation.site}: {refusal.reason}")
        self._write(lease)

    async def _set_aside(self, allocation: Allocation) -> None:
        """
        Set aside the money that an allocation may cost if the run is killed, before the request.

        The lease is on disk before the site gets the request, so that a later incarnation finds
        and pays whatever became of it.
        """
        lease = self._guard.find(allocation.name)
        if lease is None or lease.site != allocation.site:
            self._open(allocation, self._dispatcher.now(), asked=True)
        await self._dispatcher.store.written()

    def _settle(self, life: AllocationLife) -> None:
        """Pay an allocation that is over, or leave that to the provider's count."""
        now = self._dispatcher.now()
        if self._trading is not None:
            self._trading.released(life.allocation.name)
        life.withdraw(now)  # if the run ends before the site was asked
        a = life.allocation
        if a.name in self._guard.leases:
            until = life.payable(is_metered=self._settlements.keeps_count(a.site))
            if until is None:
                self._settlements.end(a.name)
            else:
                self._pay(a.name, until)
        life.settle(now)

    def _pay(self, name: str, until: float) -> None:
        """Pay an open lease up to a moment, less what other runs have had of its processors."""
        if (lease := self._guard.find(name)) is not None:
            lease, until = with_credit(self._sites, lease, until, self._notify)
            self._guard.credit(lease)
        self._write(self._guard.charges.close(name, until))

    def _keep_deal(self, record: MarketRecord) -> None:
        """Journal a negotiation, whatever came of it, or what is wrong with a bill."""
        self._note(record.kind, msgspec.json.encode(record).decode(), ())

    def _write(self, lease: Lease) -> None:
        self._note("lease", msgspec.json.encode(lease).decode(), self._guard.transfers())
