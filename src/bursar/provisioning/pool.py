"""
A pool of processors decides when to request more and when to release some (DRP section 3).

Processors are asked for as long as tasks wait that those at hand, or asked for, have no room
for. :mod:`bursar.provisioning.acquisition` and :mod:`bursar.provisioning.request_shaping` say which
requests are made for them, :mod:`bursar.provisioning.release` when processors go back. Between
asking and giving back lies a time, so that a load that does not change moves nothing.

Decisions only: no clock, nothing is sent. The same views give the same decisions, in simulation
and live.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bursar.model.allocation import Allocation, AllocationLoss, AllocationRequest
from bursar.provisioning import request_shaping
from bursar.provisioning.acquisition import AcquisitionRound
from bursar.provisioning.counting import (
    SILENCE,
    next_silence_check,
    release_unresponsive,
    responsive_allocation,
    room,
    starvation_reason,
)
from bursar.provisioning.pool_memory import QUICK, PendingRequest, PoolMemory, SiteObservation
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolDecision, PoolSnapshot
from bursar.provisioning.release import (
    ROUNDING,
    SETTLING,
    allocations_to_release,
    is_active,
    is_racing,
    remaining_processors,
    requests_to_withdraw,
)
from bursar.provisioning.request_shaping import requests_to_move
from bursar.provisioning.wait_prediction import WaitPredictor

TRIES = 10
"""Most doublings of the patience before a request is moved again, after moves that did not help."""


class PilotPool:
    """
    Decides which processors are requested and which are released.

    Parameters
    ----------
    waits
        History of the user's queue waits; None: an empty one.

    Notes
    -----
    Whoever carries out what it decides tells it of every request by :meth:`asked`,
    :meth:`began` and :meth:`ended`, and shows in the views all that was asked and is not gone.
    """

    def __init__(self, waits: WaitPredictor | None = None) -> None:
        self._memory = PoolMemory(waits if waits is not None else WaitPredictor())

    @property
    def waits(self) -> WaitPredictor:
        """History of queue waits, with what was observed since."""
        return self._memory.waits

    def decide(self, view: PoolSnapshot) -> list[PoolDecision]:
        """
        Return the requests and releases that are due now; none while nothing changes.

        Parameters
        ----------
        view
            Snapshot with all requests that are not gone; those being released count until they are
            gone.
        """
        self._memory.wake = math.inf
        self._learn(view)
        self._memory.wake_at(next_silence_check(view.allocations, view.now))
        # Demand is met by who answers; limits hold for all that is held, silent or not.
        answering = tuple(responsive_allocation(a, view.now) for a in view.allocations)
        # Silent allocations first: the rules below reckon only with processors that answer.
        gives = self._silenced(view)
        going = {give.name for give in gives}
        rest = tuple(a for a in answering if a.name not in going)
        gives.extend(self._give_backs(replace(view, allocations=rest)))
        going = {give.name for give in gives}
        for name in going:
            if name in self._memory.known:
                self._memory.known[name].given_back = True
        stay = [a for a in answering if a.processors and not a.leaving and a.name not in going]
        return [*gives, *AcquisitionRound(self._memory, view, stay).asks()]

    @property
    def wake(self) -> float:
        """Time, on the pool's clock, when a decision may be due without an event; or infinite."""
        return self._memory.wake

    def verdict(self, view: PoolSnapshot) -> str | None:
        """Return why waiting tasks will get no processors, for people; None: they will."""
        refused = {name: site.refused for name, site in view.sites.items() if site.refused}
        return starvation_reason(view, {**refused, **self.given_up})

    @property
    def given_up(self) -> Mapping[str, str]:
        """Sites that are no longer asked, with the reason in the scheduler's words."""
        return {name: s.given_up for name, s in self._memory.health_by_site.items() if s.given_up}

    def asked(self, name: str, ask: AllocationRequest, now: float) -> None:
        """Record a request that was sent under a name."""
        self._memory.known[name] = PendingRequest(ask.site, asked=now, fits=ask.fits)
        if not ask.fits:  # what fits does not queue: it would tell nothing of what does
            self._memory.waits.asked(name, ask.site, ask.processors, ask.duration, now)

    def moved(self, name: str, site: str, now: float) -> None:
        """Record that another site serves a request than the one that was asked."""
        # How long the first site would have let it wait is not known any more.
        self._memory.waits.ended(name, now)
        if name in self._memory.known:
            self._memory.known[name].site = site

    def began(self, name: str, now: float) -> None:
        """Record that an allocation has received its processors."""
        self._memory.waits.began(name, now)
        known = self._memory.known.get(name)
        if known is not None and known.began is None:
            known.began = now
            if known.fits and known.asked is not None:
                self._memory.waits.started(known.site, now - known.asked)
            self._memory.tried.pop(known.site, None)

    def ended(self, name: str, now: float, loss: AllocationLoss, reason: str = "") -> None:
        """
        Note that an allocation has ended or was never granted; a repeated call changes nothing.

        Parameters
        ----------
        reason
            Reason in the scheduler's own words.
        """
        self._memory.waits.ended(name, now)
        known = self._memory.known.pop(name, None)
        if known is None:
            return
        self._memory.observations.pop(known.site, None)  # what it took is free again
        health = self._memory.health(known.site)
        match loss:
            case "refused":
                others = any(k.site == known.site for k in self._memory.known.values())
                health.refused(now, reason, has_others=others)
            case "unreachable":
                health.unreachable(now)
            case "lost":
                lived = 0.0 if known.began is None else now - known.began
                health.lost(now, reason, lived, was_busy=known.worked)
            case "ended" if known.silent_since is not None:
                began = known.silent_since if known.began is None else known.began
                lived = known.silent_since - began
                health.lost(now, SILENCE, lived, was_busy=known.worked)
            case "ended" if known.worked:
                health.worked()
            case "ended":
                # No task came to it though some waited, or another party took it away.
                in_vain = known.began is not None or not known.given_back
                if self._memory.is_hungry and in_vain:
                    health.in_vain(now)
        if not health.given_up and health.until > now:
            self._memory.wake_at(health.until)

    def _learn(self, view: PoolSnapshot) -> None:
        """
        Update what the pool remembers from a view, before it decides.

        Allocations that no call announced become known. A site's failures are forgotten once an
        allocation there works. Its claims are forgotten once its free processors or backfill
        windows have changed, which shows that the scheduler was asked again.
        """
        for a in view.allocations:
            known = self._memory.known.get(a.name)
            if known is None:  # of an earlier process
                known = self._memory.known[a.name] = PendingRequest(a.site)
            if a.granted is not None and known.began is None:
                self.began(a.name, a.granted)
            known.worked = known.worked or a.workload.busy > 0
            # A site is taken to work only after QUICK: nodes that kill every job at once begin
            # jobs, too.
            if a.workload.busy and view.now - (a.granted or view.now) >= QUICK:
                self._memory.health(a.site).worked()
        self._memory.is_hungry = view.demand.tasks > 0
        for name, site in view.sites.items():
            observation = self._memory.observations.get(name)
            if (
                observation is None
                or observation.free != site.free
                or observation.backfill_windows != site.backfill_windows
            ):
                self._memory.observations[name] = SiteObservation(site.free, site.backfill_windows)

    def _silenced(self, view: PoolSnapshot) -> list[AllocationRelease]:
        gives = []
        for give, since in release_unresponsive(view.allocations, view.demand, view.now):
            self._memory.known[give.name].silent_since = since
            gives.append(give)
        return gives

    def _give_backs(self, view: PoolSnapshot) -> list[AllocationRelease]:
        demand, now = view.demand, view.now
        gives = requests_to_withdraw(view.allocations, idle_too=not demand.tasks)
        going = {give.name for give in gives}
        stay = [a for a in view.allocations if not a.leaving and a.name not in going]
        unit = max(demand.widest, 1)
        spare = room(view, stay, unit) - demand.processors
        withdrawn = self._withdrawn(view, stay, spare)
        gives.extend(withdrawn)
        going.update(give.name for give in withdrawn)
        moved = self._moved(view, [a for a in stay if a.name not in going])
        gives.extend(moved)
        going.update(give.name for give in moved)
        by_site: dict[str, list[Allocation]] = {name: [] for name in view.sites}
        for a in view.allocations:
            if a.name not in going and a.site in by_site:
                by_site[a.site].append(a)
            if a.name in going:
                spare -= a.processors
        for name, allocations in by_site.items():
            back, wake = allocations_to_release(
                view.sites[name], allocations, demand, now, max(spare, 0)
            )
            self._memory.wake_at(wake)
            gives.extend(back)
            gone = {give.name for give in back}
            spare -= sum(a.processors for a in allocations if a.name in gone)
        return gives

    def _moved(self, view: PoolSnapshot, stay: Sequence[Allocation]) -> list[AllocationRelease]:
        """Return releases of requests that make way for others that fit into free windows."""
        tried = self._memory.tried
        chosen: list[Allocation] = []
        for name, site in view.sites.items():
            if (
                site.rules.acquisition != "adaptive"
                or not site.backfill_windows
                or not view.demand.tasks
            ):
                continue
            # Where what was thought to fit did not start, it is tried ever more rarely.
            patience = site.rules.probe_every * 2.0 ** tried.get(name, 0)
            waiting = [a for a in stay if a.granted is None and a.site == name]
            if not waiting:
                continue
            wanted = request_shaping.wanted_seconds(view.demand, site, room(view, stay, 1))
            least = request_shaping.least_in_window(view.demand, site, wanted)
            due = []
            for a in requests_to_move(site, waiting, least):
                if view.now < a.asked + patience - ROUNDING:
                    self._memory.wake_at(a.asked + patience)
                else:
                    due.append(a)
            if due:
                tried[name] = min(tried.get(name, 0) + 1, TRIES)
            chosen.extend(due)
        # A race moves as a whole: its other requests stand for the same need.
        races = {a.race for a in chosen if a.race}
        names = {a.name for a in chosen} | {a.name for a in stay if a.race in races}
        return [
            AllocationRelease(name=a.name, reason="a hole is open for it")
            for a in stay
            if a.name in names
        ]

    def _withdrawn(
        self, view: PoolSnapshot, stay: Sequence[Allocation], spare: int
    ) -> list[AllocationRelease]:
        """Return releases of waiting requests that were too many for a while, the last first."""
        # While tasks are withheld nobody knows how many requests are too many.
        if spare <= 0 or view.demand.withheld:
            self._memory.spare = None
            return []
        now, active = view.now, is_active(view.demand)
        since, least = self._memory.spare or (now, spare)
        least = min(least, spare) if active else spare
        gives = []
        kept = {
            name: remaining_processors(
                (a for a in stay if a.site == name and not is_racing(a)), now
            )
            for name in view.sites
        }
        passed = True
        for a in sorted(stay, key=lambda a: (-a.asked, a.processors)):
            site = view.sites.get(a.site)
            if a.granted is not None or site is None or a.processors > spare:
                continue
            # A racing request may be lost to its rivals anyhow, so it never counts towards the
            # least number.
            size = 0 if is_racing(a) else a.processors
            if active and size and kept[a.site] - size < site.rules.fewest:
                continue
            patience = max(site.rules.idle, SETTLING) if active else 0.0
            if now < since + patience - ROUNDING:
                self._memory.wake_at(since + patience)
                passed = False
            elif a.processors <= least:
                kept[a.site] -= size
                least -= a.processors
                spare -= a.processors
                gives.append(AllocationRelease(name=a.name, reason="no task waits for it"))
            elif spare > least and passed:
                # More have been too many since; these are watched from now on.
                since, least = now, spare
                self._memory.wake_at(now + patience)
                break
        self._memory.spare = (since, least) if spare else None
        return gives
