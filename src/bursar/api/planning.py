"""
Planning of a campaign on given sites, of the rest of a run, and of goals relative to what is
possible.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bursar.api.known_campaign import ForeseenCampaign, foresee
from bursar.api.quote import Quote
from bursar.api.site_resolution import RUNS, Sites, on_offer, resolve_sites, with_learned
from bursar.broker.estimates import sizes_of
from bursar.broker.packing import JobPacking, JobSizeClasses, ResourcePool
from bursar.broker.policy_choice import SupplyPolicy, suitable_sites
from bursar.formats.units import parse_amount, parse_deadline
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError, SiteError
from bursar.model.plan import Placement, Plan
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.policy import Method, OnProgress, Scheduler, SearchLimits
from bursar.runs.recording.user_history import NOWHERE

if TYPE_CHECKING:
    from bursar.api.plan_forecasts import PlanQueues
    from bursar.planning.front import ParetoFront
    from bursar.planning.plan_choice import PlanChoice
    from bursar.runs.supply import Replan, RunSnapshot

# Planning of a campaign on given sites, which ends in a quote.


def plan(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    deadline: str | float | None = None,
    budget: str | float | None = None,
    trade_off: float | None = None,
    processors: int | None = None,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    whole: bool = False,
    limits: SearchLimits | None = None,
    on_progress: OnProgress | None = None,
    moment: float | None = None,
    history: str | Path | History | ForeseenCampaign | None = None,
    runs: str | Path = RUNS,
    is_pool: bool = True,
) -> Quote:
    """
    Plan a campaign: time against cost, before anything starts.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    deadline, budget, trade_off
        Take the place of the campaign's own; see :func:`bursar.run`.
    processors
        Buy exactly so many (of the lease that varies); None: try many.
    method, scheduler
        How purchases are searched, and how tasks are placed on them; see
        :mod:`bursar.planning.methods` and :mod:`bursar.planning.schedulers`.
    whole
        Pay slots of a plan though nothing runs in them (HPDC'07's accounting).
    limits
        How far to search: seed, population, generations, evaluations, time.
    on_progress
        Called with the front so far.
    moment
        When the plan begins, seconds since the epoch: owners' prices follow it. None: now; 0
        where a site is simulated.
    history
        History of ended tasks, or its file, from which run times and the odds of each plan are
        learned; ``"none"``: run times are as the campaign states them; None: as the variable
        ``BURSAR_HISTORY`` says, else the user's. Or what was
        learned of the campaign already.
    runs
        Folder of the runs, with what is known of waits in batch queues.
    is_pool
        Whether a pool gets the processors of batch queues; a plan asks for each purchase apart.

    Returns
    -------
    Quote
        The trade-off curve, its lower bounds, and the plan the goal picks.
        In a notebook it shows itself as a chart.

    Raises
    ------
    InputError
        When a file is wrong, no plan holds every task, or no site meets what all require.
    """
    from bursar.api.needs import PlanNeeds
    from bursar.planning.plan_choice import choose_plan
    from bursar.planning.trade_off_solver import trade_off as solve_trade_off

    campaign = with_goal(
        resolve_campaign(campaign), deadline=deadline, budget=budget, trade_off=trade_off
    )
    stated = resolve_sites(sites, campaign)
    facts = suitable_sites(campaign, on_offer(with_learned(stated, Path(runs))))
    if processors is not None:
        _check_processors(processors, facts)
    currency = _currency(campaign, facts)
    seen = foresee(campaign, facts, history)
    campaign = seen.campaign
    queues = None
    if seen.known is not None:
        queues = asked_queues(stated, {site.name for site in facts}, Path(runs), is_pool)
    quotes: list[Quote] = []
    # Prices depend on when processors are bought: each way to book is planned by itself, and the
    # best kept.
    for offered in _offered(facts, moment):
        try:
            front = solve_trade_off(
                campaign.workflow,
                offered,
                method=method,
                scheduler=scheduler,
                goal=campaign.goal,
                processors=None if processors is None else (processors,),
                currency=currency,
                whole=whole,
                limits=limits,
                on_progress=on_progress,
            )
        except InputError:
            if not quotes:
                raise
            continue  # what begins later need not hold every task
        forecasts = None
        if seen.known is not None:
            from bursar.api.plan_forecasts import NO_QUEUES, PlanForecasts  # late: kernels

            forecasts = PlanForecasts(
                front, campaign.goal, seen.known, seen.scores, queues or NO_QUEUES
            )
        choice = choose_plan(front, campaign.goal, forecasts or PlanNeeds(front, campaign.goal))
        quote = _priced(campaign, front, choice)
        if forecasts is not None:
            quote = replace(quote, forecasts=forecasts, foreseen=seen)
        quotes.append(quote)
    return min(quotes, key=_badness(quotes, campaign.goal))


def asked_queues(
    stated: Sequence[SiteFacts], used: Set[str], runs: Path, is_pool: bool
) -> "PlanQueues | None":
    """Ask the batch queues among the sites how long requests would wait; None: there is none."""
    # Stated slots are agreed on: they do not queue.
    queued = [site for site in stated if site.name in used and site.batch and site.slots is None]
    if not queued:
        return None
    from bursar.api.plan_forecasts import PlanQueues
    from bursar.api.queues import queue_waits

    return PlanQueues(waits=queue_waits(queued, runs), is_pool=is_pool)


def with_goal(
    campaign: Campaign,
    *,
    deadline: str | float | None = None,
    budget: str | float | None = None,
    trade_off: float | None = None,
) -> Campaign:
    """
    Return the campaign with those limits in place of its own that are not None.

    Parameters
    ----------
    deadline
        ``"33m"``, seconds, or a moment, ``"2026-11-28 18:00"``.
    budget
        ``"40 SU"``, or currency units.
    trade_off
        From 0, the fastest plan, to 1, the cheapest.

    Raises
    ------
    InputError
        Naming the limit that is wrong.
    """
    changes: dict[str, Any] = {}
    where = ""
    try:
        if deadline is not None:
            where = "deadline"
            changes["deadline"] = parse_deadline(deadline, time.time())
            Goal(**changes)
        if budget is not None:
            where = "budget"
            changes["budget"], changes["currency"] = parse_amount(budget)
            Goal(**changes)
        if trade_off is not None:
            where = "trade_off"
            changes["trade_off"] = trade_off
            Goal(**changes)
    except InputError as error:
        raise error.within(where) from None
    except (TypeError, ValueError) as error:
        raise InputError(str(error), where=where) from None
    return replace(campaign, goal=replace(campaign.goal, **changes)) if changes else campaign


def _priced(campaign: Campaign, front: "ParetoFront", choice: "PlanChoice") -> Quote:
    """Return the quote of a choice, with the data that its plan carries where they have a price."""
    quote = _with_base(Quote.of_front(campaign, front, choice, SupplyPolicy()))
    for_data = sum(one.cost for one in quote.data())
    goal = campaign.goal
    if not for_data or quote.chosen is None or quote.cost is None:
        return quote
    if goal.budget is not None and quote.cost + for_data > goal.budget:
        from bursar.api.needs import PlanNeeds
        from bursar.planning.plan_choice import choose_plan

        # Another plan of the curve may leave enough for the data; where it carries more, none does.
        needed = for_data
        less = replace(goal, budget=max(0.0, goal.budget - needed))
        choice = choose_plan(front, less, PlanNeeds(front, less))
        quote = _with_base(Quote.of_front(campaign, front, choice, SupplyPolicy()))
        for_data = sum(one.cost for one in quote.data())
        if quote.chosen is None or (quote.cost or 0.0) + for_data > goal.budget:
            reason = (
                f"what tasks bring to machines and send back costs {needed:.6g} "
                f"{quote.currency}, and no plan leaves that much of the budget"
            )
            choice = replace(choice, option=None, plan=None, reason=reason, counter_offers=())
            return Quote.of_front(campaign, front, choice, SupplyPolicy())
    chosen, cost = quote.chosen, None if quote.cost is None else quote.cost + for_data
    assert chosen is not None
    return replace(quote, cost=cost, chosen=replace(chosen, cost=cost))


def _with_base(quote: Quote) -> Quote:
    """Return a quote whose plan buys the base of spot machines on demand, if money allows."""
    sites = () if quote.trade_off is None else quote.trade_off[0].sites
    if quote.chosen is None or all(site.cloud is None for site in sites):
        return quote
    from bursar.sites.cloud.machine_choice import with_base_on_demand  # late: few are clouds

    mixed, budget = with_base_on_demand(quote.chosen, sites), quote.campaign.goal.budget
    if mixed.cost is not None and budget is not None and mixed.cost > budget:
        return quote
    return replace(quote, chosen=mixed, cost=mixed.cost)


def _offered(facts: tuple[SiteFacts, ...], moment: float | None) -> Iterator[tuple[SiteFacts, ...]]:
    """Yield the sites at present prices, once for each way to book processors ahead."""
    if all(site.pricing is None for site in facts):
        yield facts
        return
    # Most sites have fixed prices; what asks for others takes a tenth of a short plan to load.
    from bursar.broker.trading import advance_start_options, price_sites

    for ahead in advance_start_options(facts):
        if moment is None and not any(site.kind == "simulated" for site in facts):
            yield _at_prices_now(facts, ahead)
        else:
            yield price_sites(facts, moment or 0.0, ahead=ahead)


def _badness(quotes: Sequence[Quote], goal: Goal) -> Callable[[Quote], tuple[bool, float, float]]:
    """Return a sort key that orders quotes by the goal; quotes without a plan come last."""
    if len(quotes) == 1:
        return lambda quote: (False, 0.0, 0.0)
    plans = [quote.chosen for quote in quotes if quote.chosen is not None]
    dearest = max((plan.cost or 0.0 for plan in plans), default=0.0) or 1.0
    longest = max((plan.makespan or 0.0 for plan in plans), default=0.0) or 1.0
    weight = goal.trade_off
    if weight is None:
        weight = 0.0 if goal.deadline is None else 1.0

    def order(quote: Quote) -> tuple[bool, float, float]:
        plan = quote.chosen
        if plan is None or plan.cost is None or plan.makespan is None:
            return plan is None, math.inf, math.inf
        cost, time = plan.cost / dearest, plan.makespan / longest
        # Rounded, so that noise in the last digits does not decide between equals; the sum does.
        return False, round(weight * cost + (1 - weight) * time, 9), cost + time

    return order


def _at_prices_now(
    facts: tuple[SiteFacts, ...], ahead: Mapping[str, float]
) -> tuple[SiteFacts, ...]:
    """Return the sites at the prices that owners set by the use and payments of all runs here."""
    from bursar.broker.trading import price_sites
    from bursar.sites.owners import known_owners

    with known_owners() as owners:
        return price_sites(facts, time.time(), owners, ahead)


def resolve_campaign(campaign: Campaign | str | Path) -> Campaign:
    """Return the campaign that a caller's argument stands for."""
    if isinstance(campaign, Campaign):
        return campaign
    from bursar.formats.campaign_file import read_campaign

    return read_campaign(Path(campaign))


def _check_processors(processors: int, sites: Sequence[SiteFacts]) -> None:
    most = max(site.processors for site in sites)
    if not 1 <= processors <= most:
        raise InputError(
            f"processors must be between 1 and {most}, the most a site has, got {processors}"
        )


def _currency(campaign: Campaign, sites: Sequence[SiteFacts]) -> str | None:
    wanted = campaign.goal.currency
    known = sorted({site.currency for site in sites})
    if wanted is not None and wanted not in known:
        raise InputError(
            f"the budget is in {wanted}, the sites ask {' and '.join(known)}",
            where="budget",
            hint=f"state the budget in {known[0]}",
        )
    return wanted


# Planning of the rest of a run.

_LONGER = 2.0
"""Expected duration of a task that was cut off, as a multiple of the work done by then."""


def replanner(
    campaign: Campaign,
    offers: Callable[[], Sequence[SiteFacts]],
    *,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
) -> "Replan":
    """
    Return a function that plans the rest of a run on present offers, within the rest of the goal.

    Parameters
    ----------
    campaign
        The whole campaign.
    offers
        Returns the sites with present offers; starts are seconds from now.
    method, scheduler
        See :func:`bursar.plan`.
    """

    import asyncio  # late: only a run that goes on needs a loop

    async def replan(snapshot: "RunSnapshot") -> Plan:
        tasks = campaign.workflow.tasks
        left = [i for i in range(len(tasks)) if i not in snapshot.ended]
        workflow = workflow_of(tasks, left, snapshot.cut, snapshot.stretch)
        rest = replace(campaign, workflow=workflow, goal=_goal_left(snapshot), recording=None)
        # In a thread: planning takes seconds, and workers want answers meanwhile.
        proposed = await asyncio.to_thread(
            plan,
            rest,
            _present(offers(), snapshot.offers),
            method=method,
            scheduler=scheduler,
            history=NOWHERE,
        )
        # A run that cannot meet its goal any more goes on as well as it can.
        chosen = proposed.chosen or proposed.nearest()
        return renumbered(chosen, left)

    return replan


def renumbered(plan: Plan, left: Sequence[int]) -> Plan:
    """Return a plan of the remaining tasks with the tasks' numbers in the whole campaign."""
    placements = tuple(
        Placement(left[p.task], p.site, p.start, p.finish, p.processors) for p in plan.placements
    )
    return replace(plan, placements=placements)


def _present(
    sites: Sequence[SiteFacts], offers: Mapping[str, Sequence[Slot]]
) -> tuple[SiteFacts, ...]:
    """Return the sites with their present offers, without those that have nothing left."""
    found = tuple(
        replace(site, slots=tuple(offers[site.name])) if site.name in offers else site
        for site in sites
        if offers.get(site.name, True)
    )
    if not found:
        raise SiteError(f"{', '.join(offers)}: no machine is left to be bought", transient=True)
    return found


def workflow_of(
    tasks: Sequence[Task],
    left: Sequence[int],
    cut: Mapping[int, float] = MappingProxyType({}),
    stretch: float = 1.0,
) -> Workflow:
    """
    Return a workflow of the remaining tasks, with longer runtimes for interrupted ones.

    Parameters
    ----------
    left
        Numbers of the remaining tasks, ascending.
    cut, stretch
        See :class:`bursar.runs.supply.RunSnapshot`.
    """
    ids = {tasks[i].id for i in left}
    return Workflow(
        tuple(
            replace(
                tasks[i],
                after=tuple(a for a in tasks[i].after if a in ids),
                runtime=_expected(tasks[i].runtime, cut.get(i, 0.0), stretch),
            )
            for i in left
        )
    )


def _expected(runtime: float | None, cut: float, stretch: float) -> float | None:
    if runtime is None:
        return _LONGER * cut if cut else None
    # A task that was cut off has shown that it takes longer than it had; doubling what it needs
    # keeps the number of such surprises small.
    return max(runtime * stretch, _LONGER * cut)


def _goal_left(snapshot: "RunSnapshot") -> Goal:
    goal = snapshot.goal
    deadline, budget = goal.deadline, goal.budget
    return replace(
        goal,
        deadline=None if deadline is None else max(deadline - snapshot.elapsed, 1e-3),
        budget=None if budget is None else max(budget - snapshot.spent, 0.0),
        # Thresholds are shares of the whole budget; the run's own guard watches them.
        on_budget={},
    )


# Deadlines and budgets relative to what is possible (the D- and B-factors of Buyya et al.).


def with_factors(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    *,
    deadline_factor: float | None = None,
    budget_factor: float | None = None,
) -> Campaign:
    """
    The campaign with a deadline and a budget between the least and the most that make sense.

    ``D = Tmin + Df (Tmax - Tmin)``: from all processors, the fastest first, to the slowest one
    alone. ``B = Cmin + Bf (Cmax - Cmin)``: from the cheapest to the dearest processors, within
    the deadline. Below 0 nothing is feasible, from 1 on everything is.

    Parameters
    ----------
    deadline_factor, budget_factor
        Df and Bf; None: the goal's own deadline or budget stays.

    Raises
    ------
    InputError
        When a factor is not a number, it leads to a limit that is not positive, or runtimes or
        prices are unknown.
    """
    for name, factor in (("deadline", deadline_factor), ("budget", budget_factor)):
        if factor is not None and not math.isfinite(factor):
            raise InputError(f"expected a number, got {factor}", where=f"{name}-factor")
    tasks = campaign.workflow.tasks
    for task in tasks:
        if task.runtime is None:
            raise InputError(
                f'the runtime of task "{task.id}" is unknown, and a factor needs it',
                where="deadline-factor" if budget_factor is None else "budget-factor",
                hint="give it a runtime, or one for all with --runtime",
            )
    goal = campaign.goal
    possible = (
        _BagLimits(campaign, sites) if campaign.workflow.is_bag else _PlanLimits(campaign, sites)
    )
    if deadline_factor is not None:
        fastest, slowest = possible.times()
        goal = _limited(goal, deadline=fastest + deadline_factor * (slowest - fastest))
    if budget_factor is not None:
        for site in sites:
            if site.unit_price is None:
                raise InputError("is unknown", where=f"site.{site.name}.unit_price")
        # With the new deadline, as in Buyya's definition: the budget is between the least and the
        # most within it.
        cheapest, dearest = possible.costs(goal.deadline)
        goal = _limited(goal, budget=cheapest + budget_factor * (dearest - cheapest))
    return replace(campaign, goal=goal)


class _BagLimits:
    """Independent tasks of one processor each."""

    def __init__(self, campaign: Campaign, sites: Sequence[SiteFacts]) -> None:
        self._sites = sites
        self._sizes = JobSizeClasses.of(
            sizes_of(task.runtime for task in campaign.workflow.tasks)[0]
        )

    def times(self) -> tuple[float, float]:
        fastest = self._filling(1).earliest(math.inf)
        assert fastest is not None
        # The paper's Tmax: all jobs one after the other on the slowest processor.
        return fastest, self._sizes.work / min(site.speed for site in self._sites)

    def costs(self, deadline: float | None) -> tuple[float, float]:
        by = math.inf if deadline is None else deadline
        cheap, dear = self._filling(1).by(by), self._filling(-1).by(by)
        # No filling does all jobs by then, so that there is no cheapest one.
        if not cheap.is_whole:
            raise InputError(
                f"is out of reach on these sites: {by:.6g} s", where="deadline", hint="allow more"
            )
        return cheap.cost, max(cheap.cost, -dear.cost if dear.is_whole else cheap.cost)

    def _filling(self, sign: int) -> JobPacking:
        pools = [
            ResourcePool(
                seconds=1.0 / site.speed,
                # The dearest filling is the cheapest one with the signs of all prices turned round.
                cost=sign * (site.unit_price or 0.0) / site.speed,
                fixed=sign * (site.fixed_price or 0.0),
                free_at=(0.0,) * site.processors,
            )
            for site in self._sites
        ]
        return JobPacking(pools, self._sizes)


class _PlanLimits:
    """Limits of other campaigns, from the plans of the front."""

    def __init__(self, campaign: Campaign, sites: Sequence[SiteFacts]) -> None:
        self._slowest = min(site.speed for site in sites)
        self._work = sum(task.runtime or 0.0 for task in campaign.workflow.tasks)
        # Without the goal, whose limits are what is asked for.
        self._options = plan(
            replace(campaign, goal=Goal()), tuple(sites), history=NOWHERE
        ).front.options

    def times(self) -> tuple[float, float]:
        fastest = min(option.makespan for option in self._options if option.makespan is not None)
        return fastest, max(fastest, self._work / self._slowest)

    def costs(self, deadline: float | None) -> tuple[float, float]:
        """
        Return the least and the greatest cost of the front's plans that meet a deadline.

        Parameters
        ----------
        deadline
            Seconds from the start of the campaign; None: all plans of known length count.

        Raises
        ------
        InputError
            When no plan of known cost meets the deadline.
        """
        by = math.inf if deadline is None else deadline
        costs = [
            option.cost
            for option in self._options
            if option.cost is not None and option.makespan is not None and option.makespan <= by
        ]
        if not costs:
            raise InputError(f"no plan meets {by:.6g} s", where="deadline", hint="allow more")
        return min(costs), max(costs)


def _limited(goal: Goal, **limits: float) -> Goal:
    try:
        return replace(goal, **limits)  # type: ignore[arg-type]
    except ValueError as error:
        name = next(iter(limits))
        raise InputError(f"leads to a {error}", where=f"{name}-factor") from None
