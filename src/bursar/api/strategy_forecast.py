"""Forecast of a bag of tasks under a strategy, before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bursar.api.offers import SLOWER, firm_offer, start_up, with_margins
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.economy import EconomyScheduler
from bursar.broker.feasibility import GoalFeasibility
from bursar.broker.strategies import Named
from bursar.broker.strategy_simulation import StrategySimulation, StrategySimulationResult
from bursar.broker.trading import CampaignTrader
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import InputError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.formatting import amount, span

WEIGHTS: dict[Named, float | None] = {
    "time": 0.0,
    "conservative-time": 0.0,
    "cost": 1.0,
    "cost-time": 1.0,
    "none": None,
    "adaptive": None,
}
"""The trade-off that a strategy stands for, where a workflow is planned instead."""


class StrategyForecast:
    """
    Forecast of what a strategy does for a goal.

    Parameters
    ----------
    campaign
        Campaign to run.
    strategy
        Name of the strategy.
    currency
        Currency of the sites.
    outlook
        Feasibility under any strategy; None where no durations are known.
    rehearsed
        Simulated result of this strategy with the estimated durations; None: unknown.
    counter_offers
        Counter-offers in place of a goal that is out of reach.
    """

    def __init__(
        self,
        campaign: Campaign,
        strategy: Named,
        currency: str,
        outlook: GoalFeasibility | None,
        rehearsed: StrategySimulationResult | None = None,
        counter_offers: tuple[GoalCounterOffer, ...] = (),
    ) -> None:
        self.campaign = campaign
        self.strategy: Named = strategy
        self.currency = currency
        self.outlook = outlook
        self.rehearsed = rehearsed
        self.counter_offers = counter_offers

    @property
    def makespan(self) -> float | None:
        """Expected end of the last job, seconds from the run's begin; None when unknown."""
        return None if self.rehearsed is None else self.rehearsed.finish

    @property
    def cost(self) -> float | None:
        """Expected cost of the whole run, currency units; None when unknown."""
        return None if self.rehearsed is None else self.rehearsed.cost

    @property
    def feasible(self) -> bool:
        """Whether all jobs fit, as far as anything is known."""
        return self.outlook is None or self.outlook.feasible

    @property
    def reason(self) -> str:
        """The reason in one line."""
        if self.outlook is None:
            return f"by the {self.strategy} strategy; how long jobs take is not known yet"
        if self.outlook.feasible:
            return f"by the {self.strategy} strategy: {self.outlook}"
        return str(self.outlook).partition(";")[0]

    @property
    def expectation(self) -> str:
        """Expected end and cost in words."""
        if self.rehearsed is None:
            return "expected end and cost: unknown until the first jobs have ended"
        expected = self.rehearsed
        text = f"expected: end {span(expected.finish)} from the begin"
        text += f", cost {amount(expected.cost, self.currency)}"
        if not expected.is_whole:
            text += f", {expected.done} of {expected.left} jobs left"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; the keys are in the documentation."""
        from bursar.report.plan_table import offer_to_dict

        goal = self.campaign.goal
        return {
            "campaign": self.campaign.name,
            "tasks": len(self.campaign.workflow.tasks),
            "currency": self.currency,
            "goal": {
                "deadline_s": goal.deadline,
                "budget": goal.budget,
                "trade_off": goal.trade_off,
            },
            "strategy": self.strategy,
            "feasible": self.feasible,
            "reason": self.reason,
            "expected_finish_s": self.makespan,
            "expected_cost": self.cost,
            "expected_jobs": None if self.rehearsed is None else self.rehearsed.done,
            "counter_offers": [offer_to_dict(offer) for offer in self.counter_offers],
        }

    def print(self) -> None:
        """Print the reason and the counter-offers."""
        from bursar.report.plan_table import print_choice

        print_choice(
            self.feasible, self.reason, self.counter_offers, self.currency, note=self.expectation
        )


def prospect(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    trading: CampaignTrader | None = None,
    past: ResumeState | None = None,
    *,
    simulated: bool = False,
) -> StrategyForecast:
    """
    Forecast what a strategy does, from what is known.

    Parameters
    ----------
    past
        Present state of the run; None: it has not begun.
    trading
        What the sites ask for, and from when on; None: as they would of a simulated campaign,
        which begins at moment 0 and is the only one.
    simulated
        Whether workers start at once, as in a simulation of real sites.

    Raises
    ------
    InputError
        When there is a budget and a price is unknown, or the currency is another one.
    """
    _check_money(sites, campaign.goal)
    past = past or NOTHING_YET
    outlook = _economy(campaign, sites, strategy, campaign.goal, trading).outlook(past)
    currency = sites[0].currency
    if outlook is None:
        return StrategyForecast(campaign, strategy, currency, None)
    starting = {site.name: 0.0 if simulated else start_up(site) for site in sites}
    epoch = None if trading is None else trading.epoch
    rehearsed = simulate_strategy(campaign, sites, strategy, campaign.goal, past, starting, epoch)
    offers: tuple[GoalCounterOffer, ...] = ()
    if not outlook.feasible:
        offers = _offers(campaign, sites, strategy, past, outlook, starting, trading)
    return StrategyForecast(campaign, strategy, currency, outlook, rehearsed, offers)


def simulate_strategy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    goal: Goal,
    past: ResumeState,
    starting: Mapping[str, float],
    epoch: float | None = None,
) -> StrategySimulationResult | None:
    """
    Simulate a strategy under a goal with the estimated runtimes; None: no result.

    Parameters
    ----------
    starting
        Seconds that the workers of a site take to start, by its name; 0 for others.
    epoch
        Moment at which the run begins, seconds since the epoch, by which prices change; None:
        as the run stands. Owners are asked as if nobody else bought from them.
    """
    trading = None if epoch is None else CampaignTrader(sites, epoch=epoch)
    rehearsal = StrategySimulation(
        _economy(campaign, sites, strategy, goal, trading),
        goal,
        past,
        lambda site: starting.get(site, 0.0),
        {site.name: site.unwatched for site in sites}.__getitem__,
    )
    return rehearsal.run(len(campaign.workflow.tasks))


def _economy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    goal: Goal,
    trading: CampaignTrader | None,
) -> EconomyScheduler:
    return EconomyScheduler(
        campaign.workflow.tasks, sites, goal, strategy, trading=trading, retry=campaign.retry
    )


def _offers(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    past: ResumeState,
    outlook: GoalFeasibility,
    starting: Mapping[str, float],
    trading: CampaignTrader | None,
) -> tuple[GoalCounterOffer, ...]:
    """Return the counter-offers that the strategy can keep, with margins."""
    longest = max(starting.values())
    goal = campaign.goal
    epoch = None if trading is None else trading.epoch

    def holds(limits: Goal) -> bool:
        seen = _economy(campaign, sites, strategy, limits, trading).outlook(past)
        if seen is None or not seen.feasible:
            return False
        # The outlook holds for any strategy; only the simulation tells whether this one keeps to
        # the limits.
        result = simulate_strategy(campaign, sites, strategy, limits, past, starting, epoch)
        return result is not None and result.meets(limits)

    offers = []
    for offer in outlook.counter_offers:
        # A time and an amount are tried until they hold; how many jobs can be done within given
        # limits is simulated once.
        if offer.kind != "share":
            # Live sites only: workers of simulated ones start at once, and tasks take what was
            # said.
            makespan = (offer.makespan + longest) * (1 + SLOWER) if longest else offer.makespan
            made = firm_offer(offer, goal, holds, makespan)
            offers += [] if made is None else [made]
            continue
        result = simulate_strategy(campaign, sites, strategy, goal, past, starting, epoch)
        if result is not None and result.done:
            done = len(past.ended) + result.done
            share = done / max(1, len(campaign.workflow.tasks))
            part = replace(offer, tasks=done, share=share)
            offers.append(with_margins(part, result.finish, result.cost))
    return tuple(offers)


NOTHING_YET = ResumeState(
    ended=frozenset(),
    succeeded=frozenset(),
    attempts=(),
    pilots=0,
    clock=lambda: 0.0,
    spent=lambda: 0.0,
)


def choose_strategy(
    campaign: Campaign, sites: Sequence[SiteFacts], strategy: Named | None
) -> tuple[Named | None, Campaign]:
    """
    Decide whether a strategy sends the jobs to sites while they run, or a plan made before.

    A workflow is always planned; a named strategy then only sets the trade-off of its goal. A bag
    of tasks uses the named strategy. Without a name, a bag with a deadline or a budget uses
    "adaptive", if there are several sites and all lease and release processors at any time.

    Returns
    -------
    tuple
        The strategy, None: make a plan; and the campaign, with the goal to plan for.
    """
    is_bag = campaign.workflow.is_bag
    if strategy is not None:
        if not is_bag:
            weight = WEIGHTS[strategy]
            goal = campaign.goal
            if weight is not None and goal.trade_off is None:
                goal = replace(goal, trade_off=weight)
            return None, replace(campaign, goal=goal)
        return strategy, campaign
    limited = campaign.goal.deadline is not None or campaign.goal.budget is not None
    # A strategy buys job by job, which neither a shared queue nor advertised slots allow.
    open_ended = all(_is_open_ended(site) for site in sites)
    if is_bag and limited and open_ended and len(sites) > 1:
        return "adaptive", campaign
    return None, campaign


def dynamic_plan(
    sites: Sequence[SiteFacts],
    algorithm: str,
    makespan: float | None = None,
    cost: float | None = None,
) -> Plan:
    """Return the plan of a run that decides on the way: only expectations, and no purchases."""
    return Plan(
        purchases=(),
        placements=(),
        makespan=makespan,
        cost=cost,
        currency=sites[0].currency,
        utilisation=None,
        algorithm=algorithm,
    )


def _is_open_ended(site: SiteFacts) -> bool:
    return not site.is_shared and site.kind != "advertised"


def _check_money(sites: Sequence[SiteFacts], goal: Goal) -> None:
    if goal.budget is not None:
        for site in sites:
            if site.unit_price is None:
                raise InputError(
                    "is not known, and a strategy keeps to a budget by prices",
                    where=f"site.{site.name}.unit_price",
                )
    if goal.currency not in (None, sites[0].currency):
        raise InputError(
            f"the sites count in {sites[0].currency}, got {goal.currency}", where="budget"
        )
