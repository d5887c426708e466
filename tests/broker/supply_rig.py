"""A world for a supply: a clock that is turned by hand, sites that obey, money that is counted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.broker.decision_reasons import DECISION, PlacementDecision
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.economy import EconomyScheduler
from bursar.broker.held_pilots import AHEAD, MOST_AHEAD
from bursar.broker.strategies import Named, OutOfReach
from bursar.broker.trading import CampaignTrader, Period
from bursar.market.agreement import Agreement, Terms
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task

CLOSE = 1e-6


class Bazaar(CampaignTrader):
    """
    Owners who ask what they like, and sell as long as the buyer says it can pay.

    Parameters
    ----------
    sites
        Their prices are what is asked at first.
    changes
        Of each site by its name: when its price changes, seconds, and to what; in order.
    """

    def __init__(
        self, sites: Sequence[SiteFacts], changes: dict[str, list[tuple[float, float]]]
    ) -> None:
        super().__init__(sites)
        self.changes = {
            site.name: [(0.0, site.unit_price or 0.0), *changes.get(site.name, [])]
            for site in sites
        }
        self.signed: set[str] = set()
        self.made = 0

    def price(self, site: str, now: float) -> float:
        """That holds at a moment."""
        return [price for begin, price in self.changes[site] if begin <= now][-1]

    def ahead(self, site: SiteFacts, now: float, seconds: float) -> tuple[Period, ...]:
        """As the list of changes says."""
        later = [(begin - now, price) for begin, price in self.changes[site.name] if begin > now]
        begins = [(0.0, self.price(site.name, now)), *later]
        ends = [begin for begin, _ in later] + [math.inf]
        return tuple((b, end, price) for (b, price), end in zip(begins, ends, strict=True))

    def buy(
        self,
        site: SiteFacts,
        seconds: float,
        now: float,
        limit: float,
        ahead: float = 0.0,
        task: int | None = None,
    ) -> Agreement | Refusal | None:
        """At the price of now."""
        price = self.price(site.name, now)
        if price * seconds > limit * (1 + CLOSE) + CLOSE:
            return Refusal("too dear", final=False)
        self.made += 1
        self.signed.add(f"deal-{self.made}")
        return Agreement(
            id=f"deal-{self.made}",
            owner=site.name,
            customer="buyer",
            terms=Terms(processors=1, start=now, seconds=seconds, unit_price=price),
            signed_at=now,
        )

    def over(self, site: str, agreement: str, paid: float) -> None:
        """Each agreement once."""
        self.signed.remove(agreement)


@dataclass
class Held:
    """A pilot that is there."""

    site: str
    price: float
    since: float  # when its first job began
    until: float  # as it was asked for
    tasks: list[int] = field(default_factory=list)


class World:
    """
    What a run is to an economy: the first job of each pilot runs, those behind it wait.

    Parameters
    ----------
    runtimes
        As estimated; None: not known.
    """

    def __init__(
        self,
        runtimes: Sequence[float | None],
        sites: Sequence[SiteFacts],
        goal: Goal,
        strategy: Named,
        *,
        changes: dict[str, list[tuple[float, float]]] | None = None,
        out_of_reach: OutOfReach = "fit",
    ) -> None:
        self.sites = {site.name: site for site in sites}
        self.goal = goal
        self.now = 0.0
        self.paid = 0.0
        self.refusals = 0
        """Pilots there will be no money for, before the next that there is."""
        self.bazaar = None if changes is None else Bazaar(sites, changes)
        self.held: dict[str, Held] = {}
        self.attempts = dict.fromkeys(range(len(runtimes)), 0)
        self.finished: dict[int, Status] = {}
        self.waiting = set(self.attempts)
        self.said: list[str] = []
        self.is_over = False
        # The least that a job of size 1 may be believed to take, for the depth of queues.
        self._least_stretch = 1.0
        self._sizes = [1.0 if runtime is None else runtime for runtime in runtimes]
        tasks = [Task(id=f"t{i}", runtime=runtime) for i, runtime in enumerate(runtimes)]
        self.economy = EconomyScheduler(
            tasks, sites, goal, strategy, trading=self.bazaar, out_of_reach=out_of_reach
        )

    def begin(self) -> None:
        """Of the run."""
        past = ResumeState(
            ended=frozenset(),
            succeeded=frozenset(),
            attempts=(),
            pilots=0,
            clock=lambda: self.now,
            spent=lambda: self.spent,
        )
        self._take_in(self.economy.begin(past))

    # Money.

    @property
    def spent(self) -> float:
        """With what runs, so far."""
        return self.paid + sum((self.now - held.since) * held.price for held in self.held.values())

    @property
    def promised(self) -> float:
        """What is still to come of what was asked for."""
        return sum(max(0.0, held.until - self.now) * held.price for held in self.held.values())

    # What happens.

    def end(self, name: str, status: Status, seconds: float, *, most_attempts: int = 3) -> None:
        """The job that runs on a pilot ends, so long after it began."""
        held = self.held[name]
        task = held.tasks.pop(0)
        self.now = max(self.now, held.since + seconds)
        ran = self.now - held.since
        self.paid += ran * held.price
        held.since = self.now
        final = status is Status.SUCCEEDED
        if status is not Status.CANCELLED:
            self.attempts[task] += 1
            final = final or self.attempts[task] >= most_attempts
        if final:
            self.finished[task] = status
        else:
            self.waiting.add(task)
        if status is Status.SUCCEEDED:
            speed = self.sites[held.site].speed
            self._least_stretch = min(self._least_stretch, ran * speed / self._sizes[task])
        outcome = Outcome(
            task=task,
            attempt=self.attempts[task],
            status=status,
            start=self.now - ran,
            end=self.now,
        )
        asked = self.economy.ended([(outcome, final)])
        self._take_in(asked)
        if not held.tasks:
            self.held.pop(name, None)  # its processor goes back

    def lose(self, name: str) -> None:
        """A pilot comes to nothing, and what it ran or was to run with it."""
        held = self.held.pop(name)
        self.paid += (self.now - held.since) * held.price
        self.waiting.update(held.tasks)
        pilot = Allocation(
            name=name,
            site=held.site,
            processors=1,
            start=None,
            duration=1.0,
            unit_price=held.price,
            fixed_price=0.0,
        )
        asked = self.economy.lost(pilot, "it went away")
        if asked is None:
            self.is_over = True
        else:
            self._take_in(asked)

    def amend(self, goal: Goal) -> None:
        """Another goal."""
        self.goal = goal
        self._take_in(self.economy.amend(goal))

    def wait(self, until: float) -> None:
        """Time passes, and the economy looks when it wants to."""
        while self.economy.wake <= until and not self.is_over:
            self.now = max(self.now, self.economy.wake)
            self._take_in(self.economy.poll())
        self.now = max(self.now, until)

    def end_next(self) -> None:
        """The job ends that is to end first, after as long as was estimated."""
        due = {
            name: held.since + self._sizes[held.tasks[0]] / self.sites[held.site].speed
            for name, held in self.held.items()
        }
        name = min(due, key=due.__getitem__)
        self.wait(due[name])
        self.end(name, Status.SUCCEEDED, due[name] - self.held[name].since)

    def run_out(self) -> None:
        """As everything goes well from here on, until nothing more will happen."""
        for _ in range(10 * len(self.attempts) + 100):
            if self.is_over or (self.economy.verdict and not self.held):
                return
            if self.held:
                self.end_next()
            elif math.isfinite(self.economy.wake):
                self.wait(self.economy.wake)
            else:
                return
        raise AssertionError("it goes on for ever")

    # What is held against what was asked for.

    def _take_in(self, pilots: Sequence[Allocation]) -> None:
        self._hear(pilots)
        for pilot in pilots:
            self._check(pilot)
            self.waiting.difference_update(pilot.tasks)
            held = self.held.get(pilot.name)
            if self.refusals:
                self.refusals -= 1
                self.waiting.update(pilot.tasks)
                self.economy.short(pilot)
                continue
            price = pilot.unit_price or 0.0
            if held is None:
                held = self.held[pilot.name] = Held(pilot.site, price, self.now, 0.0)
                self.paid += pilot.fixed_price or 0.0
            if not held.tasks:
                held.since = self.now
            held.until = self.now + pilot.duration
            held.tasks += pilot.tasks
        self._check_places()

    def _hear(self, pilots: Sequence[Allocation]) -> None:
        """Decisions name every job that is sent, where it is sent, once."""
        decisions = []
        for kind, text in self.economy.take_events():
            if kind == DECISION:
                decisions.append(msgspec.json.decode(text, type=PlacementDecision))
            else:
                assert kind == "message"
                self.said.append(text)
        told = [job for decision in decisions for job in decision.sent]
        asked = [(task, pilot.site, pilot.name) for pilot in pilots for task in pilot.tasks]
        assert sorted(told) == sorted(asked)
        for decision in decisions:
            assert decision.sent
            assert decision.at == self.now
            assert decision.left == len(self.waiting) - len(asked)
            assert all(weighed.reason or not weighed.given for weighed in decision.sites)

    def _check(self, pilot: Allocation) -> None:
        """Nothing impossible is asked for."""
        assert pilot.tasks
        assert set(pilot.tasks) <= self.waiting, "a job in two places, or at its end"
        assert pilot.processors == pilot.paid == 1
        held = self.held.get(pilot.name)
        # Given ahead where what runs is overdue, it is not yet right: see what is not so yet.
        assert pilot.duration < math.inf
        assert pilot.duration > 0 or (held is not None and held.until < self.now)
        if held is not None:
            assert (held.site, held.price) == (pilot.site, pilot.unit_price)
        elif self.bazaar is not None:
            assert pilot.unit_price == self.bazaar.price(pilot.site, self.now)

    def _check_places(self) -> None:
        """No site has more jobs than processors, but for a little work ahead."""
        slowest = max(site.speed for site in self.sites.values())
        shortest = min(self._sizes) / slowest * min(1.0, self._least_stretch)
        depth = max(1, min(MOST_AHEAD, math.ceil(AHEAD / max(shortest, 1e-6))))
        for name, site in self.sites.items():
            there = [held.tasks for held in self.held.values() if held.site == name and held.tasks]
            assert len(there) <= site.processors
            assert all(len(tasks) <= depth for tasks in there)
        placed = [task for held in self.held.values() for task in held.tasks]
        assert len(placed) == len(set(placed))
        assert not set(placed) & (self.waiting | set(self.finished))
        assert set(placed) | self.waiting | set(self.finished) == set(self.attempts)
        if self.bazaar is not None:
            assert len(self.bazaar.signed) == len(placed)
