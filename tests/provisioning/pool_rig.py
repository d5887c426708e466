"""A small world in which a pool decides: batch sites, tasks, starts, losses; all in memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bursar.model.allocation import Allocation, AllocationLoad, AllocationLoss, AllocationRequest
from bursar.model.provisioning import ProcessorDemand
from bursar.model.slot import Slot
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import (
    AllocationRelease,
    PoolDecision,
    PoolSite,
    PoolSnapshot,
)

Fate = Callable[[AllocationRequest, int], tuple[AllocationLoss, float] | None]
"""What becomes of a request, by its number: lost so long after its begin, or asked; or nothing."""


Silence = Callable[[AllocationRequest, int], tuple[int, float, float] | None]
"""
Which of a request's workers are silent, by its number: how many processors, from how long after
its begin until how long after it. A silence from the very begin means that they never come.
"""


@dataclass
class Work:
    """A task."""

    arrives: float
    width: int
    seconds: float
    on: str | None = None
    started: float = math.nan
    ended: float = math.nan
    speed: float = 1.0


@dataclass
class Ground:
    """
    A site: its view, and what it has for us over time.

    Parameters
    ----------
    free
        (moment, processors) from which on so many may be ours, in order.
    delay
        Seconds from a request to its earliest start.
    tells
        Whether it says how many are free.
    shows
        Whether it says for how long, too.
    """

    view: PoolSite
    free: Sequence[tuple[float, int]] = ()
    delay: float = 1.0
    tells: bool = True
    shows: bool = False

    def ours(self, now: float) -> int:
        most = self.view.processors
        for moment, count in self.free:
            if moment <= now:
                most = count
        return most


@dataclass
class World:
    """Turns the clock from event to event, and lets the pool decide at each."""

    grounds: dict[str, Ground]
    work: list[Work]
    pool: PilotPool = field(default_factory=PilotPool)
    fate: Fate = lambda ask, number: None
    silence: Silence = lambda ask, number: None
    deadline: float | None = None
    budget: float | None = None
    now: float = 0.0
    later: int = 0
    there: dict[str, Allocation] = field(default_factory=dict)
    asks: dict[str, AllocationRequest] = field(default_factory=dict)
    losses: dict[str, tuple[float, AllocationLoss]] = field(default_factory=dict)
    ends: dict[str, tuple[AllocationLoss, float]] = field(default_factory=dict)
    silent: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    leaving: dict[str, float] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    held_seconds: float = 0.0
    log: list[tuple[float, PoolDecision]] = field(default_factory=list)
    on_step: Callable[["World"], None] = lambda world: None
    count: int = 0

    def run(self, until: float, steps: int = 20_000) -> None:
        """To a moment, or until nothing will happen any more."""
        for _ in range(steps):
            self._happen()
            self._decide()
            self.on_step(self)
            upcoming = min(self._next(), until)
            self.held_seconds += self.held() * (upcoming - self.now)
            self.now = upcoming
            if self.now >= until:
                return
        raise AssertionError("the pool never comes to rest")

    def held(self, site: str | None = None) -> int:
        """Processors that are there."""
        return sum(
            a.processors
            for a in self.there.values()
            if a.granted is not None and site in (None, a.site)
        )

    def taken(self, site: str) -> int:
        """The same with those asked for."""
        return sum(a.processors for a in self.there.values() if a.site == site)

    def pending(self, site: str) -> int:
        """Requests that wait."""
        return sum(1 for a in self.there.values() if a.site == site and a.granted is None)

    def demand(self) -> ProcessorDemand:
        """Of tasks that are there and not done."""
        waiting = [w for w in self.work if w.arrives <= self.now and w.on is None]
        running = [w for w in self.work if w.on is not None and math.isnan(w.ended)]
        return ProcessorDemand(
            tasks=len(waiting),
            processors=sum(w.width for w in waiting),
            widest=max((w.width for w in waiting), default=0),
            work=sum(w.width * w.seconds for w in waiting),
            longest=max((w.seconds for w in waiting), default=0.0),
            running=sum(w.width for w in running),
            later=self.later + sum(1 for w in self.work if w.arrives > self.now),
        )

    def view(self) -> PoolSnapshot:
        """All of it."""
        sites = {}
        for name, ground in self.grounds.items():
            free = max(ground.ours(self.now) - self.held(name), 0)
            less = [m for m, n in ground.free if m > self.now and n < ground.ours(self.now)]
            seconds = min(less, default=math.inf) - self.now
            holes = (Slot(start=0.0, duration=seconds, processors=free),) if free else ()
            sites[name] = replace(
                ground.view,
                free=free if ground.tells else None,
                backfill_windows=holes if ground.shows else (),
            )
        spent = sum(
            a.processors * (self.grounds[a.site].view.unit_price or 0.0) * a.duration
            for a in self.there.values()
            if a.granted is not None and math.isfinite(a.duration)
        )
        return PoolSnapshot(
            now=self.now,
            demand=self.demand(),
            allocations=tuple(self.there.values()),
            sites=sites,
            until_deadline=None if self.deadline is None else self.deadline - self.now,
            affordable=None if self.budget is None else self.budget - spent,
        )

    def asked(self) -> list[AllocationRequest]:
        """All requests so far."""
        return [d for _, d in self.log if isinstance(d, AllocationRequest)]

    def done(self) -> bool:
        """Whether all work is."""
        return all(not math.isnan(w.ended) for w in self.work)

    # Its laws.

    def _decide(self) -> None:
        gone = -1
        while gone != len(self.losses):  # what is refused at once changes the world
            gone = len(self.losses)
            for decision in self.pool.decide(self.view()):
                self.log.append((self.now, decision))
                if isinstance(decision, AllocationRelease):
                    self._give_back(decision.name)
                else:
                    self._ask(decision)

    def _ask(self, ask: AllocationRequest) -> None:
        self.count += 1
        name = f"lease-{self.count}"
        self.pool.asked(name, ask, self.now)
        self.asks[name] = ask
        fate = self.fate(ask, self.count)
        if fate is not None and fate[0] in ("refused", "unreachable"):
            self._gone(name, fate[0], "no such queue")
            return
        if fate is not None:
            self.ends[name] = fate
        silence = self.silence(ask, self.count)
        if silence is not None:
            self.silent[name] = silence
        self.there[name] = Allocation(
            name=name,
            site=ask.site,
            processors=ask.processors,
            asked=self.now,
            duration=ask.duration,
            bundle=ask.bundle,
            race=ask.race,
        )

    def _give_back(self, name: str) -> None:
        one = self.there[name]
        assert not one.leaving, "given back twice"
        assert one.workload.busy == 0, "given back while it works"
        if one.granted is None:
            self._gone(name, "ended")
        else:
            self.there[name] = replace(one, leaving=True)
            self.leaving[name] = self.now + 0.5

    def _gone(self, name: str, loss: AllocationLoss, reason: str = "") -> None:
        self.there.pop(name, None)
        self.ends.pop(name, None)
        self.leaving.pop(name, None)
        assert name not in self.losses, "gone twice"
        self.losses[name] = (self.now, loss)
        for w in self.work:
            if w.on == name and math.isnan(w.ended):
                w.on, w.started = None, math.nan
        self.pool.ended(name, self.now, loss, reason)

    def _happen(self) -> None:
        for w in self.work:
            if (
                w.on is not None
                and math.isnan(w.ended)
                and w.started + w.seconds / w.speed <= self.now
            ):
                w.ended = self.now
        for name in list(self.there):
            one = self.there[name]
            over = one.until <= self.now
            if name in self.leaving and self.leaving[name] <= self.now:
                over = True
            if over:
                self._gone(name, "ended")
            elif name in self.ends and one.granted is not None:
                loss, after = self.ends[name]
                if one.granted + after <= self.now:
                    self._gone(name, loss, "node failure")
        for name in list(self.there):
            one, ground = self.there[name], self.grounds[self.there[name].site]
            if one.granted is not None or one.asked + ground.delay > self.now:
                continue
            free = ground.ours(self.now) - self.held(one.site)
            least = self.asks[name].least_processors or one.processors
            size = min(one.processors, free)
            if size >= least:
                self.there[name] = replace(
                    one,
                    processors=size,
                    granted=self.now,
                    until=self.now + one.duration,
                    workload=AllocationLoad(idle_since=self.now),
                )
                self.pool.began(name, self.now)
        for name in list(self.there):
            self._fall_silent(name)
        self._dispatch()

    def _fall_silent(self, name: str) -> None:
        """Workers go away and come back; what ran on them waits again."""
        one = self.there[name]
        if one.granted is None:
            return
        silent, begin, end = self.silent.get(name, (0, 0.0, 0.0))
        is_silent = one.granted + begin <= self.now < one.granted + end
        ready = max(0, one.processors - silent) if is_silent else one.processors
        joined = max(one.workload.joined or 0, ready)
        since = one.workload.silent_since
        if ready < one.workload.ready and joined:
            since = self.now
        elif ready == joined:
            since = None
        self.there[name] = replace(
            one, workload=replace(one.workload, ready=ready, joined=joined, silent_since=since)
        )
        busy = 0
        for w in self.work:
            if w.on == name and math.isnan(w.ended):
                busy += w.width
                if busy > ready:
                    busy -= w.width
                    w.on, w.started = None, math.nan

    def _dispatch(self) -> None:
        busy = dict.fromkeys(self.there, 0)
        for w in self.work:
            if w.on is not None and math.isnan(w.ended):
                busy[w.on] += w.width
        for w in self.work:
            if w.arrives > self.now or w.on is not None:
                continue
            for name, one in self.there.items():
                speed = self.grounds[one.site].view.speed
                fits = one.workload.ready - busy[name] >= w.width
                if one.granted is None or one.leaving or not fits:
                    continue
                if one.until - self.now < w.seconds / speed:
                    continue
                w.on, w.started, w.speed = name, self.now, speed
                busy[name] += w.width
                break
        for name, one in self.there.items():
            since = None
            if one.granted is not None and not busy[name]:
                since = one.workload.idle_since
                since = self.now if since is None else since
            load = replace(one.workload, busy=busy[name], idle_since=since)
            self.there[name] = replace(one, workload=load)

    def _next(self) -> float:
        moments = [self.pool.wake, *self.leaving.values()]
        for w in self.work:
            if w.arrives > self.now:
                moments.append(w.arrives)
            elif w.on is not None and math.isnan(w.ended):
                moments.append(w.started + w.seconds / w.speed)
        for name, one in self.there.items():
            if one.granted is None:
                moments.append(one.asked + self.grounds[one.site].delay)
            else:
                moments.append(one.until)
                if name in self.silent:
                    moments.extend(one.granted + moment for moment in self.silent[name][1:])
                if name in self.ends:
                    moments.append(one.granted + self.ends[name][1])
        for ground in self.grounds.values():
            moments.extend(moment for moment, _ in ground.free)
        return min((m for m in moments if m > self.now), default=math.inf)
