"""The processors of a run: agreed on, held while there is work for them, given back."""

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from bursar.dispatch.journal_records import RunEvent
from bursar.engine.dispatcher import Dispatcher
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease, lease_of
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import BudgetStop, BursarError, SiteError
from bursar.model.money import Refusal, Transfer
from bursar.runs.pilot_lifecycle import LeaseTerms, PilotLifecycle, PilotObserver
from bursar.runs.settlement import LeaseSettlements
from bursar.sites.protocol import HeldProcessors, SharedSite, Site
from bursar.supervisor import TaskSupervisor, heard_by_waiter
from bursar.worker.launch import Endpoint

GRACE = 1e-3
"""Seconds for which a pilot stays past the agreed end, for tasks that end at just that time."""

_CLOSE = 1e-9
_LATE = 0.05
"""Seconds by which processors may come late and still count as on time."""

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


class PilotProvisioner:
    """
    Manages pilots from the agreement until their processors are given back and paid.

    Parameters
    ----------
    sites
        Sites of the run by name.
    guard
        Guard of the run's budget.
    dispatcher
        Dispatcher to which the pilots' workers connect.
    terms
        Terms common to all leases.
    note
        Journals leases.
    notify
        Called with one line for people about each notable event.
    on_fault
        Called with the error of a pilot that failed after the agreement, and the pilot.
    on_left_over
        Called with a pilot that ended before its tasks did.
    route
        Finds the site of a pilot that was requested without one.
    watch
        Observer of all pilots' begins and ends.
    settlements
        Settles leases whose providers count what they held.
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
        watch: PilotObserver | None = None,
        settlements: LeaseSettlements,
    ) -> None:
        self._watch = watch or PilotObserver()
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
        self._lead: dict[str, float] = {}  # seconds ahead that pilots are to be acquired
        self._lifecycles: dict[str, PilotLifecycle] = {}
        self._crowded = asyncio.Event()
        self._leaving = False
        self._tasks = TaskSupervisor()  # one for each pilot
        self._failures: list[BaseException] = []  # while everything goes back

    async def sign(self, pilots: Sequence[Allocation]) -> None:
        """
        Agree on the pilots of a plan, whose clock begins now, and begin the pilots due now.

        Raises
        ------
        BudgetStop
            When there is no money for them.
        SiteError
            When a site does not keep its offer, or fails.
        """
        by_site: dict[str, list[Allocation]] = defaultdict(list)
        for pilot in pilots:
            by_site[pilot.site].append(pilot)
        for name in sorted(by_site):  # one order for all runs: none waits for another in a circle
            site = self._sites[name]
            if isinstance(site, SharedSite):
                await site.take(by_site[name], self._notify)
        now = self._dispatcher.now()
        for name, site in self._sites.items():
            self._lead[name] = await site.reserve(by_site[name])
        try:
            for pilot in pilots:
                # All leases before the first pilot: a plan whose end cannot be paid is not begun.
                self._open(pilot, now + (pilot.start or 0.0))
        except BudgetStop:
            for lease in self._guard.leases:  # before it began: nothing of it is owed
                self._write(self._guard.charges.close(lease, math.nextafter(now, -math.inf)))
            raise
        due = []
        for pilot in pilots:
            lifecycle = self._start_lifecycle(pilot, now)
            if pilot.start is not None and pilot.start <= 0:
                lifecycle.awaited = True
                due.append(lifecycle)
        for lifecycle in due:
            # A failure of these is the caller's to see, before any task runs; later ones go to
            # on_fault.
            await lifecycle.begun

    def request(self, pilot: Allocation) -> None:
        """Request a pilot, which begins when the site grants the processors."""
        self._start_lifecycle(pilot, self._dispatcher.now())

    def book(self, pilot: Allocation, origin: float) -> None:
        """
        Set aside the money for a booked pilot, and begin the pilot at the agreed start.

        Parameters
        ----------
        origin
            Time from which the pilot's start is counted, seconds since the epoch.

        Raises
        ------
        BudgetStop
            When there is no money for it.
        """
        start = origin + (pilot.start or 0.0)
        self._open(pilot, start)
        lifecycle = self._start_lifecycle(pilot, origin)
        lifecycle.is_late = self._dispatcher.now() > start + _LATE

    @property
    def booked(self) -> tuple[str, ...]:
        """Pilots that were booked and have not begun."""
        return tuple(
            name
            for name, lifecycle in self._lifecycles.items()
            if lifecycle.pilot.booked and not lifecycle.since and not lifecycle.over.is_set()
        )

    def give_up(self, name: str) -> None:
        """Give a pilot back, begun or not; do nothing when the pilot has ended already."""
        lifecycle = self._lifecycles.get(name)
        if lifecycle is not None:
            lifecycle.finish()

    def has_pilot(self, name: str) -> bool:
        """Whether a pilot has begun or was requested, and is not being given back."""
        return name in self._lifecycles and not self._lifecycles[name].over.is_set()

    def is_leaving(self, name: str) -> bool:
        """Whether a pilot is being given back."""
        return name in self._lifecycles and self._lifecycles[name].over.is_set()

    def prolong(self, pilot: Allocation) -> Refusal | None:
        """
        Move the end of a present pilot to the given duration from now.

        Returns
        -------
        Refusal or None
            Why the budget does not allow that; None when the end was moved.
        """
        lifecycle = self._lifecycles[pilot.name]
        # A new duration, a new estimate: extensions begin small again.
        lifecycle.more = EXTENSION * pilot.duration
        return self._end_at(lifecycle, self._dispatcher.now() + pilot.duration)

    def finished(self, lease: str | None = None) -> None:
        """Note that tasks have ended; give back the pilot, or every pilot, without tasks left."""
        names = list(self._lifecycles) if lease is None else [lease]
        for name in names:
            lifecycle = self._lifecycles.get(name)
            # Pilots without tasks of their own serve whatever comes, and stay until the end of the
            # run.
            if (
                lifecycle is not None
                and lifecycle.pilot.tasks
                and not self._dispatcher.figures.left(name)
            ):
                lifecycle.finish()

    async def give_back(self) -> bool:
        """
        Give back idle pilots and pilots that have not begun.

        Returns
        -------
        bool
            Whether all pilots were given back, as none was busy.
        """
        busy = self._dispatcher.figures.busy_leases()
        # Idle ones at once, even while others are busy: each second is paid.
        await self._end([c for c in self._lifecycles.values() if c.pilot.name not in busy])
        if busy:
            return False
        for site in self._sites.values():
            await site.reserve(())
        return True

    async def end(self) -> None:
        """
        Give everything back, what is reserved included; nothing is left over.

        A fault of ours with a pilot is raised here; before, it was passed to ``on_fault``.
        """
        # From now on the end of a pilot asks for no replacement.
        self._leaving = True
        try:
            await self._end(list(self._lifecycles.values()))
        finally:
            await self._tasks.close()
        if self._failures:
            raise self._failures[0]
        for site in self._sites.values():
            try:
                await site.reserve(())
            except SiteError as error:
                self._notify(str(error))

    def processors(self) -> dict[str, int]:
        """Return the processors held at each site."""
        held: dict[str, int] = dict.fromkeys(self._sites, 0)
        for lifecycle in self._lifecycles.values():
            if lifecycle.held is not None:
                held[lifecycle.pilot.site] += lifecycle.pilot.processors
        return held

    def asked(self) -> dict[str, int]:
        """Return the processors that each site was asked for and has not granted yet."""
        asked: dict[str, int] = {}
        for lifecycle in self._lifecycles.values():
            if lifecycle.held is None and lifecycle.pilot.start is None and lifecycle.pilot.site:
                site = lifecycle.pilot.site
                asked[site] = asked.get(site, 0) + lifecycle.pilot.processors
        return asked

    @property
    def is_dead(self) -> bool:
        """
        Whether the run holds processors, all of these without workers, and waits for no others.

        Processors that are being given back do not count: their workers were told to leave.
        """
        return bool(self._lifecycles) and all(
            c.held is not None and not c.held.workers and not c.over.is_set()
            for c in self._lifecycles.values()
        )

    # One pilot.

    def _start_lifecycle(self, pilot: Allocation, origin: float) -> PilotLifecycle:
        lifecycle = PilotLifecycle(pilot, asyncio.get_running_loop().create_future())
        self._lifecycles[pilot.name] = lifecycle
        lifecycle.task = self._tasks.start(
            self._run_lifecycle(lifecycle, origin), on_failure=partial(self._on_failure, lifecycle)
        )
        return lifecycle

    def _on_failure(self, lifecycle: PilotLifecycle, error: BaseException) -> None:
        """Pass on a fault of ours, or of a site's adapter, which is no :class:`BursarError`."""
        if self._leaving:
            self._failures.append(error)
            return
        pilot = lifecycle.pilot
        self._on_fault(BursarError(f"{pilot.site}: {type(error).__name__}: {error}"), pilot)

    async def _run_lifecycle(self, lifecycle: PilotLifecycle, origin: float) -> None:
        pilot = lifecycle.pilot
        failed = False
        try:
            if pilot.start is not None:
                lead = self._lead.get(pilot.site, 0.0)
                await self._over_by(lifecycle, max(origin, origin + pilot.start - lead))
                if pilot.booked:
                    await self._room(lifecycle)
            if not lifecycle.over.is_set():
                await self._hold(lifecycle, origin)
        except BursarError as error:
            if lifecycle.awaited and not lifecycle.begun.done():
                lifecycle.begun.set_exception(error)
            else:
                failed = True
                self._watch.pilot_ended(lifecycle.pilot, _loss(error), str(error))
                self._on_fault(error, pilot)
        finally:
            if not lifecycle.begun.done():
                lifecycle.begun.set_result(None)
            del self._lifecycles[pilot.name]
            # A booked pilot may be waiting in _room for these processors.
            self._crowded.set()
            self._close(lifecycle, origin)
        if failed:
            return
        self._watch.pilot_ended(lifecycle.pilot, *(lifecycle.lost or ("ended", "")))
        if lifecycle.lost is not None and lifecycle.lost[0] == "lost":
            self._notify(f"{lifecycle.pilot.site}: {lifecycle.lost[1]}")
        if not self._leaving and pilot.tasks and self._dispatcher.figures.left(pilot.name):
            self._on_left_over(pilot)

    async def _room(self, lifecycle: PilotLifecycle) -> None:
        """Wait while other pilots of this run are late and hold booked processors."""
        pilot = lifecycle.pilot
        most = self._sites[pilot.site].facts.processors
        while not lifecycle.over.is_set():
            others = [c for c in self._lifecycles.values() if c is not lifecycle]
            busy = [c for c in others if c.since or c.has_room]
            held = sum(c.pilot.processors for c in busy if c.pilot.site == pilot.site)
            if held + pilot.processors <= most:
                lifecycle.has_room = True
                return
            self._crowded.clear()
            async with TaskSupervisor() as tasks:
                gone = tasks.start(self._crowded.wait())
                over = tasks.start(lifecycle.over.wait())
                await asyncio.wait({gone, over}, return_when=asyncio.FIRST_COMPLETED)

    async def _hold(self, lifecycle: PilotLifecycle, origin: float) -> None:
        """Acquire the processors of a pilot, and release these when time or work is over."""
        pilot = lifecycle.pilot
        if pilot.works:
            due = origin + (pilot.start or 0.0)
            asking = self._tasks.start(self._ask(lifecycle, due), on_failure=heard_by_waiter)
            over = self._tasks.start(lifecycle.over.wait())
            try:
                await asyncio.wait({asking, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                asking.cancel()
            if not asking.done():  # processors may come although the request was cancelled
                await asyncio.wait({asking})
            if asking.cancelled():
                return
            lifecycle.held = asking.result()
        if not lifecycle.begun.done():
            lifecycle.begun.set_result(None)
        try:
            await self._keep(
                lifecycle, lifecycle.since if pilot.start is None else origin + pilot.start
            )
        finally:
            if lifecycle.held is not None:
                # Workers first, so that no task is given to processors that are about to go.
                self._dispatcher.dismiss(pilot.name)
                await lifecycle.held.release()

    async def _keep(self, lifecycle: PilotLifecycle, since: float) -> None:
        """Keep the processors of a pilot until time or work is over, or the site fails."""
        pilot = lifecycle.pilot
        lost: asyncio.Task[tuple[AllocationLoss, str]] | None = None
        try:
            if lifecycle.held is not None:
                if lifecycle.since > since + _LATE and not lifecycle.is_late:
                    # The site was late, so that the full duration counts from when it gave the
                    # processors.
                    since = lifecycle.since
                lost = self._tasks.start(lifecycle.held.lost(), on_failure=heard_by_waiter)
                # Ends the wait below, which looks at the pilot's end only.
                lost.add_done_callback(lambda _: lifecycle.finish())
                self._watch.began(lifecycle.pilot, since)
            lifecycle.more = EXTENSION * lifecycle.pilot.duration
            self._ends_at(lifecycle, since + lifecycle.pilot.duration)
            while not lifecycle.over.is_set():
                await self._over_by(lifecycle, lifecycle.until + GRACE)
                # The end may have moved while it was waited for.
                if lifecycle.over.is_set() or self._dispatcher.now() < lifecycle.until:
                    continue
                if not await self._goes_on(lifecycle):
                    await self._dispatcher.vacate(pilot.name, "its processors' time is over")
                    break
            if lost is not None and lost.done():
                lifecycle.lost = lost.result()
        finally:
            if lost is not None:  # not waited for: what is released now is not to come later
                lost.cancel()

    async def _goes_on(self, lifecycle: PilotLifecycle) -> bool:
        """Extend a pilot if work is left and the budget allows; return whether this was done."""
        name, now = lifecycle.pilot.name, self._dispatcher.now()
        if not lifecycle.pilot.extensible:
            return False
        if not self._dispatcher.figures.left(name):
            # The outcomes of its tasks are about to be reported; it may get other tasks.
            await self._over_by(lifecycle, now + _NEXT)
            return True
        if self._end_at(lifecycle, now + lifecycle.more) is None:
            # Doubled, so that a job of unknown length needs few extensions, and little money is
            # held for a short one.
            lifecycle.more *= 2
            return True
        # Not as long, but as far as the money goes.
        # A hair less than can be paid: rounding up must not turn it into a refusal.
        seconds = self._guard.affordable(name) * (1 - _CLOSE) if name in self._guard.leases else 0.0
        return seconds > _NEXT and self._end_at(lifecycle, now + seconds) is None

    def _end_at(self, lifecycle: PilotLifecycle, until: float) -> Refusal | None:
        """Move the end of a pilot and of the lease; return the refusal, or None."""
        if lifecycle.pilot.name in self._guard.leases:
            # The money first: the pilot's end moves only as far as the lease is paid for.
            lease = self._guard.end_at(lifecycle.pilot.name, until, self._dispatcher.now())
            if isinstance(lease, Refusal):
                return lease
            self._write(lease)
        self._ends_at(lifecycle, until)
        lifecycle.changed.set()
        return None

    def _ends_at(self, lifecycle: PilotLifecycle, until: float) -> None:
        """Set the end of a pilot, and keep tasks away that would be cut off."""
        lifecycle.until = until
        pilot = lifecycle.pilot
        if pilot.works and not pilot.extensible:
            speed = self._sites[pilot.site].facts.speed
            self._dispatcher.ends(pilot.name, None if math.isinf(until) else until, speed)

    async def _ask(self, lifecycle: PilotLifecycle, due: float) -> HeldProcessors:
        if self._route is not None and not lifecycle.pilot.site:
            lifecycle.pilot = self._route(lifecycle.pilot)
        pilot = lifecycle.pilot
        lifecycle.is_asked = True
        # A batch job goes on for a while when the run is killed: its worst case is on disk before
        # it is asked for.
        if self._settlements.unwatched(pilot.site):
            await self._set_aside(pilot)
        return await self._sites[pilot.site].acquire(
            replace(pilot, start=None) if pilot.booked else pilot,
            self._endpoint,
            rigid=self._terms.rigid,
            begin=lambda processors=None, seconds=None: self._begin(
                lifecycle, processors, seconds, due
            ),
            on_event=self._notify,
        )

    def _begin(
        self, lifecycle: PilotLifecycle, processors: int | None, seconds: float | None, due: float
    ) -> None:
        """Note that a site has granted the processors, and begin to pay for the lease."""
        lifecycle.since = now = self._dispatcher.now()
        pilot = lifecycle.pilot
        if processors is not None and processors != pilot.processors:
            # What the site gave is what is paid, not what was asked for.
            lifecycle.pilot = pilot = replace(pilot, processors=processors, unpaid=0)
        if seconds is not None and seconds < pilot.duration:
            lifecycle.pilot = pilot = replace(pilot, duration=seconds)
        self._ends_at(lifecycle, now + pilot.duration)  # before a worker is there
        if pilot.start is None:
            self._open(pilot, now)
        elif now > due + _LATE and not lifecycle.is_late:
            # Nothing is paid for the time that the site let it wait.
            self._write(self._guard.charges.close(pilot.name, math.nextafter(due, -math.inf)))
            self._open(pilot, now)
        if seconds is None or seconds <= pilot.duration or pilot.whole:
            return
        # More time than was asked for, if there is money for it; else the pilot ends as agreed.
        if self._end_at(lifecycle, now + seconds) is None:
            lifecycle.pilot = replace(pilot, duration=seconds)

    async def _over_by(self, lifecycle: PilotLifecycle, moment: float) -> None:
        """Wait until a time, or until the pilot's end is changed or the pilot is given up."""
        if not lifecycle.over.is_set():
            # Never after the end: finish() sets it once, and nobody would set it again.
            lifecycle.changed.clear()
        if math.isinf(moment):
            await lifecycle.changed.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(moment - self._dispatcher.now()):
                await lifecycle.changed.wait()

    async def _end(self, lifecycle: Sequence[PilotLifecycle]) -> None:
        for one in lifecycle:
            one.finish()
        tasks = [one.task for one in lifecycle if one.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # Its lease.

    def _open(self, pilot: Allocation, start: float, *, asked: bool = False) -> None:
        lease = lease_of(
            pilot,
            start,
            currency=self._terms.currency,
            until=start + pilot.duration,
            asked=asked,
            unwatched=self._settlements.unwatched(pilot.site),
        )
        refusal = self._guard.open(lease, self._dispatcher.now())
        if refusal is not None:
            raise BudgetStop(f"{pilot.site}: {refusal.reason}")
        self._write(lease)

    async def _set_aside(self, pilot: Allocation) -> None:
        """
        Set aside the money that a pilot may cost if the run is killed, before the request.

        The lease is on disk before the site gets the request, so that a later incarnation finds
        and pays whatever became of it.
        """
        if pilot.name not in self._guard.leases:
            self._open(pilot, self._dispatcher.now(), asked=True)
        await self._dispatcher.store.written()

    def _close(self, lifecycle: PilotLifecycle, origin: float) -> None:
        pilot = lifecycle.pilot
        if pilot.name not in self._guard.leases:
            return
        if pilot.whole:
            # Bought as a whole: paid to the end, used or not.
            self._write(self._guard.charges.close(pilot.name, origin + pilot.latest_end))
        elif (
            lifecycle.is_asked
            and not pilot.booked  # from its begin on, used or not
            and self._settlements.keeps_count(pilot.site)
        ):
            self._settlements.end(pilot.name)
        else:
            self._write(self._guard.charges.close(pilot.name, self._dispatcher.now()))

    def _write(self, lease: Lease) -> None:
        text = msgspec.json.encode(lease).decode()
        self._note("lease", text, self._guard.transfers())


def _loss(error: BursarError) -> AllocationLoss:
    # That there is no money is not the site's fault.
    passing = error.transient or isinstance(error, BudgetStop)
    return "unreachable" if passing else "refused"


def leases_of(events: Sequence[RunEvent]) -> dict[str, Lease]:
    """Return the last journalled state of each lease by id, with requests that came to nothing."""
    leases: dict[str, Lease] = {}
    for event in events:
        if event.kind == "lease":
            lease = msgspec.json.decode(event.text, type=Lease)
            leases[lease.id] = lease
    return leases
