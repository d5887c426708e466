"""
Who has the processors of a cluster with a batch scheduler.

Of an agreement a job is handed in that begins and ends with it. For shared tasks the pool of
:mod:`bursar.provisioning` decides, by the rules of the site, within what is not sold.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from bursar.model.demand import Demand
from bursar.provisioning.pool import Pool
from bursar.provisioning.view import Allocation, Ask, GiveBack, Loss, SiteView, View
from bursar.service.parties import SHARED, is_shared
from bursar.service.staff.view import Close, Decision, LeaseView, Open, StaffView


class BatchRules:
    """
    Rules for a cluster.

    Parameters
    ----------
    seen
        The site as it sees itself now.
    """

    def __init__(self, seen: Callable[[], SiteView]) -> None:
        self._seen = seen
        self._pool = Pool()
        self._wake = math.inf

    @property
    def wake(self) -> float:
        """When a decision may be due though nothing has happened; infinite: never."""
        return min(self._wake, self._pool.wake)

    def opened(self, name: str, lease: Open, now: float) -> None:
        """A lease is asked for, under a name."""
        if is_shared(lease.pool):
            self._pool.asked(name, self._ask(lease, now), now)

    def began(self, name: str, now: float) -> None:
        """It has its processors."""
        self._pool.began(name, now)

    def gone(self, name: str, now: float, loss: Loss, reason: str) -> None:
        """It is no more, or was not to be had."""
        self._pool.gone(name, now, loss, reason)

    def decide(self, view: StaffView) -> list[Decision]:
        """What is to be done now; see :class:`bursar.service.staff.rules.Rules`."""
        self._wake = math.inf
        return [*self._agreements(view), *self._shared(view)]

    def _agreements(self, view: StaffView) -> list[Decision]:
        decisions: list[Decision] = []
        held = dict.fromkeys(view.wanted, 0)
        for lease in view.leases:
            if is_shared(lease.pool):
                continue
            wanted = view.wanted.get(lease.pool)
            if wanted is None or view.now >= wanted.until:
                if not lease.stopped:
                    decisions.append(
                        Close(name=lease.name, reason="its agreement is over", at_once=True)
                    )
            elif not lease.leaving:
                held[lease.pool] += lease.processors
        for pool, wanted in sorted(view.wanted.items(), key=lambda x: (x[1].start, x[0])):
            self._wake = min(self._wake, wanted.until)
            missing = wanted.processors - held[pool]
            if missing > 0 and view.now < wanted.until:
                start = wanted.start if wanted.start > view.now else None
                decisions.append(
                    Open(pool=pool, processors=missing, start=start, until=wanted.until)
                )
        return decisions

    def _shared(self, view: StaffView) -> list[Decision]:
        site = self._seen()
        soon = view.now + site.rules.longest
        sold = [w for w in view.wanted.values() if w.start <= soon and view.now < w.until]
        room = view.processors - sum(wanted.processors for wanted in sold)
        leases = [x for x in view.leases if is_shared(x.pool)]
        decisions: list[Decision] = []
        staying = []
        for lease in sorted(leases, key=lambda x: (-x.busy, x.asked, x.name)):
            if not lease.leaving and lease.processors <= room:
                room -= lease.processors
                staying.append(lease)
            elif not lease.leaving:
                decisions.append(Close(name=lease.name, reason="its processors are sold"))
        if room + sum(lease.processors for lease in staying) <= 0:
            return decisions
        limited = replace(
            site, processors=room + sum(lease.processors for lease in staying), batch=True
        )
        shown = View(
            now=view.now,
            demand=view.demand.get(SHARED, Demand()),
            allocations=tuple(self._allocation(lease, site.name) for lease in staying),
            sites={site.name: limited},
        )
        for decision in self._pool.decide(shown):
            match decision:
                case Ask():
                    decisions.append(
                        Open(
                            pool=SHARED,
                            processors=decision.processors,
                            until=view.now + decision.seconds,
                            least_processors=decision.least_processors,
                            least_seconds=decision.least_seconds,
                            bundle=decision.bundle,
                            fits=decision.fits,
                        )
                    )
                case GiveBack():
                    decisions.append(Close(name=decision.name, reason=decision.reason))
        return decisions

    def _ask(self, lease: Open, now: float) -> Ask:
        return Ask(
            site=self._seen().name,
            processors=lease.processors,
            seconds=lease.until - now,
            least_seconds=lease.least_seconds,
            least_processors=lease.least_processors,
            bundle=lease.bundle,
            fits=lease.fits,
        )

    def _allocation(self, lease: LeaseView, site: str) -> Allocation:
        return Allocation(
            name=lease.name,
            site=site,
            processors=lease.processors,
            asked=lease.asked,
            seconds=lease.until - lease.asked,
            began=lease.began,
            # One that waits in a queue for longer than it is has all its time before it still.
            until=math.inf if lease.began is None else lease.until,
            ready=lease.ready,
            busy=lease.busy,
            idle_since=lease.idle_since if lease.ready else lease.began,
            leaving=lease.leaving,
        )
