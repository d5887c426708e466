"""A bag of tasks and a strategy, before anything starts: what can be had by the goal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bursar.broker.economy import Economy
from bursar.broker.outlook import Outlook
from bursar.broker.strategies import Named
from bursar.broker.supply import Past
from bursar.broker.trading import Trading
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.goal import Goal
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.planning.choice import CounterOffer

WEIGHTS: dict[Named, float | None] = {
    "time": 0.0,
    "conservative-time": 0.0,
    "cost": 1.0,
    "cost-time": 1.0,
    "none": None,
    "adaptive": None,
}
"""The trade-off that a strategy stands for, where a workflow is planned instead."""


class Prospect:
    """
    What a strategy can be expected to do for a goal.

    Parameters
    ----------
    campaign
        What is to run.
    strategy
        How.
    currency
        Of the sites.
    outlook
        None: nothing is known of how long jobs take.
    makespan, cost
        That are expected: seconds, currency units; None where a strategy does not say.
    """

    def __init__(
        self,
        campaign: Campaign,
        strategy: Named,
        currency: str,
        outlook: Outlook | None,
        makespan: float | None = None,
        cost: float | None = None,
    ) -> None:
        self.makespan = makespan
        self.cost = cost
        self.campaign = campaign
        self.strategy: Named = strategy
        self.currency = currency
        self.outlook = outlook

    @property
    def feasible(self) -> bool:
        """Whether all jobs fit, as far as anything is known."""
        return self.outlook is None or self.outlook.feasible

    @property
    def reason(self) -> str:
        """In one line."""
        if self.outlook is None:
            return f"by the {self.strategy} strategy; how long jobs take is not known yet"
        if self.outlook.feasible:
            return f"by the {self.strategy} strategy: {self.outlook}"
        return str(self.outlook).partition(";")[0]

    @property
    def counter_offers(self) -> tuple[CounterOffer, ...]:
        """What could be had instead of a goal out of reach."""
        return () if self.outlook is None else self.outlook.counter_offers

    def to_dict(self) -> dict[str, Any]:
        """As printed with ``--json``; the keys are in the documentation."""
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
            "counter_offers": [offer_to_dict(offer) for offer in self.counter_offers],
        }

    def print(self) -> None:
        """The reason, and the counter-offers."""
        from bursar.report.plan_table import print_choice

        print_choice(self.feasible, self.reason, self.counter_offers, self.currency)


def prospect(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    trading: Trading | None = None,
) -> Prospect:
    """
    What a strategy can be expected to do, by what is known before the begin.

    Parameters
    ----------
    trading
        What the sites ask for, and from when on; None: as they would of a simulated campaign,
        which begins at moment 0 and is the only one.

    Raises
    ------
    InputError
        When there is a budget and a price is unknown, or the currency is another one.
    """
    _check_money(sites, campaign.goal)
    economy = Economy(campaign.workflow.tasks, sites, campaign.goal, strategy, trading=trading)
    outlook = economy.outlook(NOTHING_YET)
    return Prospect(campaign, strategy, sites[0].currency, outlook, *economy.expected())


NOTHING_YET = Past(
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
    Whether a strategy brings the jobs to sites, and the campaign that is left to plan if not.

    A workflow is planned by the goal that a strategy stands for. Without a strategy, a bag of
    tasks with a deadline or a budget is brought to several sites by our own, where processors
    can be had and given back at any time.
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
    open_ended = all(_is_open_ended(site) for site in sites)
    if is_bag and limited and open_ended and len(sites) > 1:
        return "adaptive", campaign
    return None, campaign


def unplanned(
    sites: Sequence[SiteFacts],
    algorithm: str,
    makespan: float | None = None,
    cost: float | None = None,
) -> Plan:
    """The plan of a run that decides as it goes: nothing is bought ahead, much is expected."""
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
