"""Bring a bag of tasks to sites job by job, by deadline and budget (Nimrod/G)."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from bursar.broker.adaptive import AdaptiveScheduleAdviser
from bursar.broker.adviser import (
    NimrodAdviser,
    ScheduleAdvice,
    ScheduleAdviser,
    SchedulingSnapshot,
    SiteSnapshot,
)
from bursar.broker.backlog import Backlog
from bursar.broker.booking import BOOKING, BOOKING_OVER, Booking
from bursar.broker.decisions import DECISION, PlacementDecision, SiteDecision
from bursar.broker.dynamic_scheduler import Ended, News, ResumeState
from bursar.broker.estimates import RuntimeEstimates, sizes_of
from bursar.broker.explorer import GridExplorer
from bursar.broker.feasibility import GoalFeasibility, assess_feasibility
from bursar.broker.pilot_plan import Pilot
from bursar.broker.strategies import Named, OutOfReach
from bursar.broker.trading import Ahead, CampaignTrader
from bursar.market.agreement import Agreement
from bursar.model.admission import Refusal
from bursar.model.campaign import Retry
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome, Status
from bursar.model.site import SiteFacts
from bursar.model.task import Task

GUESS = 60.0
"""Seconds that a job is taken to need where neither its runtime nor a limit of the goal says."""

FIRST = 2.0
"""Even shares of the goal for which a first job's processor is held; it may have more."""

AHEAD = 0.2
"""Seconds of work that a processor is given ahead, so that it never waits for the next job."""

AGAIN = 1.0
"""Seconds until a site whose processors other campaigns hold is asked again."""

MOST_AHEAD = 64
"""Jobs, at the most."""


@dataclass(slots=True)
class _BoughtProcessor:
    """A pilot that runs our jobs one after the other."""

    name: str
    site: str
    price: float
    since: float
    until: float
    tasks: list[int] = field(default_factory=list)
    again: bool = True
    agreements: dict[int, str] = field(default_factory=dict)  # of tasks that were bought for
    begin: float = -math.inf  # of what was booked ahead

    def is_ahead(self, now: float) -> bool:
        """Whether it was booked and has not begun."""
        return now < self.begin


class EconomyScheduler:
    """
    Sends jobs to sites as an adviser says, as fast as their processors come free.

    Each end of a job is an event at which what is left is given out anew, and only as many
    are sent as processors are free, so that all others may still go elsewhere.

    Parameters
    ----------
    tasks
        Independent tasks, each of one processor.
    sites
        Sites that can be used.
    goal
        Deadline, budget and trade-off of the campaign.
    strategy
        Name of the strategy: ``"adaptive"``, our own, or one of the papers'.
    trading
        What sites ask for, and agreeing with them; None: by their facts, from the begin on.
    out_of_reach
        Policy once not all jobs can be done: do as many as fit, or start nothing more.
    retry
        Rules for retrying a job that failed; None: the default number of attempts, without a wait.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        sites: Sequence[SiteFacts],
        goal: Goal,
        strategy: Named,
        *,
        trading: CampaignTrader | None = None,
        out_of_reach: OutOfReach = "fit",
        retry: Retry | None = None,
    ) -> None:
        self._tasks = tasks
        self._all = tuple(sites)
        self._goal = goal
        self._strategy: Named = strategy
        self._trading = trading or CampaignTrader(sites)
        self._is_begun = self._trading.is_dated  # with the moment that prices count from
        self._rule: OutOfReach = out_of_reach
        self._retry = retry or Retry(backoff=0.0)
        self._failures: dict[int, int] = {}
        self._later: list[tuple[float, int]] = []  # when jobs that failed are tried again
        self._adviser = _adviser(strategy, goal)
        self._sizes, known = sizes_of(task.runtime for task in tasks)
        self._estimates = RuntimeEstimates({s.name: s.speed for s in sites}, known)
        self._explorer = GridExplorer(sites, self._estimates)
        self._backlog = Backlog(self._sizes, by_size=self._adviser.by_size)
        self._held: dict[str, _BoughtProcessor] = {}
        self._at: dict[str, dict[str, _BoughtProcessor]] = {site.name: {} for site in sites}
        self._where: dict[int, str] = {}
        self._probed: set[str] = set()
        self._asked: dict[int, float] = {}
        self._probing: set[int] = set()  # jobs that were sent to learn from them
        self._pilots = 0
        self._ended_since = 0
        self._advice: ScheduleAdvice | None = None
        self._wake = math.inf
        self._verdict = ""
        self._feasible: bool | None = None
        self._short = False
        self._news: list[News] = []
        self._advised: list[str] = []
        self._weighed: list[SiteDecision] = []
        self._used: list[tuple[str, bool, float]] = []
        self._told_at = math.inf
        self._limits = (math.inf, math.inf)

    # What the run asks.

    def begin(self, past: ResumeState) -> list[Pilot]:
        """See :class:`bursar.broker.dynamic_scheduler.DynamicScheduler`."""
        self._take_up(past)
        kept = [self._pilot(held, held.tasks, held.begin) for held in self._held.values()]
        return [*kept, *self._decide()]

    def outlook(self, past: ResumeState) -> GoalFeasibility | None:
        """Takes up a run, without sending anything: what can be had of it."""
        self._take_up(past)
        now = past.clock()
        situation = self._situation(now)
        # Nothing starts unless what one processor may cost while nobody watches can be held.
        reserve = min(
            (site.unwatched * (site.unit_price or 0.0) for site in self._explorer.sites),
            default=0.0,
        )
        situation = replace(situation, money_left=situation.money_left - reserve)
        return assess_feasibility(situation, now, past.spent())

    def _take_up(self, past: ResumeState) -> None:
        self._clock, self._spent = past.clock, past.spent
        self._pilots = past.pilots
        if not self._is_begun:
            self._trading.epoch = past.epoch
        for outcome, site in past.attempts:
            if self._explorer.site(site) is not None:
                self._learn(outcome, site, outcome.end - outcome.start)
                if self._estimates.count(site):  # a job that was stopped has told nothing
                    self._probed.add(site)
        for text in past.bookings:
            self._keep_booking(msgspec.json.decode(text, type=Booking), past)
        for task in range(len(self._tasks)):
            if task not in past.ended and task not in self._where:
                self._backlog.add(task)

    def _keep_booking(self, booking: Booking, past: ResumeState) -> None:
        """Take over a booking of an earlier incarnation, if its job and site are still there."""
        task, agreement = booking.task, booking.agreement
        site = self._explorer.site(agreement.owner)
        if site is None or task in past.ended or task in self._where:
            return
        self._trading.restore(site.name, agreement)
        begin = agreement.start - past.epoch
        self._add_booked(booking.lease, agreement, task, begin)

    @property
    def estimates(self) -> RuntimeEstimates:
        """Estimates of how long jobs take."""
        return self._estimates

    def seconds_of(self, task: int, site: str) -> float:
        """
        Seconds that a job runs at a site, by its estimate and by what jobs there have taken.

        Raises
        ------
        ValueError
            When nothing is known of how long jobs take.
        """
        return self._estimates.runs(site) * self._sizes[task]

    def ended(self, outcomes: Sequence[Ended]) -> list[Pilot]:
        """Return pilots for jobs that are sent after attempts that ended together."""
        for outcome, final in outcomes:
            self._take_in(outcome)
            if not final:
                self._again(outcome)
        self._ended_since += len(outcomes)
        self._short = False
        return self._decide()

    def _again(self, outcome: Outcome) -> None:
        """A job is tried again, after its wait: until then it needs no processor."""
        wait = 0.0
        if outcome.status is not Status.CANCELLED:
            self._failures[outcome.task] = failures = self._failures.get(outcome.task, 0) + 1
            wait = self._retry.wait_before(failures + 1)
        if wait > 0:
            heapq.heappush(self._later, (self._clock() + wait, outcome.task))
        else:
            self._backlog.add(outcome.task)

    def _take_in(self, outcome: Outcome) -> None:
        processor = self._held.get(self._where.pop(outcome.task, ""))
        if processor is None:
            return
        now = self._clock()
        self._pay(processor, outcome)
        self._learn(outcome, processor.site, now - processor.since)
        processor.since = now
        self._explorer.worked(processor.site)
        if outcome.status in (Status.LOST, Status.CANCELLED):
            processor.again = False
            ran = outcome.end - outcome.start
            self._asked[outcome.task] = max(self._asked.get(outcome.task, 0.0), 2 * ran)
        if outcome.status is not Status.SUCCEEDED:
            self._unlearned(outcome.task, processor.site)

    def holds(self, lease: str) -> bool:
        """Whether a job is on the pilot, by the events reported so far."""
        return lease in self._held

    def lost(self, pilot: Pilot, reason: str) -> list[Pilot] | None:
        """Take back the lost pilot's jobs; a site that fails repeatedly gets no more."""
        processor = self._forget(pilot.name)
        if processor is None:
            return []
        for task in tuple(processor.tasks):
            self._take_back(processor, task)
        if self._explorer.failed(processor.site):
            self._say(f"{processor.site} is left out: {reason}")
        if not self._explorer.sites:
            return None
        self._advice = None
        return self._decide()

    def short(self, pilot: Pilot) -> None:
        """Take back the jobs of an unaffordable pilot; they wait until another has ended."""
        processor = self._held.get(pilot.name)
        if processor is None:
            return
        for task in pilot.tasks:
            self._take_back(processor, task)
        if not processor.tasks:
            self._forget(pilot.name)
        self._short = True

    def amend(self, goal: Goal) -> list[Pilot]:
        """Take in a new goal."""
        self._goal = goal
        self._adviser = _adviser(self._strategy, goal)
        self._give_back_late()
        self._verdict, self._advice, self._short = "", None, False
        return self._decide()

    def _give_back_late(self) -> None:
        """Cancel bookings that would end after the deadline."""
        now = self._clock()
        for held in list(self._held.values()):
            if held.is_ahead(now) and held.until > (self._goal.deadline or math.inf):
                for task in tuple(held.tasks):
                    self._take_back(held, task)
                self._forget(held.name)

    def look(self) -> list[Pilot]:
        """A price has changed, or jobs take longer than thought."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            self._backlog.add(heapq.heappop(self._later)[1])
        if self._wake <= now:
            self._wake = math.inf
        self._advice, self._short = None, False
        return self._decide()

    @property
    def wake(self) -> float:
        """Time of the next :meth:`look`, seconds since the begin; infinite for never."""
        return min(self._wake, self._later[0][0]) if self._later else self._wake

    def routed(self, pilot: Pilot) -> Pilot:
        """Return the pilot unchanged, since it has its site already."""
        return pilot

    def news(self) -> list[News]:
        """Decisions and events since the last call."""
        news, self._news = self._news, []
        return news

    @property
    def verdict(self) -> str:
        """Says so where jobs are left and none is with a site: none fits any more."""
        if self._verdict:
            return self._verdict
        if not self._backlog.jobs or self._where or not math.isinf(self.wake):
            return ""
        return (
            f"{self._backlog.jobs} of {len(self._tasks)} jobs do not fit into what is left of the "
            "deadline and the budget"
        )

    # Deciding.

    def _decide(self) -> list[Pilot]:
        """Return pilots for the jobs that are sent now."""
        now = self._clock()
        sent: list[Pilot] = []
        if self._backlog.jobs and not self._verdict and not self._short:
            if self._advice is None or self._is_stale():
                self._advise(now)
            if self._advice is not None and not self._verdict:
                sent = self._send(self._advice, now)
        for name in [name for name, held in self._held.items() if not held.tasks]:
            self._forget(name)  # its processor goes back
        return sent

    def _is_stale(self) -> bool:
        """Whether so much has happened that what is left is to be given out anew."""
        return not self._where or self._ended_since >= max(1, self._backlog.jobs // 100)

    def _advise(self, now: float) -> None:
        situation = self._situation(now)
        self._ended_since = 0
        advice = self._adviser.advise(situation)
        if not (advice.feasible and self._feasible):  # otherwise nothing is crossed
            self._judge(situation, now)
        if self._verdict:
            return
        self._advice = advice
        changes = [site.prices[0][1] for site in situation.sites if self._may_wait(situation, site)]
        self._wake = now + min([advice.wake, *changes])
        self._advised = [site.name for site in situation.sites]
        self._note(situation, advice)

    def _judge(self, situation: SchedulingSnapshot, now: float) -> None:
        outlook = assess_feasibility(situation, now, self._spent() + self._promised(now))
        if outlook is None or outlook.feasible is self._feasible:
            return
        before, self._feasible = self._feasible, outlook.feasible
        if outlook.feasible and before is None:
            return
        self._say(str(outlook))
        if not outlook.feasible and self._rule == "refuse":
            self._verdict = f"out of reach: {outlook}"

    def _situation(self, now: float) -> SchedulingSnapshot:
        running: dict[str, list[tuple[float, float]]] = {site.name: [] for site in self._all}
        for held in self._held.values():
            if held.tasks and not held.is_ahead(now):
                size = sum(self._sizes[task] for task in held.tasks)
                running[held.site].append((size, now - held.since))
        mean = self._backlog.mean
        goal = self._goal
        return SchedulingSnapshot(
            sites=[
                SiteSnapshot(
                    name=site.name,
                    processors=site.processors,
                    prices=self._trading.ahead(site, now, self._expected(site.name, mean)),
                    bookable=self._bookable(site, now, mean),
                    booked=tuple(
                        (held.begin - now, held.until - now)
                        for held in self._at[site.name].values()
                        if held.is_ahead(now)
                    ),
                    fixed=site.fixed_price or 0.0,
                    running=tuple(running[site.name]),
                    probed=site.name in self._probed,
                    shared=site.is_shared,
                )
                for site in self._explorer.sites
            ],
            sizes=self._backlog.sizes,
            jobs=len(self._tasks),
            estimates=self._estimates,
            time_left=math.inf if goal.deadline is None else goal.deadline - now,
            money_left=self._money_left(now),
            budget=math.inf if goal.budget is None else goal.budget,
            probes=len(self._probing),
        )

    def _bookable(self, site: SiteFacts, now: float, mean: float) -> tuple[Ahead, ...]:
        """
        Advance prices of a site for our own strategy; the papers' rules buy at the present price.

        A queue that is shared with others promises nobody a begin.
        """
        if self._strategy != "adaptive" or site.is_shared or not self._estimates.is_known:
            return ()
        return self._trading.bookable(site, now, self._expected(site.name, mean))

    def _may_wait(self, situation: SchedulingSnapshot, site: SiteSnapshot) -> bool:
        """Whether a job could be had at a price that a site will ask for later."""
        seconds = self._expected(site.name, situation.mean)
        return any(
            begin + seconds <= situation.time_left
            and price * seconds + site.fixed <= situation.money_left
            for begin, _, price in site.prices[1:]
        )

    def _money_left(self, now: float) -> float:
        """Budget less what is spent and promised; infinite for no budget."""
        budget = self._goal.budget
        return math.inf if budget is None else budget - self._spent() - self._promised(now)

    def _promised(self, now: float) -> float:
        """Cost that running jobs may still reach, currency units."""
        return sum(
            held.price * max(0.0, held.until - max(now, held.begin))
            for held in self._held.values()
            if held.tasks
        )

    def _expected(self, site: str, size: float) -> float:
        """Seconds that a job runs; a guess where nothing is known."""
        facts = self._explorer.site(site)
        if not self._estimates.is_known:
            return GUESS if facts is None else self._even_share(facts)
        shared = facts is not None and facts.is_shared
        return (self._estimates.runs(site) if shared else self._estimates.takes(site)) * size

    def _even_share(self, site: SiteFacts) -> float:
        """
        Seconds that a job of unknown length has at a site when all jobs left share the goal evenly.

        The money left is shared by the jobs, the time left by the rounds in which the processors
        of all sites do them. A share of the goal, unlike a number of seconds, makes a campaign
        of one-second jobs go like one of one-hour jobs.
        """
        now, jobs, rate = self._clock(), max(1, self._backlog.jobs), site.unit_price or 0.0
        processors = sum(site.processors for site in self._explorer.sites)
        deadline, money = self._goal.deadline, self._money_left(now)
        paid = max(0.0, money) / jobs / rate if rate > 0 else math.inf
        rounds = math.ceil(jobs / max(1, processors))
        lasting = math.inf if deadline is None else max(0.0, deadline - now) / rounds
        share = min(paid, lasting)
        return GUESS if math.isinf(share) else max(_SHORTEST, share)

    def _learn(self, outcome: Outcome, site: str, took: float) -> None:
        if outcome.status is Status.SUCCEEDED:
            ran = outcome.end - outcome.start
            size = self._sizes[outcome.task]
            self._estimates.learn(site, size, ran, max(ran, took))
        elif outcome.status is not Status.CANCELLED:
            self._estimates.failed(site)

    # Sending.

    def _send(self, advice: ScheduleAdvice, now: float) -> list[Pilot]:
        batches: dict[str, list[int]] = {}
        money = self._money_left(now)
        for name, given, may_now in zip(self._advised, advice.given, advice.now, strict=True):
            site = self._explorer.site(name)
            if site is None or not may_now or not self._explorer.is_usable(name):
                continue
            while (size_class := self._next_class(given)) is not None and self._has_room(site):
                task = self._backlog.take(size_class)
                in_time = self._is_in_time(task, site, now)
                seconds = self._seconds_for(task, site, money)
                held = self._placed(task, site, now, seconds, money) if in_time else None
                if held is None:
                    self._backlog.add(task)
                    if not in_time:
                        self._advice = None  # it has become too old
                    break
                given[size_class] -= 1
                money -= held.price * seconds
                batches.setdefault(held.name, []).append(task)
                self._probed.add(name)
                if advice.probes.get(name, 0) > 0:
                    advice.probes[name] -= 1
                    self._probing.add(task)
        batches |= self._book(advice, now, money)
        if batches:
            self._keep(self._decision(now, [(t, n) for n, ts in batches.items() for t in ts]))
        return [self._pilot(self._held[name], tasks, now) for name, tasks in batches.items()]

    def _book(self, advice: ScheduleAdvice, now: float, money: float) -> dict[str, list[int]]:
        """Agrees on what is to be booked; tasks by lease, none where an owner has no room then."""
        made: dict[str, list[int]] = {}
        for wanted in advice.bookings:
            site = self._explorer.site(self._advised[wanted.site])
            if site is None or not self._explorer.is_usable(site.name):
                continue
            if not self._backlog.has(wanted.size_class):
                continue
            task = self._backlog.take(wanted.size_class)
            seconds = self._seconds_for(task, site, money)
            agreed = self._trading.buy(site, seconds, now, money, ahead=wanted.begin)
            if not isinstance(agreed, Agreement):
                self._backlog.add(task)
                self._advice = None  # what it counted on is not to be had
                continue
            self._pilots += 1
            name = f"lease-{self._pilots}"
            self._add_booked(name, agreed, task, agreed.start - self._trading.epoch)
            booking = Booking(lease=name, task=task, agreement=agreed)
            self._news.append((BOOKING, msgspec.json.encode(booking).decode()))
            money -= agreed.unit_price * seconds
            made[name] = [task]
        return made

    def _add_booked(self, name: str, agreement: Agreement, task: int, begin: float) -> None:
        until = begin + agreement.seconds
        held = _BoughtProcessor(
            name, agreement.owner, agreement.unit_price, begin, until, begin=begin
        )
        held.tasks.append(task)
        held.agreements[task] = agreement.id
        self._held[name] = self._at[held.site][name] = held
        self._where[task] = name

    def _next_class(self, given: list[int]) -> int | None:
        """The first class of which a site is to get jobs that are still there."""
        for k, count in enumerate(given):
            if count > 0:
                if self._backlog.has(k):
                    return k
                given[k] = 0
        return None

    def _forget(self, name: str) -> _BoughtProcessor | None:
        """A processor is ours no more."""
        held = self._held.pop(name, None)
        if held is not None:
            del self._at[held.site][name]
        return held

    def _has_room(self, site: SiteFacts) -> bool:
        """Whether a site has a processor that could be given a job, now or ahead."""
        now = self._clock()
        there = [held for held in self._at[site.name].values() if not held.is_ahead(now)]
        if sum(bool(held.tasks) for held in there) < site.processors:
            return True
        depth = self._depth(site)
        return any(held.again and len(held.tasks) < depth for held in there)

    def _is_in_time(self, task: int, site: SiteFacts, now: float) -> bool:
        """Whether a job that is sent now should end by the deadline."""
        deadline = self._goal.deadline
        if deadline is None or not self._estimates.is_known:
            return True
        seconds = self._estimates.takes(site.name) * self._sizes[task]
        return now + seconds <= deadline * (1 + _CLOSE)

    def _placed(
        self, task: int, site: SiteFacts, now: float, seconds: float, money: float
    ) -> _BoughtProcessor | None:
        """Buys for a job, and gives it a processor at that price; None where there is none."""
        bought = self._trading.buy(site, seconds, now, money)
        if isinstance(bought, Refusal):
            if self._trading.crowded:
                self._wake = min(self._wake, now + AGAIN)
            return None
        price = (site.unit_price or 0.0) if bought is None else bought.unit_price
        held = self._processor_at(site, price, now)
        if held is None:
            if bought is not None:
                self._trading.over(site.name, bought.id, 0.0)
            return None
        if bought is not None:
            held.agreements[task] = bought.id
        if not held.tasks:
            held.since = held.until = now
        held.until = max(held.until, now) + seconds
        held.tasks.append(task)
        self._where[task] = held.name
        return held

    def _processor_at(self, site: SiteFacts, price: float, now: float) -> _BoughtProcessor | None:
        """Processor that has room: idle, new, or with the fewest jobs before this one."""
        there = [held for held in self._at[site.name].values() if not held.is_ahead(now)]
        usable = [held for held in there if held.again and held.price == price]
        best = min(usable, key=lambda held: len(held.tasks), default=None)
        if best is not None and not best.tasks:
            return best
        if sum(bool(held.tasks) for held in there) < site.processors:
            self._pilots += 1
            made = _BoughtProcessor(f"lease-{self._pilots}", site.name, price, now, now)
            made.again = not site.is_shared
            self._held[made.name] = self._at[site.name][made.name] = made
            return made
        return best if best is not None and len(best.tasks) < self._depth(site) else None

    def _unlearned(self, task: int, site: str) -> None:
        """A job told nothing of how long jobs take: where it was the first, another may go."""
        self._probing.discard(task)
        if not self._estimates.count(site):
            self._probed.discard(site)

    def _pay(self, held: _BoughtProcessor, outcome: Outcome) -> None:
        """A job is no more on a processor; its owner is paid for what it used."""
        held.tasks.remove(outcome.task)
        agreement = held.agreements.pop(outcome.task, None)
        if agreement is not None:
            used = max(0.0, outcome.end - outcome.start)
            self._trading.over(held.site, agreement, used * held.price)

    def _take_back(self, held: _BoughtProcessor, task: int) -> None:
        """A job that was not begun is to be sent again."""
        self._unlearned(task, held.site)
        self._where.pop(task, None)
        held.tasks.remove(task)
        if held.begin > -math.inf:
            self._news.append((BOOKING_OVER, held.name))
        agreement = held.agreements.pop(task, None)
        if agreement is not None:
            self._trading.over(held.site, agreement, 0.0)
        self._backlog.add(task)

    def _depth(self, site: SiteFacts) -> int:
        """Jobs that a processor is given ahead, the one it runs included."""
        if site.is_shared or not self._estimates.is_known:
            return 1
        seconds = self._estimates.takes(site.name) * self._backlog.mean
        return max(1, min(MOST_AHEAD, math.ceil(AHEAD / seconds - _CLOSE)))

    def _seconds_for(self, task: int, site: SiteFacts, money: float) -> float:
        """Seconds to request of a site for a job; where it is not shared, more can be had later."""
        limit = self._tasks[task].wall_limit
        if site.is_shared and limit is not None:
            return limit
        seconds = self._expected(site.name, self._sizes[task])
        if site.is_shared:
            seconds *= 1.0 + self._estimates.quantile * self._estimates.spread
        elif not self._estimates.is_known:
            seconds *= FIRST
        seconds = max(_SHORTEST, seconds, self._asked.get(task, 0.0))
        if not self._estimates.is_known:  # what the money pays, and some for others
            rate = site.unit_price or 0.0
            affordable = money / 2 / rate if rate > 0 else math.inf
            seconds = max(_SHORTEST, min(seconds, affordable))
        return seconds if limit is None else min(seconds, limit)

    def _pilot(self, held: _BoughtProcessor, tasks: Sequence[int], now: float) -> Pilot:
        site = self._explorer.site(held.site)
        assert site is not None
        booked = not math.isinf(held.begin)
        return Pilot(
            name=held.name,
            site=held.site,
            processors=1,
            own=1,
            start=held.begin if booked else None,
            booked=booked,
            duration=held.until - (max(now, held.begin)),
            unit_price=None if site.unit_price is None else held.price,
            fixed_price=site.fixed_price,
            extensible=not site.is_shared,
            tasks=tuple(tasks),
        )

    # What is kept of it.

    def _note(self, situation: SchedulingSnapshot, advice: ScheduleAdvice) -> None:
        """Keeps why each site gets what it gets, where that has changed."""
        weighed = [
            SiteDecision(
                site.name,
                site.price,
                len(site.running),
                site.processors,
                sum(given),
                advice.reasons.get(site.name, ""),
            )
            for site, given in zip(situation.sites, advice.given, strict=True)
        ]
        used = [(w.site, w.given > 0, w.price) for w in weighed]
        self._limits = (situation.time_left, situation.money_left)
        if used != self._used or self._told_at - self._backlog.jobs >= len(self._tasks) / 100:
            self._used, self._told_at = used, self._backlog.jobs
            self._weighed = weighed

    def _decision(self, now: float, sent: Sequence[tuple[int, str]]) -> PlacementDecision:
        weighed, self._weighed = self._weighed, []
        time_left, money_left = self._limits
        return PlacementDecision(
            at=now,
            strategy=self._strategy,
            left=self._backlog.jobs,
            time_left=None if math.isinf(time_left) else time_left,
            money_left=None if math.isinf(money_left) else money_left,
            sites=weighed,
            sent=[(task, self._held[name].site, name) for task, name in sent],
        )

    def _keep(self, decision: PlacementDecision) -> None:
        self._news.append((DECISION, msgspec.json.encode(decision).decode()))

    def _say(self, text: str) -> None:
        self._news.append(("message", text))


def _adviser(strategy: Named, goal: Goal) -> ScheduleAdviser:
    return AdaptiveScheduleAdviser(goal) if strategy == "adaptive" else NimrodAdviser(strategy)


_CLOSE = 1e-6
_SHORTEST = 1e-3
"""Seconds that a job asks for at the least."""
