"""Bring a bag of tasks to sites job by job, by deadline and budget (Nimrod/G)."""

import math
from collections.abc import Sequence
from dataclasses import replace

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
from bursar.broker.decision_reasons import (
    BOOKING,
    BOOKING_OVER,
    DECISION,
    Booking,
    DecisionReasons,
)
from bursar.broker.dynamic_scheduler import Ended, ResumeState, SchedulerEvent
from bursar.broker.estimates import GUESS, GridExplorer, RuntimeEstimates, even_share, sizes_of
from bursar.broker.feasibility import GoalFeasibility, assess_feasibility
from bursar.broker.held_pilots import AHEAD, MOST_AHEAD, BoughtProcessor, BoughtProcessors
from bursar.broker.strategies import Named, OutOfReach
from bursar.broker.trading import Ahead, CampaignTrader
from bursar.market.agreement import Agreement
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Retry
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task

FIRST = 2.0
"""Even shares of the goal, at least, for which a first job's processor is held."""

AGAIN = 1.0
"""Seconds until a site whose processors other campaigns hold is asked again."""


class EconomyScheduler:
    """
    Sends jobs to sites by an adviser's shares, as fast as processors come free.

    At each end of a job the rest is distributed anew; only as many jobs as processors are free
    are sent, so that all others may still go elsewhere.

    Parameters
    ----------
    tasks
        Independent tasks, each of one processor.
    strategy
        Name of the strategy: ``"adaptive"``, our own, or one of the papers'.
    trading
        Sites' prices, and agreements with sites; None: the prices of the sites' facts throughout.
    out_of_reach
        Policy once not all jobs can be done: do as many as fit, or start nothing more.
    retry
        Rules for retrying a job that failed; None: the default number of attempts, without a wait.
    spare
        Share of the time left that is kept for jobs that take longer than estimated, for as long as
        all jobs fit into the rest of the time.
    explains
        Whether decisions and what has come of the goal are told as events; they cost half the time.
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
        spare: float = 0.0,
        explains: bool = True,
    ) -> None:
        self._tasks = tasks
        self._facts = {site.name: site for site in sites}
        self._goal = goal
        self._strategy: Named = strategy
        self._trading = trading or CampaignTrader(sites)
        self._is_begun = self._trading.is_dated  # with the moment that prices count from
        self._rule: OutOfReach = out_of_reach
        self._spare, self._explains = spare, explains
        self._retry = retry or Retry(backoff=0.0)
        self._failures: dict[int, int] = {}
        self._adviser = _adviser(strategy, goal)
        self._sizes, known = sizes_of(task.runtime for task in tasks)
        self.estimates = RuntimeEstimates({s.name: s.speed for s in sites}, known)
        self._explorer = GridExplorer(sites, self.estimates)
        self._backlog = Backlog(self._sizes, by_size=self._adviser.by_size)
        self._bought = BoughtProcessors([site.name for site in sites])
        self._probed: set[str] = set()
        self._asked: dict[int, float] = {}
        self._probing: set[int] = set()  # jobs that were sent to learn from them
        self._ended_since = 0
        self._advice: ScheduleAdvice | None = None
        self._wake = math.inf
        self._verdict = ""
        self._feasible: bool | None = None
        self._short = False
        self._events: list[SchedulerEvent] = []
        self._advised: list[str] = []
        self._reasons = DecisionReasons(len(tasks))
        self._limits = (math.inf, math.inf)  # seconds and currency units left

    def begin(self, past: ResumeState) -> list[Allocation]:
        """Return pilots for tasks that can start at once."""
        self._take_up(past)
        kept = [self._pilot(held, held.tasks, held.begin) for held in self._bought]
        return [*kept, *self._decide()]

    def outlook(self, past: ResumeState) -> GoalFeasibility | None:
        """Take up a run without sending anything; return whether its goal can be met."""
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
        self._bought.leases = past.pilots
        if not self._is_begun:
            self._trading.epoch = past.epoch
        for outcome, site in past.attempts:
            if self._explorer.site(site) is not None:
                self._learn(outcome, site, outcome.end - outcome.start)
                if self.estimates.count(site):  # a job that was stopped has told nothing
                    self._probed.add(site)
        for text in past.bookings:
            self._keep_booking(msgspec.json.decode(text, type=Booking), past)
        for task in range(len(self._tasks)):
            if task not in past.ended and not self._bought.has(task):
                self._backlog.add(task)

    def _keep_booking(self, booking: Booking, past: ResumeState) -> None:
        """Take over a booking of an earlier incarnation if the booked job and site still exist."""
        task, agreement = booking.task, booking.agreement
        site = self._explorer.site(agreement.owner)
        if site is None or task in past.ended or self._bought.has(task):
            return
        self._trading.restore(site.name, agreement)
        begin = agreement.start - past.epoch
        self._add_booked(booking.lease, agreement, task, begin)

    def seconds_of(self, task: int, site: str) -> float:
        """
        Estimate a job's seconds at a site from the stated runtime and earlier jobs there.

        Raises
        ------
        ValueError
            When nothing is known of how long jobs take.
        """
        return self.estimates.runs(site) * self._sizes[task]

    def ended(self, outcomes: Sequence[Ended]) -> list[Allocation]:
        """Return pilots for jobs that are sent after attempts that ended together."""
        for outcome, final in outcomes:
            self._take_in(outcome)
            if not final:
                self._again(outcome)
        self._ended_since += len(outcomes)
        self._short = False
        return self._decide()

    def _again(self, outcome: Outcome) -> None:
        """Queue a job for another attempt, holding no processor during the retry delay."""
        wait = 0.0
        if outcome.status is not Status.CANCELLED:
            self._failures[outcome.task] = failures = self._failures.get(outcome.task, 0) + 1
            wait = self._retry.wait_before(failures + 1)
        if wait > 0:
            self._backlog.add_later(outcome.task, self._clock() + wait)
        else:
            self._backlog.add(outcome.task)

    def _take_in(self, outcome: Outcome) -> None:
        processor = self._bought.take_off(outcome.task)
        if processor is None:
            return
        now = self._clock()
        self._pay(processor, outcome)
        self._learn(outcome, processor.site, now - processor.since)
        processor.since = now
        self._explorer.worked(processor.site)
        if outcome.status in (Status.LOST, Status.CANCELLED):
            processor.again = False  # its lease may end under the next job, too
            ran = outcome.end - outcome.start
            self._asked[outcome.task] = max(self._asked.get(outcome.task, 0.0), 2 * ran)
        if outcome.status is not Status.SUCCEEDED:
            self._unlearned(outcome.task, processor.site)

    def holds(self, lease: str) -> bool:
        """Whether a job is on the pilot, by the events reported so far."""
        return lease in self._bought

    def lost(self, pilot: Allocation, reason: str) -> list[Allocation] | None:
        """Take back the lost pilot's jobs; a site that fails repeatedly gets no more."""
        processor = self._bought.forget(pilot.name)
        if processor is None:
            return []
        for task in tuple(processor.tasks):
            self._take_back(processor, task)
        if self._explorer.failed(processor.site):
            self._notify(f"{processor.site} is left out: {reason}")
        if not self._explorer.sites:
            return None
        self._advice = None  # made for processors that are gone
        return self._decide()

    def short(self, pilot: Allocation) -> None:
        """Take back the jobs of an unaffordable pilot until another pilot has ended."""
        processor = self._bought.get(pilot.name)
        if processor is None:
            return
        for task in pilot.tasks:
            self._take_back(processor, task)
        if not processor.tasks:
            self._bought.forget(pilot.name)
        self._short = True  # no more is sent until an end frees money

    def amend(self, goal: Goal) -> list[Allocation]:
        """Take in a new goal."""
        self._goal = goal
        self._adviser = _adviser(self._strategy, goal)
        self._give_back_late()
        self._verdict, self._advice, self._short = "", None, False
        return self._decide()

    def _give_back_late(self) -> None:
        """Cancel bookings that would end after the deadline."""
        now = self._clock()
        for held in self._bought:
            if held.is_ahead(now) and held.until > (self._goal.deadline or math.inf):
                for task in tuple(held.tasks):
                    self._take_back(held, task)
                self._bought.forget(held.name)

    def poll(self) -> list[Allocation]:
        """Decide anew: a price has changed, or jobs take longer than was estimated."""
        now = self._clock()
        self._backlog.take_up(now)
        if self._wake <= now:
            self._wake = math.inf
        self._advice, self._short = None, False
        return self._decide()

    @property
    def wake(self) -> float:
        """Time of the next :meth:`poll`, seconds since the begin; infinite for never."""
        return min(self._wake, self._backlog.next_up)

    def routed(self, pilot: Allocation) -> Allocation:
        """Return the pilot unchanged: this scheduler chose the site when it planned the pilot."""
        return pilot

    def take_events(self) -> list[SchedulerEvent]:
        """Decisions, negotiations and other events since the last call."""
        events, self._events = [*self._trading.take_deals(), *self._events], []
        return events

    @property
    def verdict(self) -> str:
        """Reason why no job is sent any more, though jobs are left; empty while some may be."""
        if self._verdict:
            return self._verdict
        if not self._backlog.jobs or self._bought.are_busy or not math.isinf(self.wake):
            return ""
        return (
            f"{self._backlog.jobs} of {len(self._tasks)} jobs do not fit into what is left of the "
            "deadline and the budget"
        )

    # Deciding.

    def _decide(self) -> list[Allocation]:
        """Return pilots for the jobs that are sent now."""
        now = self._clock()
        sent: list[Allocation] = []
        if self._backlog.jobs and not self._verdict and not self._short:
            if self._advice is None or self._is_stale():
                self._advise(now)
            if self._advice is not None and not self._verdict:
                sent = self._send(self._advice, now)
        for name in [held.name for held in self._bought if not held.tasks]:
            self._bought.forget(name)  # an idle processor costs money: it goes back
        return sent

    def _is_stale(self) -> bool:
        """Return whether so much has happened that the jobs left are to be given out anew."""
        return not self._bought.are_busy or self._ended_since >= max(1, self._backlog.jobs // 100)

    def _advise(self, now: float) -> None:
        situation = self._situation(now)
        self._ended_since = 0
        advice = self._adviser.advise(situation)
        if self._spare:
            # The spare time is there to be used: only where no job has to wait for it.
            left = situation.time_left * (1 - self._spare)
            sooner = self._adviser.advise(replace(situation, time_left=left))
            if sooner.jobs >= advice.jobs:
                advice = sooner
        is_crossed = not (advice.feasible and self._feasible)
        if is_crossed and (self._explains or self._rule == "refuse"):
            self._judge(situation, now)
        if self._verdict:
            return
        self._advice = advice
        changes = [
            site.prices[0][1]
            for site in situation.sites
            if situation.pays_to_wait(site, self._expected(site.name, situation.mean))
        ]
        self._wake = now + min([advice.wake, *changes])
        self._advised = [site.name for site in situation.sites]
        self._limits = (situation.time_left, situation.money_left)
        if self._explains:
            self._reasons.note(situation, advice, self._backlog.jobs)

    def _judge(self, situation: SchedulingSnapshot, now: float) -> None:
        outlook = assess_feasibility(situation, now, self._spent() + self._bought.promised(now))
        if outlook is None or outlook.feasible is self._feasible:
            return
        before, self._feasible = self._feasible, outlook.feasible
        if outlook.feasible and before is None:
            return
        self._notify(str(outlook))
        if not outlook.feasible and self._rule == "refuse":
            self._verdict = f"out of reach: {outlook}"

    def _situation(self, now: float) -> SchedulingSnapshot:
        running: dict[str, list[tuple[float, float]]] = {site: [] for site in self._facts}
        for held in self._bought:
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
                        for held in self._bought.ahead_at(site.name, now)
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
            estimates=self.estimates,
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
        if self._strategy != "adaptive" or site.is_shared or not self.estimates.is_known:
            return ()
        return self._trading.bookable(site, now, self._expected(site.name, mean))

    def _money_left(self, now: float) -> float:
        """Budget less what is spent and promised; infinite for no budget."""
        budget = self._goal.budget
        return math.inf if budget is None else budget - self._spent() - self._bought.promised(now)

    def _expected(self, site: str, size: float) -> float:
        """Return the seconds that a job should run; a guess where nothing is known."""
        facts = self._explorer.site(site)
        if not self.estimates.is_known:
            return GUESS if facts is None else self._first_guess(facts)
        shared = facts is not None and facts.is_shared
        return (self.estimates.runs(site) if shared else self.estimates.takes(site)) * size

    def _first_guess(self, site: SiteFacts) -> float:
        now, deadline = self._clock(), self._goal.deadline
        return even_share(
            jobs=max(1, self._backlog.jobs),
            processors=max(1, sum(site.processors for site in self._explorer.sites)),
            time_left=math.inf if deadline is None else max(0.0, deadline - now),
            money_left=max(0.0, self._money_left(now)),
            price=site.unit_price or 0.0,
        )

    def _learn(self, outcome: Outcome, site: str, took: float) -> None:
        if outcome.status is Status.SUCCEEDED:
            ran = outcome.end - outcome.start
            size = self._sizes[outcome.task]
            self.estimates.learn(site, size, ran, max(ran, took))
        elif outcome.status is not Status.CANCELLED:
            self.estimates.failed(site)

    # Sending.

    def _send(self, advice: ScheduleAdvice, now: float) -> list[Allocation]:
        batches: dict[str, list[int]] = {}
        money = self._money_left(now)
        for name, given, may_now in zip(self._advised, advice.given, advice.now, strict=True):
            site = self._explorer.site(name)
            if site is None or not may_now or not self._explorer.is_usable(name):
                continue
            while (size_class := self._backlog.next_class(given)) is not None:
                if not self._bought.has_room(site, now, self._depth(site)):
                    break
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
        if batches and self._explains:
            self._keep(now, [(t, n) for n, ts in batches.items() for t in ts])
        return [self._pilot(self._bought[name], tasks, now) for name, tasks in batches.items()]

    def _book(self, advice: ScheduleAdvice, now: float, money: float) -> dict[str, list[int]]:
        """Agree on what is to be booked; return tasks by lease, none where an owner has no room."""
        made: dict[str, list[int]] = {}
        for wanted in advice.bookings:
            site = self._explorer.site(self._advised[wanted.site])
            if site is None or not self._explorer.is_usable(site.name):
                continue
            if not self._backlog.has(wanted.size_class):
                continue
            task = self._backlog.take(wanted.size_class)
            seconds = self._seconds_for(task, site, money)
            agreed = self._trading.buy(site, seconds, now, money, ahead=wanted.begin, task=task)
            if not isinstance(agreed, Agreement):
                self._backlog.add(task)
                self._advice = None  # what it counted on is not to be had
                continue
            name = self._bought.new_lease()
            self._trading.bought_for(agreed.id, name)
            self._add_booked(name, agreed, task, agreed.start - self._trading.epoch)
            booking = Booking(lease=name, task=task, agreement=agreed)
            self._events.append((BOOKING, msgspec.json.encode(booking).decode()))
            money -= agreed.unit_price * seconds
            made[name] = [task]
        return made

    def _add_booked(self, name: str, agreement: Agreement, task: int, begin: float) -> None:
        until = begin + agreement.seconds  # both in seconds since the begin of the run
        held = BoughtProcessor(
            name, agreement.owner, agreement.unit_price, begin, until, begin=begin
        )
        held.agreements[task] = agreement.id
        self._bought.add(held)
        self._bought.put(task, held)

    def _is_in_time(self, task: int, site: SiteFacts, now: float) -> bool:
        """Return whether a job that is sent now should end by the deadline."""
        deadline = self._goal.deadline
        if deadline is None or not self.estimates.is_known:
            return True
        seconds = self.estimates.takes(site.name) * self._sizes[task]
        return now + seconds <= deadline * (1 + _CLOSE)

    def _placed(
        self, task: int, site: SiteFacts, now: float, seconds: float, money: float
    ) -> BoughtProcessor | None:
        """Buy time for a job and assign a processor; return None if either is not to be had."""
        bought = self._trading.buy(site, seconds, now, money, task=task)
        if isinstance(bought, Refusal):
            if self._trading.crowded:
                self._wake = min(self._wake, now + AGAIN)
            elif self._trading.too_dear:
                self._refused(site.name, bought.reason)
            return None
        price = (site.unit_price or 0.0) if bought is None else bought.unit_price
        held = self._bought.processor_at(site, price, seconds, now, self._depth(site))
        if held is None:
            if bought is not None:
                self._trading.over(site.name, bought.id, 0.0)  # not used, not paid
            return None
        if bought is not None:
            held.agreements[task] = bought.id
            self._trading.bought_for(bought.id, held.name)
        if not held.tasks:
            held.since = held.until = now
        held.until = max(held.until, now) + seconds
        self._bought.put(task, held)
        return held

    def _refused(self, site: str, reason: str) -> None:
        """Leave a site out whose owner repeatedly does not come down to what we pay."""
        self._advice = None  # what it counted on is not to be had
        if self._explorer.failed(site):
            self._notify(f"{site} is left out: {reason}")
        if not self._explorer.sites:
            self._verdict = f"no owner sells within the limits: {reason}"

    def _unlearned(self, task: int, site: str) -> None:
        """Let another job be the first at a site whose first told nothing of how long jobs take."""
        self._probing.discard(task)
        if not self.estimates.count(site):
            self._probed.discard(site)

    def _pay(self, held: BoughtProcessor, outcome: Outcome) -> None:
        """Take an ended job off its processor, and pay the owner for the job's use."""
        held.tasks.remove(outcome.task)
        agreement = held.agreements.pop(outcome.task, None)
        if agreement is not None:
            used = max(0.0, outcome.end - outcome.start)
            self._trading.over(held.site, agreement, used * held.price)

    def _take_back(self, held: BoughtProcessor, task: int) -> None:
        """Return a job that did not begin to the backlog."""
        self._unlearned(task, held.site)
        self._bought.take_off(task)
        held.tasks.remove(task)
        if held.begin > -math.inf:
            self._events.append((BOOKING_OVER, held.name))
        agreement = held.agreements.pop(task, None)
        if agreement is not None:
            self._trading.over(held.site, agreement, 0.0)
        self._backlog.add(task)

    def _depth(self, site: SiteFacts) -> int:
        """Return the most jobs given to one processor, the running job included."""
        if site.is_shared or not self.estimates.is_known:
            return 1
        seconds = self.estimates.takes(site.name) * self._backlog.mean
        return max(1, min(MOST_AHEAD, math.ceil(AHEAD / seconds - _CLOSE)))

    def _seconds_for(self, task: int, site: SiteFacts, money: float) -> float:
        """Return seconds to request for a job; at sites of our own, more can be had later."""
        limit = self._tasks[task].wall_limit
        if site.is_shared and limit is not None:
            return limit
        seconds = self._expected(site.name, self._sizes[task])
        if site.is_shared:  # a queue does not prolong a job
            seconds *= 1.0 + self.estimates.quantile * self.estimates.spread
        elif not self.estimates.is_known:
            seconds *= FIRST
        seconds = max(_SHORTEST, seconds, self._asked.get(task, 0.0))
        if not self.estimates.is_known:  # what the money pays, and some for others
            rate = site.unit_price or 0.0
            affordable = money / 2 / rate if rate > 0 else math.inf
            seconds = max(_SHORTEST, min(seconds, affordable))
        return seconds if limit is None else min(seconds, limit)

    def _pilot(self, held: BoughtProcessor, tasks: Sequence[int], now: float) -> Allocation:
        return held.pilot(self._facts[held.site], tasks, now)

    # What is kept of it.

    def _keep(self, now: float, sent: Sequence[tuple[int, str]]) -> None:
        sites = [(task, self._bought[name].site, name) for task, name in sent]
        text = self._reasons.decision(now, self._strategy, self._backlog.jobs, self._limits, sites)
        self._events.append((DECISION, text))

    def _notify(self, text: str) -> None:
        self._events.append(("message", text))


def _adviser(strategy: Named, goal: Goal) -> ScheduleAdviser:
    return AdaptiveScheduleAdviser(goal) if strategy == "adaptive" else NimrodAdviser(strategy)


_CLOSE = 1e-6
_SHORTEST = 1e-3
"""Seconds that a job asks for at the least."""
