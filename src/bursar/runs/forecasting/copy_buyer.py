"""Processors bought for copies of tasks that take long, and given back when the race is decided."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from bursar.broker.estimates import start_up, worker_starts
from bursar.dispatch.journal_records import BOUGHT_FOR_COPY, AttemptRecord, CopyPurchase
from bursar.forecasts.stragglers import CopyChoice, IdleWorker, RunningTask, choose_copies
from bursar.model.allocation import Allocation
from bursar.model.campaign import odds_in_words
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.report.tables import amount, span
from bursar.runs.execution import RunExecution
from bursar.runs.forecasting.copy_offers import ChosenCopy, CopyOffer
from bursar.runs.forecasting.live_forecast import ForecastUpdate, LiveForecast
from bursar.runs.forecasting.standing import QueuedRequest, RunStanding, StandingCopy
from bursar.runs.supply import PlannedSupply, Supply
from bursar.sites.protocol import QueuedSite, Site

KINDS = ("local", "batch")
"""Kinds of sites whose workers see the run's folder, which copies need."""

MOST_OFFERS = 12
"""Copies that are judged by one forecast, at most: each is a replay of all draws."""


@dataclass(slots=True)
class CopyBuyer:
    """
    Buys processors for copies where the forecast of the run says that this pays.

    Parameters
    ----------
    live
        Forecast on whose draws copies are judged.
    """

    execution: RunExecution
    supply: Supply
    sites: Mapping[str, Site]
    live: LiveForecast
    currency: str
    _bought: dict[int, tuple[str, CopyChoice]] = field(default_factory=dict)  # by task: lease
    _offers: list[CopyOffer] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)  # tasks whose copies run on what was bought
    _refused: set[str] = field(default_factory=set)  # sites
    _count: int = 0

    @property
    def tasks(self) -> frozenset[int]:
        """Tasks for whose copies processors were bought, and have not been given back."""
        return frozenset(self._bought)

    def awaited(self) -> dict[str, CopyChoice]:
        """Return the copies for which processors were bought, by lease, begun or not."""
        for task, (lease, _) in list(self._bought.items()):
            found = self.supply.run.provision.find(lease)
            if found is None or found.is_over:
                site = self._bought.pop(task)[1].worker
                # A plan that is made anew gives back what has not begun; else the site refused.
                if not self._is_planning and task not in self._begun:
                    self._refused.add(site)
        return dict(self._bought.values())

    def consider(
        self,
        running: Sequence[RunningTask],
        seen: Mapping[str, Sequence[float]],
        *,
        tasks: int,
        copies: int,
        fresh: float,
    ) -> None:
        """
        Have copies judged that are worth it and for which no processor is idle.

        Parameters
        ----------
        running
            Tasks that may have a copy.
        seen, tasks, copies
            See :func:`bursar.forecasts.stragglers.choose_copies`.
        fresh
            See :func:`bursar.forecasts.stragglers.copy_chance`.
        """
        held = self.supply.run.provision.allocations()
        self._offers = (
            []
            if self._is_planning
            else [
                self._offer(choice, site)
                for name, site in self.sites.items()
                if name not in self._refused and self._sells(site)
                for choice in choose_copies(
                    [one for one in running if self._fits(one, site)],
                    [
                        IdleWorker(
                            name=name,
                            site=name,
                            free=site.facts.processors
                            - sum(a.processors for a in held if a.site == name and not a.is_over),
                            speed=site.facts.speed,
                        )
                    ],
                    seen,
                    tasks=tasks,
                    copies=copies,
                )
            ]
        )
        self.live.consider(frozenset(one.choice.task for one in self._offers), fresh)

    async def decide(self, update: ForecastUpdate) -> None:
        """Buy processors for the copy that a forecast says is worth them, if there is one."""
        standing = update.standing
        running = {attempt.task for attempt in standing.running}
        copied = {one.task for one in standing.copies}
        offers = [
            replace(
                one, copy=replace(one.copy, comes=standing.now, queued=_queued(one, standing.now))
            )
            for one in self._offers
            if one.choice.task in (standing.stragglers & running) - copied
        ]
        if not offers:
            return
        chosen = await self.live.copy_to_buy(update, offers[:MOST_OFFERS])
        # It took a while: what was offered may be over, or has been offered again meanwhile.
        if chosen is not None and _place(chosen.offer) in map(_place, self._offers):
            self._buy(chosen, standing)

    def note(self, record: AttemptRecord) -> None:
        """Give the processors back for which the end of an attempt leaves no use."""
        self._offers = [o for o in self._offers if o.choice.task != record.outcome.task]
        lease, _ = self._bought.get(record.outcome.task, ("", None))
        if lease and not self.supply.run.dispatcher.figures.left(lease):
            self.give_back(record.outcome.task)

    def begin(self, task: int) -> None:
        """Note that the copy of a task runs on what was bought for it."""
        self._begun.add(task)

    def give_back(self, task: int) -> None:
        """Give back the processors that were bought for the copy of a task, if there are any."""
        lease, _ = self._bought.pop(task, ("", None))
        if lease:
            self.supply.run.provision.give_up(lease)

    @property
    def _is_planning(self) -> bool:
        return isinstance(self.supply, PlannedSupply) and self.supply.is_planning

    def _sells(self, site: Site) -> bool:
        """Whether processors of a site are bought for copies, at a price that is known."""
        facts = site.facts
        is_priced = facts.unit_price is not None and facts.fixed_price is not None
        has_price = is_priced or self.execution.goal.budget is None
        return facts.kind in KINDS and not facts.buying.negotiates and has_price

    def _fits(self, one: RunningTask, site: Site) -> bool:
        view = site.view()
        is_long = view.longest is not None and one.scale / site.facts.speed > view.longest
        return not is_long and (view.per_node is None or one.processors <= view.per_node)

    def _offer(self, choice: CopyChoice, site: Site) -> CopyOffer:
        facts, task = site.facts, self._task(choice)
        slot = Slot(
            site=facts.name,
            start=0.0,
            duration=math.inf,
            processors=task.processors,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            divisible=True,
            leased=True,
        )
        queued = None
        if isinstance(site, QueuedSite):
            wait = partial(site.queue.wait_forecast, task.processors, choice.left + choice.fresh)
            queued = QueuedRequest(0.0, wait)
        return CopyOffer(
            choice=choice,
            copy=StandingCopy(
                task=choice.task,
                site=facts.name,
                opening=worker_starts(facts),
                bought=slot,
                queued=queued,
            ),
        )

    def _task(self, choice: CopyChoice) -> Task:
        return self.execution.tasks[choice.task]

    def _buy(self, chosen: ChosenCopy, standing: RunStanding) -> None:
        run, choice = self.supply.run, chosen.offer.choice
        if run.is_stopping() or self._is_planning:
            return
        site, task = self.sites[choice.worker], self._task(choice)
        facts, longest = site.facts, site.view().longest
        opening = start_up(facts)
        least = opening + choice.fresh
        seconds = max(chosen.seconds, least)
        if task.wall_limit is not None:
            seconds = min(seconds, opening + task.wall_limit)
        if longest is not None:
            seconds = min(seconds, longest)
        paid = _seconds_paid(standing, chosen.offer)
        if paid < min(seconds, least):
            return
        seconds = min(seconds, paid)
        # After all numbers of earlier lives of the run, of which names are left in the ledger.
        self._count = max(self._count, run.state.pilots) + 1
        allocation = Allocation(
            name=f"copy-{self._count}",
            site=facts.name,
            processors=task.processors,
            duration=seconds,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            copy_of=choice.task,
        )
        limited = self.execution.goal.deadline is not None
        bought = CopyPurchase(
            task=choice.task,
            lease=allocation.name,
            site=facts.name,
            processors=task.processors,
            seconds=seconds,
            odds=chosen.before.odds if limited else None,
            odds_with=chosen.after.odds if limited else None,
            end=chosen.before.end,
            end_with=chosen.after.end,
        )
        # Noted before the lease is: a bill that knows the lease knows what it was bought for.
        self.execution.note(BOUGHT_FOR_COPY, msgspec.json.encode(bought).decode())
        self.execution.notify(self._words(task, bought))
        self._bought[choice.task] = (allocation.name, choice)
        self._offers = []
        run.bindings.site_of[allocation.name] = facts.name
        run.dispatcher.attach(allocation.name, for_copies=True)
        run.provision.request(allocation)

    def _words(self, task: Task, bought: CopyPurchase) -> str:
        """Return the line for people on a purchase."""
        facts = self.sites[bought.site].facts
        most = f"for {span(bought.seconds)} at most"
        if facts.unit_price is not None:
            price = bought.processors * bought.seconds * facts.unit_price
            most = f"{most} ({amount(price + (facts.fixed_price or 0.0), self.currency)})"
        what = "a processor" if task.processors == 1 else f"{task.processors} processors"
        if bought.odds is None or bought.odds_with is None:
            gain = f"the run should end after {span(bought.end_with)}, not {span(bought.end)}"
        else:
            before, after = odds_in_words(bought.odds), odds_in_words(bought.odds_with)
            gain = f"the odds of the deadline rise from {before} to {after}"
        return f"{what} at {bought.site} bought for a copy of {task.id}, {most}: {gain}"


def _seconds_paid(standing: RunStanding, offer: CopyOffer) -> float:
    """
    Return for how long what is left of the budget pays a copy beside all that the run holds.

    A copy that took all the money would end the attempt that it races against.
    """
    slots = [one.slot for one in standing.leases.values()]
    bought, budget = offer.copy.bought, standing.goal.budget
    assert bought is not None
    rate = sum(one.processors * (one.unit_price or 0.0) for one in (*slots, bought))
    if budget is None or not rate:
        return math.inf
    left: float = budget - standing.spent - (bought.fixed_price or 0.0)
    return max(left, 0.0) / rate


def _place(offer: CopyOffer) -> tuple[int, str]:
    """Return the task and the site of a copy."""
    return offer.choice.task, offer.choice.worker


def _queued(offer: CopyOffer, now: float) -> QueuedRequest | None:
    request = offer.copy.queued
    return None if request is None else request._replace(asked=now)
